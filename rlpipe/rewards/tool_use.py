"""What tool calls cost, and what submitting is worth."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from rlpipe.rewards.base import Reward
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, StopReason, Task, Trajectory


class ToolUse(Reward):
    """A bonus for submitting less the costs of the calls; as a part of `weighted`, mostly.

    It is negative for one who calls much and never submits.
    """

    kind: Literal["tool_use"] = "tool_use"
    cost: float = Field(0.01, ge=0)
    """Of each call of a tool that `costs` does not name."""

    costs: Mapping[str, Annotated[float, Field(ge=0)]] = {"submit_solution": 0.0}
    """Of each call of a particular tool, by its name."""

    malformed_cost: float = Field(0.1, ge=0)
    """Of each call with unreadable arguments or of a tool that is not there."""

    submit_bonus: float = Field(0.1, ge=0)
    """For ending the rollout with a submission."""

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        submitted = trajectory.stop_reason == StopReason.SUBMITTED
        bonus = self.submit_bonus if submitted else 0.0
        calls = sum(
            self.costs.get(name, self.cost) * times for name, times in trajectory.tool_calls.items()
        )
        malformed = self.malformed_cost * trajectory.malformed
        made, broken = sum(trajectory.tool_calls.values()), trajectory.malformed
        return Score(
            value=bonus - calls - malformed,
            parts={"submitted": float(submitted), "calls": calls, "malformed": malformed},
            passed=submitted,
            outcome="submitted" if submitted else "not_submitted",
            note=f"{made} calls, {broken} malformed, {'' if submitted else 'not '}submitted",
        )
