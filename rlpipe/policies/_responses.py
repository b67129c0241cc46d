"""The Responses API: a request's conversation as input items, and its output as a turn.

Nothing is stored at the service. A reasoning model therefore gets its own encrypted reasoning
back on every later turn: the output items of a turn stay on its message, under `ITEMS`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlpipe.chat import REASONING
from rlpipe.errors import ContextOverflow, ProviderError
from rlpipe.policies._chat import CacheDetails, Wire, new_call_id, readable
from rlpipe.policies._requests import OVERFLOW
from rlpipe.policies.base import Request
from rlpipe.types import Message, ToolCall, Turn, Usage

PATH = "/responses"
ITEMS = "provider_items"
SMALLEST_LIMIT = 16
"""The API refuses a smaller `max_output_tokens`."""

STRICT = frozenset(
    {"type", "title", "description", "properties", "required", "additionalProperties"}
    | {"items", "enum", "const", "anyOf", "$defs", "$ref"}
)
"""Keywords of a JSON schema that the strict form of tools is sure to take."""

PASSING = (None, "server_error", "rate_limit_exceeded")
"""Codes of failed responses that another try may mend."""


class _Part(Wire):
    text: str = ""
    refusal: str = ""


class _Said(Wire):
    content: list[_Part]


class _Thought(Wire):
    summary: Sequence[_Part] = ()
    content: Sequence[_Part] | None = None


class _Called(Wire):
    call_id: str
    name: str
    arguments: str


class _Incomplete(Wire):
    reason: str = "incomplete"


class _Failed(Wire):
    code: str | None = None
    message: str = ""


class _Usage(Wire):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: CacheDetails | None = None


class _Response(Wire):
    status: str = "completed"
    output: Sequence[dict[str, Any]] = ()
    incomplete_details: _Incomplete | None = None
    error: _Failed | None = None
    usage: _Usage | None = None


def conversation(request: Request) -> dict[str, Any]:
    """The part of the body that holds the messages and the tools."""
    body: dict[str, Any] = {
        "input": [item for message in request.messages for item in _items(message)],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    tools = [_flat(tool["function"]) for tool in request.tools]
    return body | {"tools": tools} if tools else body


def _flat(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", **function, "strict": _strict(function["parameters"])}


def _strict(schema: Any) -> bool:
    """Whether a schema has the strict form, in which the service holds the model to it.

    It takes closed objects of which every property is required, in few keywords; it refuses a
    request over a schema that claims to be so and is not.
    """
    if not isinstance(schema, Mapping) or not schema.keys() <= STRICT:
        return False
    properties = schema.get("properties", {})
    if schema.get("type") == "object" or "properties" in schema:
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != properties.keys():
            return False
    inner = [*properties.values(), *schema.get("anyOf", ()), *schema.get("$defs", {}).values()]
    return all(map(_strict, inner + ([schema["items"]] if "items" in schema else [])))


def _items(message: Message) -> Iterable[dict[str, Any]]:
    """The input items that stand for one chat message."""
    if message["role"] == "tool":
        call_id, output = message["tool_call_id"], _text(message)
        yield {"type": "function_call_output", "call_id": call_id, "output": output}
    elif ITEMS in message:
        for item in message[ITEMS]:
            yield readable(item) if item["type"] == "function_call" else item
    else:
        if _text(message):
            yield {"role": message["role"], "content": _text(message)}
        for call in message.get("tool_calls") or ():
            yield {"type": "function_call", "call_id": call["id"], **readable(call["function"])}


def _text(message: Message) -> str:
    """The text of a message, whose content may be a list of parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def read(data: Any) -> tuple[Message, Turn]:
    """The message and the turn of a response.

    Raises:
        ValueError: it is none, or an empty one.
        ProviderError: the service reports that it failed.
        ContextOverflow: it failed because the conversation is too long.
    """
    response = _Response.model_validate(data)
    if response.status not in ("completed", "incomplete"):
        raise _failure(response)
    if response.status == "completed" and not response.output:
        raise ValueError("a response without output")
    message = _message([_identified(item) for item in response.output])
    turn = Turn(finish_reason=_finish(response, message), usage=_usage(response.usage))
    return message, turn


def _failure(response: _Response) -> ProviderError:
    error = response.error or _Failed()
    words = f"the response is {response.status}: {error.code}: {error.message}"
    if OVERFLOW.search(words):
        return ContextOverflow(words)
    return ProviderError(words, retryable=error.code in PASSING)


def _identified(item: dict[str, Any]) -> dict[str, Any]:
    if item.get("type") == "function_call" and not item.get("call_id"):
        return {**item, "call_id": new_call_id()}
    return item


def _message(items: list[dict[str, Any]]) -> Message:
    said = [_Said.model_validate(item) for item in items if item.get("type") == "message"]
    called = [_Called.model_validate(item) for item in items if item.get("type") == "function_call"]
    thoughts = [_Thought.model_validate(item) for item in items if item.get("type") == "reasoning"]
    spoken = "".join(part.text or part.refusal for item in said for part in item.content)
    message: Message = {"role": "assistant", "content": spoken}
    parts = [part.text for item in thoughts for part in (*item.summary, *(item.content or ()))]
    if reasoning := "\n".join(filter(None, parts)):
        message[REASONING] = reasoning
    if called:
        calls = (ToolCall(id=c.call_id, name=c.name, arguments=c.arguments) for c in called)
        message["tool_calls"] = [call.to_message() for call in calls]
    return message | {ITEMS: items}


def _finish(response: _Response, message: Message) -> str:
    if response.status == "incomplete":
        reason = (response.incomplete_details or _Incomplete()).reason
        return "length" if reason == "max_output_tokens" else reason
    return "tool_calls" if "tool_calls" in message else "stop"


def _usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage()
    details = usage.input_tokens_details
    return Usage(
        prompt_tokens=usage.input_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        completion_tokens=usage.output_tokens,
    )
