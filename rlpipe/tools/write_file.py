"""Write a text file."""

from typing import Literal

from rlpipe.sandboxes.base import Sandbox
from rlpipe.tools import base
from rlpipe.tools.base import Observation, Tool


class File(base.Arguments):
    path: str
    """Path of the file; a relative one starts in the working folder. Missing folders are made."""

    content: str
    """The whole new content."""


class WriteFile(Tool):
    """Write a text file into the sandbox, replacing what was there."""

    kind: Literal["write_file"] = "write_file"
    Arguments = File

    async def call(self, sandbox: Sandbox, arguments: File) -> Observation:
        await sandbox.write_file(arguments.path, arguments.content)
        return Observation("File written successfully")
