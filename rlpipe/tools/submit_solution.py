"""Hand in the final solution."""

from typing import Literal

from rlpipe.sandboxes.base import Sandbox
from rlpipe.tools import base
from rlpipe.tools.base import Observation, Tool


class Solution(base.Arguments):
    code: str
    """The complete Python code of the solution."""


class SubmitSolution(Tool):
    """Submit the final solution. Tests that you may not have seen judge it; the work ends."""

    kind: Literal["submit_solution"] = "submit_solution"
    Arguments = Solution
    submits = True

    async def call(self, sandbox: Sandbox, arguments: Solution) -> Observation:
        return Observation("Submitted.", submission=arguments.code)
