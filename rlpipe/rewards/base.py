"""A reward looks at a finished trajectory and its sandbox, and gives a score."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar, Literal, Self

from pydantic import Field

from rlpipe.component import Component
from rlpipe.errors import GraderError
from rlpipe.policies.base import OnTurn, Policy, unheard
from rlpipe.rewards._extraction import extract_code
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class Reward(Component):
    """Scores one finished trajectory. What the machinery did is no score: such errors propagate."""

    needs_task: ClassVar[tuple[str, ...]] = ()
    """Fields of `Task` that must be there, such as `tests`."""

    in_place: ClassVar[bool] = False
    """Whether it judges what the rollout left in its sandbox, not only what was said."""

    judges_groups: ClassVar[bool] = False
    """Whether it judges the trajectories of a task beside each other, in `score_group`."""

    def each(self) -> Iterator["Reward"]:
        """This reward, and every one that it is made of."""
        yield self

    def asks(self) -> tuple[Policy, int] | None:
        """The model that it asks, and the most tokens which that may write for one trajectory."""
        return None

    def open(self, on_turn: OnTurn = unheard) -> AbstractAsyncContextManager["Reward"]:
        """The reward as it is used during a run: with its connections open, where it has any.

        `on_turn` is told of the answers of models that it asks.
        """
        return self._open(on_turn)

    @asynccontextmanager
    async def _open(self, on_turn: OnTurn) -> AsyncIterator[Self]:
        yield self

    @abstractmethod
    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        """Judge the trajectory; `sandbox` is as the rollout left it.

        Raises:
            SandboxError, GraderError: the reward could not be taken; the trajectory is masked.
        """

    async def score_group(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Score]:
        """Judge the valid trajectories of one task, which `score` has seen, beside each other.

        Only asked where `judges_groups`. The scores are in the order of `trajectories`.

        Raises:
            GraderError: the rewards could not be taken; all these trajectories are masked.
        """
        raise GraderError(f"{self.kind!r} judges no groups")


class CodeReward(Reward):
    """A reward on the code that the model answered with, which runs in a sandbox of its own."""

    answer: Literal["auto", "submitted", "answer", "fence"] = "auto"
    """Where the code is: `submitted` by a tool, in the last `<answer>` tags, in the last fenced
    block, or `auto`: the first of these that is there."""

    timeout: float = Field(10.0, gt=0)
    """Seconds for the execution or the tests together."""

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        code = self.code(trajectory)
        if code is None:
            return NO_ANSWER
        await sandbox.reset()  # what the agent's tools left there must not reach the judgement
        return await self.judge(task, trajectory, code, sandbox)

    @abstractmethod
    async def judge(self, task: Task, trajectory: Trajectory, code: str, sandbox: Sandbox) -> Score:
        """Judge the answer's code; nothing of the rollout is in `sandbox` but the task's files."""

    def code(self, trajectory: Trajectory) -> str | None:
        """The answer's code, or None where there is none."""
        if self.answer in ("auto", "submitted") and trajectory.submission is not None:
            return trajectory.submission
        if self.answer == "submitted":
            return None
        return extract_code(trajectory.answer, self.answer)


NO_ANSWER = Score(value=0.0, outcome="no_answer", note="the answer holds no code")
