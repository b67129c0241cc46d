"""Run a shell command."""

from typing import Literal

from pydantic import Field

from rlpipe.sandboxes.base import Sandbox
from rlpipe.tools import base
from rlpipe.tools.base import Observation, ProgramTool


class Command(base.Arguments):
    command: str
    """A command line for bash."""


class Bash(ProgramTool):
    """Run a command in bash and return its exit code and output. Files stay between calls."""

    kind: Literal["bash"] = "bash"
    timeout: float = Field(30.0, gt=0)
    """Seconds for one command; when they are over, everything that it started is killed."""

    Arguments = Command

    async def call(self, sandbox: Sandbox, arguments: Command) -> Observation:
        result = await sandbox.exec(arguments.command, timeout=self.timeout)
        if result.outcome == "exited":
            head = f"exit={result.exit_code}"
        elif result.outcome == "timeout":
            head = f"command timed out after {self.timeout:g} seconds"
        else:
            head = f"command stopped: {result.outcome.replace('_', ' ')}"
        return Observation(f"{head}\n{self.cut(result.stdout + result.stderr)}")
