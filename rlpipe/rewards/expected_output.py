"""1 when the answer's code prints what the task expects."""

from typing import Literal

from rlpipe.errors import GraderError
from rlpipe.rewards.base import CodeReward
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class ExpectedOutput(CodeReward):
    """1 when the answer's code exits with status 0 and prints what the task expects, else 0."""

    kind: Literal["expected_output"] = "expected_output"
    strip: bool = True
    """Ignore white space around the whole output."""

    needs_task = ("expected_output",)

    async def judge(self, task: Task, trajectory: Trajectory, code: str, sandbox: Sandbox) -> Score:
        if task.expected_output is None:
            raise GraderError(f"task {task.id} has no expected_output")
        result = await sandbox.run_python(code, timeout=self.timeout)
        passed = result.ok and self._same(result.stdout, task.expected_output)
        if not result.ok:
            outcome, note = (
                "does_not_run",
                f"the code ended with {result.outcome} {result.exit_code}",
            )
        elif passed:
            outcome, note = "passed", ""
        else:
            outcome, note = "wrong_output", f"printed {result.stdout[:80]!r}"
        return Score(value=float(passed), passed=passed, outcome=outcome, note=note)

    def _same(self, printed: str, expected: str) -> bool:
        return printed.strip() == expected.strip() if self.strip else printed == expected
