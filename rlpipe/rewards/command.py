"""1 when the task's own test command succeeds in the sandbox that the agent worked in."""

from typing import ClassVar, Literal

from pydantic import Field

from rlpipe.errors import GraderError, SandboxFileError
from rlpipe.rewards.base import Reward
from rlpipe.sandboxes.base import ExecResult, Sandbox
from rlpipe.types import Score, Task, Trajectory

SHOWN = 200
"""Characters of output in a note."""


class Command(Reward):
    """1 when the task's `test_command` exits with status 0 in the agent's sandbox, 0 otherwise.

    Where the work is a state and not a piece of code. The task's `test_files` are laid down first,
    so editing them earns nothing, but the command meets everything else that the agent left, its
    processes included: a task decides what its command trusts.
    """

    kind: Literal["command"] = "command"
    timeout: float = Field(60.0, gt=0)
    """Seconds for the command."""

    needs_task: ClassVar[tuple[str, ...]] = ("test_command",)
    in_place: ClassVar[bool] = True

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        if task.test_command is None:
            raise GraderError(f"task {task.id} has no test_command")
        try:
            for path, text in task.test_files.items():
                await sandbox.write_file(path, text)
        except SandboxFileError as error:  # the agent's doing: it put a folder in the way, or so
            note = f"the test files cannot be laid down: {error}"
            return Score(value=0.0, outcome="tests_not_completed", note=note)
        result = await sandbox.exec(task.test_command, timeout=self.timeout)
        outcome = "passed" if result.ok else "tests_failed"
        if result.outcome != "exited":
            outcome = result.outcome
        return Score(value=float(result.ok), passed=result.ok, outcome=outcome, note=_note(result))


def _note(result: ExecResult) -> str:
    how = f"exit status {result.exit_code}" if result.outcome == "exited" else result.outcome
    said = " ".join((result.stdout + result.stderr).split())[-SHOWN:]
    return f"{how}: {said}" if said and not result.ok else how
