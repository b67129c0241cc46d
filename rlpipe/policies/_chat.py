"""The Chat Completions API: a request's conversation in its words, and its answer as a turn."""

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from rlpipe.chat import REASONING
from rlpipe.policies.base import Request
from rlpipe.types import Message, ToolCall, Turn, Usage

PATH = "/chat/completions"

SENT = ("role", "content", "name", "tool_calls", "tool_call_id", REASONING)
"""Keys of a message that a chat server may see; what other services left there stays here."""

TOKEN_ID = re.compile(r"token_id:(\d+)")


class Wire(BaseModel):
    """A part of what a server sends: wrong types are refused, unknown keys are not."""

    model_config = ConfigDict(extra="ignore", strict=True)


class _Function(Wire):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(Wire):
    id: str | None = None
    function: _Function


class _Answer(Wire):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Token(Wire):
    token: str
    logprob: FiniteFloat


class _Logprobs(Wire):
    content: list[_Token] | None = None


class _Choice(Wire):
    message: _Answer
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None


class CacheDetails(Wire):
    cached_tokens: int | None = None


class _Usage(Wire):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CacheDetails | None = None


class _Completion(Wire):
    choices: list[_Choice] = Field(min_length=1)
    prompt_token_ids: list[int] | None = None
    usage: _Usage | None = None


def conversation(request: Request) -> dict[str, Any]:
    """The part of the body that holds the messages and the tools."""
    body: dict[str, Any] = {"messages": [_outgoing(message) for message in request.messages]}
    return body | {"tools": list(request.tools)} if request.tools else body


def _outgoing(message: Message) -> Message:
    sent = {key: message[key] for key in SENT if key in message}
    if sent.get("tool_calls"):
        sent["tool_calls"] = [
            call | {"function": readable(call["function"])} for call in sent["tool_calls"]
        ]
    return sent


def readable(function: Mapping[str, Any]) -> dict[str, Any]:
    """`function`, its arguments put into a JSON object where they are none.

    vLLM and llama.cpp parse the arguments of earlier calls, so that one malformed call would
    make every later request of its rollout fail.
    """
    try:
        fine = isinstance(json.loads(function["arguments"]), dict)
    except (ValueError, RecursionError):
        fine = False
    text = function["arguments"] if fine else json.dumps({"malformed": function["arguments"]})
    return {**function, "arguments": text}


def read(data: Any) -> tuple[Message, Turn]:
    """The message and the turn of a chat completion.

    Raises:
        ValueError: it is none.
    """
    completion = _Completion.model_validate(data)
    choice = completion.choices[0]
    message = _message(choice.message)
    ids, logprobs = _tokens(choice)
    prompt = completion.prompt_token_ids
    usual = "tool_calls" if "tool_calls" in message else "stop"
    turn = Turn(
        prompt_ids=None if prompt is None else tuple(prompt),
        completion_ids=ids,
        logprobs=logprobs,
        finish_reason=choice.finish_reason or usual,
        usage=_usage(completion.usage),
    )
    return message, turn


def _message(answer: _Answer) -> Message:
    inline, spoken = _thought_aside(answer.content or "")
    message: Message = {"role": "assistant", "content": spoken or answer.refusal or ""}
    if thought := answer.reasoning_content or answer.reasoning or inline:
        message[REASONING] = thought
    if answer.tool_calls:
        message["tool_calls"] = [_call(call).to_message() for call in answer.tool_calls]
    return message


def _thought_aside(content: str) -> tuple[str, str]:
    """The reasoning that a server left in the content, and what was said after it.

    Some templates open the block in the prompt, so that only its end is in the answer.
    """
    thought, closed, spoken = content.partition("</think>")
    opened = thought.lstrip().startswith("<think>")
    if not closed or (not opened and "<think>" in thought):
        return "", content
    return thought.strip().removeprefix("<think>").strip(), spoken.lstrip()


def _call(call: _Call) -> ToolCall:
    arguments = call.function.arguments
    if not isinstance(arguments, str):  # Some servers parse them, or leave out empty ones.
        arguments = json.dumps(arguments or {})
    return ToolCall(id=call.id or new_call_id(), name=call.function.name, arguments=arguments)


def new_call_id() -> str:
    """An id for a tool call that the server gave none."""
    return f"call_{uuid.uuid4().hex}"


def _tokens(choice: _Choice) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """The sampled ids and their log-probabilities, each where the server gives it."""
    tokens = choice.logprobs.content if choice.logprobs else None
    logprobs = None if tokens is None else tuple(token.logprob for token in tokens)
    ids = choice.token_ids if choice.token_ids is not None else _named_ids(tokens)
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        raise ValueError(f"{len(logprobs)} log-probabilities for {len(ids)} tokens")
    return None if ids is None else tuple(ids), logprobs


def _named_ids(tokens: list[_Token] | None) -> list[int] | None:
    """Ids from tokens like `token_id:123`, which vLLM gives for `return_tokens_as_token_ids`."""
    matches = [TOKEN_ID.fullmatch(token.token) for token in tokens or ()]
    ids = [int(match[1]) for match in matches if match]
    return ids if ids and len(ids) == len(matches) else None


def _usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage()
    details = usage.prompt_tokens_details
    return Usage(
        prompt_tokens=usage.prompt_tokens or 0,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        completion_tokens=usage.completion_tokens or 0,
    )
