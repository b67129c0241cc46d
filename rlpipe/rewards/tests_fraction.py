"""The share of the tests that pass."""

from typing import Literal

from rlpipe.rewards._tests import TestsReward, scored
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class TestsFraction(TestsReward):
    """The share of the task's tests that pass: a smoother signal than all or nothing.

    It pays for half a solution. The visible tests alone can earn a part of it, so hide some.
    """

    kind: Literal["tests_fraction"] = "tests_fraction"
    strict_evaluation: bool = True
    """When evaluating, give 1 where every test passes and 0 otherwise, as `tests_pass` does."""

    async def judge(self, task: Task, trajectory: Trajectory, code: str, sandbox: Sandbox) -> Score:
        report = await self.report(task, code, sandbox)
        if self.strict_evaluation and trajectory.evaluates:
            return scored(report, float(report.passed))
        return scored(report, report.passed_tests / report.total if report.total else 0.0)
