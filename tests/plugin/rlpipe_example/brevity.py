"""The shorter the answer, the better."""

from typing import Literal

from pydantic import Field

from rlpipe.rewards.base import Reward
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class Brevity(Reward):
    """1 for an empty answer, falling to 0 at `longest` characters."""

    kind: Literal["brevity"] = "brevity"
    longest: int = Field(100, ge=1)
    """Characters at which nothing is earned."""

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        value = max(0.0, 1 - len(trajectory.answer) / self.longest)
        return Score(value=value, passed=value > 0, note=f"{len(trajectory.answer)} characters")
