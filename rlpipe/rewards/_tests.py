"""What the rewards that run a task's Python tests share."""

from typing import ClassVar

from pydantic import Field

from rlpipe.errors import GraderError
from rlpipe.grading.grader import Report, grade
from rlpipe.rewards.base import CodeReward
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task


class TestsReward(CodeReward):
    """A reward on the outcomes of the task's tests, each run by itself out of the code's reach."""

    __test__ = False  # pytest must not take it for a test class

    timeout: float = Field(30.0, gt=0)
    """Seconds for all tests. Waiting for a busy processor does not count."""

    test_timeout: float = Field(10.0, gt=0)
    """Seconds for one test."""

    needs_task: ClassVar[tuple[str, ...]] = ("tests",)

    async def report(self, task: Task, code: str, sandbox: Sandbox) -> Report:
        if task.tests is None:
            raise GraderError(f"task {task.id} has no tests")
        report = await grade(
            sandbox, code, task.tests, timeout=self.timeout, test_timeout=self.test_timeout
        )
        sandbox.declare_clean()  # the harness ends what the code started, and trusts no file
        return report


def scored(report: Report, value: float) -> Score:
    """The score of a report, with each test's outcome beside its value."""
    return Score(
        value=value,
        passed=report.passed,
        parts={"tests_passed": report.passed_tests, "tests": report.total},
        tests=report.tests,
        outcome=report.outcome,
        note=report.note or f"{report.passed_tests} of {report.total} tests passed",
    )
