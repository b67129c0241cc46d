"""1 when every test passes, 0 otherwise."""

from typing import Literal

from rlpipe.rewards._tests import TestsReward, scored
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class TestsPass(TestsReward):
    """1 when every test of the task passes, 0 otherwise."""

    kind: Literal["tests_pass"] = "tests_pass"

    async def judge(self, task: Task, trajectory: Trajectory, code: str, sandbox: Sandbox) -> Score:
        report = await self.report(task, code, sandbox)
        return scored(report, float(report.passed))
