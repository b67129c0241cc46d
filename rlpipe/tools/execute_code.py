"""Run a Python program and see what it prints."""

from typing import Literal

from rlpipe.sandboxes.base import Sandbox
from rlpipe.tools import base
from rlpipe.tools.base import Observation, ProgramTool, describe


class Code(base.Arguments):
    code: str
    """A complete Python program."""


class ExecuteCode(ProgramTool):
    """Run a Python program in the sandbox and return what it prints."""

    kind: Literal["execute_code"] = "execute_code"
    Arguments = Code

    async def call(self, sandbox: Sandbox, arguments: Code) -> Observation:
        result = await sandbox.run_python(arguments.code, timeout=self.timeout)
        return Observation(self.cut(describe(result, self.timeout)) or "(no output)")
