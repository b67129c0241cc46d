"""Plays turns that the spec gives, for tests and demonstrations without a model."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from pydantic import Field

from rlpipe.component import Section
from rlpipe.errors import Finding, ProviderError
from rlpipe.policies.base import Actor, Policy, Request
from rlpipe.types import Message, ToolCall, Turn, Usage


class ScriptedCall(Section):
    """A tool call of a scripted turn."""

    name: str
    arguments: Mapping[str, Any] | str = {}
    """A mapping, or the raw text, which may be malformed."""

    def text(self) -> str:
        """The arguments as a model would write them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


class ScriptedTurn(Section):
    """One answer: words, tool calls, or both."""

    content: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    delay: float = Field(default=0.0, ge=0)
    """Seconds before the answer."""


Script = tuple[str | ScriptedTurn, ...]


class Scripted(Policy):
    """Answers with given turns, whatever it is asked."""

    kind: Literal["scripted"] = "scripted"
    turns: Script = ()
    """The answers of one rollout in order: text, or `{content, tool_calls, delay}`."""

    by_task: Mapping[str, Script] = {}
    """Answers to particular tasks instead of `turns`, by the task's id."""

    loop: bool = False
    """Start again after the last turn. Otherwise a rollout that asks for more fails."""

    fake_tokens: bool = False
    """Give token ids, each character's code point, and log-probabilities, each -1."""

    def check(self) -> list[Finding]:
        findings = super().check()
        if not self.turns and not self.by_task:
            findings.append(Finding("turns", "give at least one turn, such as ['The answer.']"))
        empty = (task_id for task_id, script in self.by_task.items() if not script)
        findings += (Finding(f"by_task.{task_id}", "give at least one turn") for task_id in empty)
        return findings

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Actor]:
        yield _Player(self)


class _Player(Actor):
    """Finds its place in the script from the conversation, so that any number may share it."""

    name = "scripted"

    def __init__(self, policy: Scripted) -> None:
        self._policy = policy

    async def act(self, request: Request) -> tuple[Message, Turn]:
        import asyncio

        said = request.messages[len(request.task.messages) :]
        index = sum(message["role"] == "assistant" for message in said)
        turn = self._turn(request.task.id, index)
        await asyncio.sleep(turn.delay)
        message = _message(turn, index)
        finish = "tool_calls" if turn.tool_calls else "stop"
        if not self._policy.fake_tokens:
            return message, Turn(finish_reason=finish)
        prompt, completion = _prompt(request), _codes(_written(message))
        return message, Turn(
            prompt_ids=prompt,
            completion_ids=completion,
            logprobs=(-1.0,) * len(completion),
            finish_reason=finish,
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(completion)),
        )

    def _turn(self, task_id: str, index: int) -> ScriptedTurn:
        script = self._policy.by_task.get(task_id, self._policy.turns)
        if script and self._policy.loop:
            index %= len(script)
        if index >= len(script):
            raise ProviderError(f"the script for task {task_id} ends after {len(script)} turns")
        turn = script[index]
        return ScriptedTurn(content=turn) if isinstance(turn, str) else turn


def _message(turn: ScriptedTurn, index: int) -> Message:
    message: Message = {"role": "assistant", "content": turn.content}
    if turn.tool_calls:
        message["tool_calls"] = [
            ToolCall(
                id=f"call_{index}_{position}", name=call.name, arguments=call.text()
            ).to_message()
            for position, call in enumerate(turn.tool_calls)
        ]
    return message


def _prompt(request: Request) -> tuple[int, ...]:
    """The conversation as code points; what the last turn already had is kept as it is."""
    last = request.turns[-1] if request.turns else None
    if last is None or last.prompt_ids is None or last.completion_ids is None:
        return _codes(_rendered(request.messages))
    added = request.messages[last.message_index + 1 :]
    return last.prompt_ids + last.completion_ids + _codes("\n" + _rendered(added))


def _rendered(messages: Sequence[Message]) -> str:
    """A plain chat template: one line a message, and the assistant's next one begun."""
    lines = (f"{message['role']}: {_written(message)}\n" for message in messages)
    return "".join(lines) + "assistant: "


def _written(message: Message) -> str:
    """What a message's author wrote: its content, and then its tool calls."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    called = [f"{function['name']}({function['arguments']})" for function in functions]
    return "".join([message.get("content") or "", *called])


def _codes(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))
