"""1 when the answer's code runs to its end without an error."""

from typing import Literal

from rlpipe.rewards.base import CodeReward
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class ExitCode(CodeReward):
    """1 when the answer's code exits with status 0, 0 otherwise.

    It says that the code runs, not that it is right: `sys.exit(0)` earns it.
    """

    kind: Literal["exit_code"] = "exit_code"

    async def judge(self, task: Task, trajectory: Trajectory, code: str, sandbox: Sandbox) -> Score:
        result = await sandbox.run_python(code, timeout=self.timeout)
        outcome = "passed" if result.ok else result.outcome
        note = f"exit code {result.exit_code}" if result.outcome == "exited" else result.outcome
        return Score(value=float(result.ok), passed=result.ok, outcome=outcome, note=note)
