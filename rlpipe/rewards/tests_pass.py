"""1 when every test passes, 0 otherwise."""

from typing import Literal

from pydantic import Field

from rlpipe.grading.grader import grade
from rlpipe.rewards.base import NO_ANSWER, CodeReward
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class TestsPass(CodeReward):
    """1 when every test of the task passes, 0 otherwise."""

    __test__ = False  # pytest must not take it for a test class

    kind: Literal["tests_pass"] = "tests_pass"
    timeout: float = Field(30.0, gt=0)
    """Seconds for all tests. Waiting for a busy processor does not count."""

    test_timeout: float = Field(10.0, gt=0)
    """Seconds for one test."""

    needs_task = ("tests",)

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        code = self.code(trajectory)
        if code is None or task.tests is None:
            return NO_ANSWER
        report = await grade(
            sandbox, code, task.tests, timeout=self.timeout, test_timeout=self.test_timeout
        )
        return Score(
            value=float(report.passed),
            passed=report.passed,
            parts={"tests_passed": report.passed_tests, "tests": report.total},
            tests=report.tests,
            outcome=report.outcome,
            note=report.note,
        )
