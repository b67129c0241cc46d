"""Answers with each task's own reference solution: a perfect teacher, or one that errs at will."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from pydantic import Field

from rlpipe.errors import ProviderError
from rlpipe.policies.base import Actor, Policy, Request
from rlpipe.types import Message, ToolCall, Turn

SUBMITTING = "submit_solution"


class Reference(Policy):
    """Hands in `task.reference` at once, through `submit_solution` where that tool is offered."""

    kind: Literal["reference"] = "reference"
    mistakes: float = Field(0.0, ge=0, le=1)
    """Share of the rollouts that hand in `task.mistake`, where the task has one."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Actor]:
        yield _Oracle(self.mistakes)


class _Oracle(Actor):
    name = "reference"

    def __init__(self, mistakes: float) -> None:
        self._mistakes = mistakes

    async def act(self, request: Request) -> tuple[Message, Turn]:
        """Answer with one assistant message and the turn that produced it.

        Raises:
            ProviderError: the task has no reference solution.
        """
        code = self._code(request)
        if not any(map(_submits, request.tools)):
            framed = f"\n{code}\n" if "\n" in code else code
            answer = f"<answer>{framed}</answer>"
            return {"role": "assistant", "content": answer}, Turn(finish_reason="stop")
        arguments = json.dumps({"code": code})
        call = ToolCall(id="call_reference", name=SUBMITTING, arguments=arguments)
        message: Message = {"role": "assistant", "content": ""}
        return message | {"tool_calls": [call.to_message()]}, Turn(finish_reason="tool_calls")

    def _code(self, request: Request) -> str:
        task = request.task
        if task.reference is None:
            raise ProviderError(f"task {task.id} has no reference solution")
        errs = random.Random(request.seed).random() < self._mistakes
        return task.mistake if errs and task.mistake is not None else task.reference


def _submits(tool: dict[str, Any]) -> bool:
    function = tool["function"]
    parameters = function.get("parameters", {}).get("properties", {})
    return function["name"] == SUBMITTING and "code" in parameters
