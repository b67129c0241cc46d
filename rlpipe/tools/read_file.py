"""Read a text file."""

from typing import Literal

from rlpipe.sandboxes.base import Sandbox
from rlpipe.tools import base
from rlpipe.tools.base import Observation, OutputTool


class Path(base.Arguments):
    path: str
    """Path of the file; a relative one starts in the working folder."""


class ReadFile(OutputTool):
    """Read a text file from the sandbox."""

    kind: Literal["read_file"] = "read_file"
    keep: Literal["head", "tail"] = "head"
    """Which end of a file that is too long the model is shown."""

    Arguments = Path

    async def call(self, sandbox: Sandbox, arguments: Path) -> Observation:
        data = await sandbox.read_file(arguments.path)
        return Observation(self.cut(data.decode(errors="replace")))
