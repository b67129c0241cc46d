"""A reward looks at a finished trajectory and its sandbox, and gives a score."""

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field

from rlpipe.component import Component
from rlpipe.rewards._extraction import extract_code
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class Reward(Component):
    """Scores one finished trajectory. What the machinery did is no score: such errors propagate."""

    needs_task: ClassVar[tuple[str, ...]] = ()
    """Fields of `Task` that must be there, such as `tests`."""

    @abstractmethod
    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        """Judge the trajectory; `sandbox` is as the rollout left it.

        Raises:
            SandboxError, GraderError: the reward could not be taken; the trajectory is masked.
        """


class CodeReward(Reward):
    """A reward on the code that the model answered with."""

    answer: Literal["auto", "submitted", "answer", "fence"] = "auto"
    """Where the code is: `submitted` by a tool, in the last `<answer>` tags, in the last fenced
    block, or `auto`: the first of these that is there."""

    timeout: float = Field(10.0, gt=0)
    """Seconds for the execution or the tests together."""

    def code(self, trajectory: Trajectory) -> str | None:
        """The answer's code, or None where there is none."""
        if self.answer in ("auto", "submitted") and trajectory.submission is not None:
            return trajectory.submission
        if self.answer == "submitted":
            return None
        return extract_code(trajectory.answer, self.answer)


NO_ANSWER = Score(value=0.0, outcome="no_answer", note="the answer holds no code")
