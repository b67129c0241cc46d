"""ART's RULER: a language model compares the trajectories of a task with each other."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from rlpipe.errors import Finding, GraderError
from rlpipe.rewards.base import Reward
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class Ruler(Reward):
    """Scores from 0 to 1 that a language model gives to a task's trajectories side by side.

    They compare members of one group and mean nothing beside another group's, so nothing counts
    as solved. A group with one valid trajectory has no comparison and is masked.
    """

    kind: Literal["ruler"] = "ruler"
    judge_model: str = "openai/o3"
    """The judge, as LiteLLM names models; its key comes from the provider's own variable."""

    rubric: str | None = None
    """What makes one trajectory better than another; null takes ART's own."""

    litellm_params: Mapping[str, Any] = {}
    """Further arguments of the request, such as `{num_retries: 5, api_base: ...}`."""

    extra: ClassVar[str | None] = "art"
    needs: ClassVar[tuple[str, ...]] = ("art",)
    judges_groups: ClassVar[bool] = True

    def check(self) -> list[Finding]:
        findings = super().check()
        if self.judge_model.startswith("openai/") and not (
            os.environ.get("OPENAI_API_KEY") or "api_key" in self.litellm_params
        ):
            problem = "set the environment variable OPENAI_API_KEY"
            findings.append(Finding("judge_model", problem, lacking=True))
        return findings

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        return Score(value=0.0, outcome="waits_for_its_group")

    async def score_group(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Score]:
        if len(trajectories) < 2:
            raise GraderError("RULER compares trajectories, and only one of the group is valid")
        judged = await self._ask(trajectories)
        if judged is None or len(judged.trajectories) != len(trajectories):
            raise GraderError("RULER did not judge every trajectory of the group")
        return [_score(member) for member in judged.trajectories]

    async def _ask(self, trajectories: Sequence[Trajectory]) -> Any:
        import art
        from art.rewards import ruler_score_group

        group = art.TrajectoryGroup(
            art.Trajectory(
                messages_and_choices=list(trajectory.messages),
                tools=list(trajectory.tools) or None,
                reward=0.0,
            )
            for trajectory in trajectories
        )
        options: dict[str, Any] = {} if self.rubric is None else {"rubric": self.rubric}
        try:
            return await ruler_score_group(
                group,
                self.judge_model,
                extra_litellm_params=dict(self.litellm_params) or None,
                **options,
            )
        except Exception as error:  # those of LiteLLM, of the provider and of the answer's parser
            raise GraderError(f"RULER failed: {type(error).__name__}: {error}") from error


def _score(member: Any) -> Score:
    value = member.metrics.get("ruler_score")
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise GraderError(f"RULER's score {value!r} is not from 0 to 1")
    said = [line.removeprefix("RULER explanation: ") for line in member.logs]
    return Score(value=float(value), outcome="compared", note=said[-1] if said else "")
