"""The Responses API on a real socket."""

import json

import pytest

from rlpipe.component import kinds, lookup
from rlpipe.errors import ContextOverflow, ProviderError
from rlpipe.policies.base import Sampling
from rlpipe.policies.openai import Openai
from rlpipe.types import Usage

from .server import EXECUTE, calling, failing, response

THOUGHT = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Think."}],
    "encrypted_content": "gAAAA",
}
SAID = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [
        {"type": "output_text", "text": "Let me ", "annotations": []},
        {"type": "output_text", "text": "see.", "annotations": []},
    ],
}


def called(call_id: str | None, arguments: str = '{"code": "1"}') -> dict[str, object]:
    item = {"id": "fc_1", "type": "function_call", "name": "execute_code", "arguments": arguments}
    return item if call_id is None else {**item, "call_id": call_id}


async def test_what_is_sent(act, server):
    server.reply(response(SAID))
    await act(api="responses", tools=[EXECUTE], reasoning_effort="low", send_temperature=False)
    (asked,) = server.asked
    assert asked.path == "/v1/responses"
    assert asked.body == {
        "model": "m",
        "input": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", **EXECUTE["function"], "strict": True}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 100,
        "reasoning": {"effort": "low"},
    }


CLOSED = EXECUTE["function"]["parameters"]
OPTIONAL = {"code": {"type": "string"}, "seconds": {"type": "number"}}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({**CLOSED, "properties": OPTIONAL}, False),
        ({**CLOSED, "properties": OPTIONAL, "required": ["code", "seconds"]}, True),
        ({**CLOSED, "additionalProperties": True}, False),
        ({k: v for k, v in CLOSED.items() if k != "additionalProperties"}, False),
        ({**CLOSED, "properties": {"code": {"type": "string", "default": "1"}}}, False),
        ({**CLOSED, "properties": {"code": {"type": "object"}}}, False),
        ({**CLOSED, "properties": {"code": {"anyOf": [CLOSED, {"type": "null"}]}}}, True),
        ({**CLOSED, "properties": {"code": {"type": "array", "items": {"type": "object"}}}}, False),
        ({**CLOSED, "$defs": {"Part": {"type": "object"}}}, False),
    ],
)
def test_a_tool_has_the_strict_form_where_its_schema_allows_it(ask, schema, strict):
    tool = {"type": "function", "function": {**EXECUTE["function"], "parameters": schema}}
    body = Openai(model="m", api="responses").body(ask(tools=[tool]))
    assert body["tools"] == [{"type": "function", **tool["function"], "strict": strict}]


def test_every_tool_of_our_own_has_the_strict_form(ask):
    tools = [lookup("tools", kind)().function(kind) for kind in kinds("tools")]
    body = Openai(model="m", api="responses").body(ask(tools=tools))
    assert len(body["tools"]) >= 5
    assert {tool["strict"] for tool in body["tools"]} == {True}


async def test_temperature_is_sent_unless_told_otherwise(act, server):
    server.reply(response(SAID))
    await act(api="responses", extra_body={"include": []})
    body = server.asked[0].body
    assert (body["temperature"], body["top_p"], body["include"]) == (0.5, 0.9, [])
    assert "seed" not in body
    assert "tools" not in body


async def test_an_answer_becomes_a_chat_message(act, server):
    usage = {
        "input_tokens": 20,
        "output_tokens": 9,
        "input_tokens_details": {"cached_tokens": 16},
    }
    server.reply(response(THOUGHT, SAID, called("c1"), called("c2"), usage=usage))
    message, turn = await act(api="responses")
    assert message["role"] == "assistant"
    assert message["content"] == "Let me see."
    assert message["reasoning_content"] == "Think."
    function = {"name": "execute_code", "arguments": '{"code": "1"}'}
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": function},
        {"id": "c2", "type": "function", "function": function},
    ]
    assert turn.finish_reason == "tool_calls"
    assert turn.usage == Usage(prompt_tokens=20, cached_tokens=16, completion_tokens=9)
    assert turn.duration > 0


async def test_reasoning_goes_back_with_the_results(act, server):
    server.reply(response(THOUGHT, SAID, called("c1")), response(SAID))
    message, _ = await act(api="responses")
    message = json.loads(json.dumps(message))  # as a stored trajectory would have it
    await act(message, {"role": "tool", "tool_call_id": "c1", "content": "2"}, api="responses")
    assert server.asked[1].body["input"] == [
        {"role": "user", "content": "Hi"},
        THOUGHT,
        SAID,
        called("c1"),
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
    ]


async def test_messages_of_a_chat_server_are_converted(act, server):
    server.reply(calling(("c1", "execute_code", '{"code": "1"}')), response(SAID))
    message, _ = await act()
    said = {**message, "content": "I say."}
    await act(said, message, {"role": "tool", "tool_call_id": "c1", "content": ""}, api="responses")
    item = {"type": "function_call", "call_id": "c1", **message["tool_calls"][0]["function"]}
    assert server.asked[1].body["input"][1:] == [
        {"role": "assistant", "content": "I say."},
        item,
        item,
        {"type": "function_call_output", "call_id": "c1", "output": ""},
    ]


async def test_content_in_parts_is_joined(act, server):
    server.reply(response(SAID))
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await act({"role": "user", "content": parts}, api="responses")
    assert server.asked[0].body["input"][1] == {"role": "user", "content": "ab"}


async def test_malformed_arguments_are_kept_but_not_sent_back(act, server):
    server.reply(response(called("c1", '{"code": "')))
    message, _ = await act(api="responses")
    assert message["tool_calls"][0]["function"]["arguments"] == '{"code": "'
    await act(message, api="responses")
    sent = server.asked[1].body["input"][1]
    assert json.loads(sent["arguments"]) == {"malformed": '{"code": "'}


async def test_a_call_without_an_id_gets_the_same_one_everywhere(act, server):
    server.reply(response(called(None), called("")))
    message, _ = await act(api="responses")
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert [item["call_id"] for item in message["provider_items"]] == ids


@pytest.mark.parametrize(
    ("why", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
async def test_an_incomplete_answer(act, server, why, finish):
    server.reply(response(THOUGHT, status="incomplete", incomplete_details={"reason": why}))
    message, turn = await act(api="responses")
    assert turn.finish_reason == finish
    assert message["content"] == ""


async def test_a_refusal_is_an_answer(act, server):
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "I will not."}]}
    server.reply(response(refusal))
    message, turn = await act(api="responses")
    assert message["content"] == "I will not."
    assert turn.finish_reason == "stop"


def test_the_api_takes_no_smaller_limit_than_16(ask):
    policy = Openai(model="m", api="responses")
    assert policy.body(ask(sampling=Sampling(max_tokens=3)))["max_output_tokens"] == 16


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("server_error", True), ("rate_limit_exceeded", True), ("invalid_prompt", False)],
)
async def test_a_failed_response(act, server, code, retryable):
    server.reply(response(status="failed", error={"code": code, "message": "Sorry."}))
    with pytest.raises(ProviderError, match=f"failed: {code}: Sorry.") as caught:
        await act(api="responses", max_retries=0)
    assert caught.value.retryable is retryable


async def test_too_long_a_conversation_as_a_failed_response(act, server):
    error = {"code": "context_length_exceeded", "message": "Too long."}
    server.reply(response(status="failed", error=error))
    with pytest.raises(ContextOverflow):
        await act(api="responses")


async def test_too_long_a_conversation_as_a_status(act, server):
    server.reply(failing(400, "Your input exceeds the context window of this model."))
    with pytest.raises(ContextOverflow):
        await act(api="responses")


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "content": "text"},
        {"type": "function_call", "call_id": "c", "name": None, "arguments": "{}"},
        {"type": "reasoning", "summary": 3},
        "text",
    ],
)
async def test_items_of_a_wrong_type(act, server, item):
    server.reply(response(item))
    with pytest.raises(ProviderError, match="unreadable answer") as caught:
        await act(api="responses", max_retries=0)
    assert caught.value.retryable


async def test_items_of_an_unknown_type_are_passed_on(act, server):
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    server.reply(response(search, SAID))
    message, _ = await act(api="responses")
    assert message["content"] == "Let me see."
    assert message["provider_items"] == [search, SAID]


def test_a_schema_for_the_answer_is_asked_for(ask):
    schema = {"type": "object"}
    chat = Openai(model="m").body(ask(json_schema=schema))
    form = chat["response_format"]["json_schema"]
    assert (form["schema"], form["strict"]) == (schema, True)
    answered = Openai(model="m", api="responses").body(ask(json_schema=schema))
    assert answered["text"]["format"]["schema"] == schema
    assert "text" not in Openai(model="m", api="responses").body(ask())
