"""How a conversation becomes token ids and sampled text becomes a message.

A rollout's history is kept as token ids and extended, never re-encoded: what the policy sampled
is what it is trained on. `tokenizer` is any Hugging Face tokenizer with a chat template.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from rlpipe.types import Message, Trajectory, Turn

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')

_MARK = "=assistant="
"""A message that no template rewrites."""

REASONING = "reasoning_content"
"""Key of what a model thought before it spoke, where its server tells it apart."""

IGNORED = -100
"""Label of a token that carries no loss."""


def prompt_ids(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]],
    turns: Sequence[Turn],
) -> list[int]:
    """Token ids of the conversation, ready for the next assistant message.

    Raises:
        ValueError: the chat template cannot render it, or rewrites what came before.
    """
    last = turns[-1] if turns else Turn()
    if last.prompt_ids is not None and last.completion_ids:
        given = list(messages[last.message_index + 1 :])
        end = tokenizer.decode([last.completion_ids[-1]], skip_special_tokens=False)
        added = _added_text(tokenizer, given, tools, end)
        return [*last.prompt_ids, *last.completion_ids, *_encode(tokenizer, added)]
    return _encode(tokenizer, _render(tokenizer, messages, tools, generate=True))


def end_ids(tokenizer: Any) -> list[int]:
    """Tokens that end an assistant's message: the tokenizer's own, and what the template writes.

    Raises:
        ValueError: the chat template fails.
    """
    stand_in: list[Message] = [
        {"role": "user", "content": "."},
        {"role": "assistant", "content": _MARK},
    ]
    whole = _render(tokenizer, stand_in, (), generate=False)
    written = _encode(tokenizer, whole.rpartition(_MARK)[2])[:1]
    # A template may end a message in plain words; those are no token to stop at.
    special = [token for token in written if token in tokenizer.added_tokens_decoder]
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return sorted({*special, *own})


def _added_text(
    tokenizer: Any, given: list[Message], tools: Sequence[dict[str, Any]], end: str
) -> str:
    """What the template writes after an assistant's message, up to where the next answer begins.

    It is asked about a stand-in for that message, and read from where the stand-in ends: what
    follows does not depend on what the message said, however the template treats earlier turns.
    """
    stand_in: list[Message] = [
        {"role": "user", "content": "."},
        {"role": "assistant", "content": _MARK},
    ]
    whole = _render(tokenizer, [*stand_in, *given], tools, generate=True)
    _, found, after = whole.partition(_MARK)
    _, ended, added = after.partition(end)
    if not (found and ended):
        raise ValueError(f"the chat template does not end an assistant's message with {end!r}")
    return added


def parse_message(text: str) -> Message:
    """Read an assistant's text; `<tool_call>` blocks become tool calls, malformed ones included.

    A call that is no JSON keeps its raw text as arguments, so that the agent loop can tell the
    model what is wrong with it.
    """
    blocks = _CALL.findall(text)
    if not blocks:
        return {"role": "assistant", "content": text}
    calls = [_parse_call(block.strip(), number) for number, block in enumerate(blocks)]
    content = text[: text.index("<tool_call>")].strip()
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _parse_call(block: str, number: int) -> dict[str, Any]:
    try:
        call = json.loads(block)
        name, arguments = call["name"], call["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = _NAME.search(block)
        name, arguments = found.group(1) if found else "", block
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    function = {"name": str(name), "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def supervised_rows(
    tokenizer: Any, trajectory: Trajectory, *, reasoning: bool = False
) -> list[tuple[list[int], list[int]]]:
    """`(input_ids, labels)` of a trajectory: what the model said carries loss, all else does not,
    nor do the assistant messages that the task itself brought.

    One row holds the whole conversation where the template only ever appends; otherwise every
    assistant message gets a row of its own. What the model thought is left out of the messages,
    unless `reasoning` asks that it be learned as well.

    Raises:
        ValueError: the template does not continue a prompt into its answer, or has no place for
            the reasoning that is to be learned.
    """
    rows: list[tuple[list[int], list[int]]] = []
    written = ""
    messages = trajectory.messages if reasoning else tuple(map(_spoken, trajectory.messages))
    first = trajectory.turns[0].message_index if trajectory.turns else 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or index < first:
            continue
        prompt, answer = _answered(tokenizer, messages[: index + 1], trajectory.tools)
        if not (rows and prompt.startswith(written)):
            rows.append(([], []))
            written = ""
        given_ids = _encode(tokenizer, prompt[len(written) :])
        answer_ids = _encode(tokenizer, answer)
        input_ids, labels = rows[-1]
        input_ids += given_ids + answer_ids
        labels += [IGNORED] * len(given_ids) + answer_ids
        written = prompt + answer
    return rows


def _answered(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
) -> tuple[str, str]:
    """The text before the last message, and the text of it up to its end token."""
    prompt = _render(tokenizer, messages[:-1], tools, generate=True)
    whole = _render(tokenizer, messages, tools, generate=False)
    if not whole.startswith(prompt):
        raise ValueError("the chat template does not continue its own prompt")
    answer = whole[len(prompt) :]
    end = answer.rfind(tokenizer.eos_token)
    if str(messages[-1].get(REASONING, "")).strip() not in answer:
        raise ValueError("the chat template has no place for reasoning")
    return prompt, answer[: end + len(tokenizer.eos_token)] if end >= 0 else answer


def _spoken(message: Message) -> Message:
    """A message without what its author thought before."""
    return {key: value for key, value in message.items() if key != REASONING}


def _render(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, generate: bool
) -> str:
    try:
        text = tokenizer.apply_chat_template(
            [_with_parsed_arguments(message) for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=generate,
            tokenize=False,
        )
    except Exception as error:  # a template is a program of the model's author
        raise ValueError(f"the chat template failed: {type(error).__name__}: {error}") from error
    return str(text)


def _with_parsed_arguments(message: Message) -> Message:
    """Templates print arguments as JSON themselves, so that a string would be quoted twice."""
    if not message.get("tool_calls"):
        return message
    return message | {"tool_calls": [_parsed(call) for call in message["tool_calls"]]}


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return call | {"function": function | {"arguments": arguments}}


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))
