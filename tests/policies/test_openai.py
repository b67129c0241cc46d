"""Chat Completions on a real socket: what is sent, and what an answer becomes."""

import asyncio
import json
from dataclasses import replace

import pytest

from rlpipe.component import lookup
from rlpipe.errors import ProviderError
from rlpipe.policies.openai import Openai
from rlpipe.types import Usage

from .server import EXECUTE, Reply, calling, completion


def test_the_kind_is_found():
    assert lookup("policies", "openai") is Openai


async def test_what_is_sent(act, server):
    server.reply(completion())
    await act(tools=[EXECUTE])
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [EXECUTE],
        "max_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
    }


async def test_what_options_change(act, server):
    server.reply(completion())
    await act(
        send_seed=False,
        send_temperature=False,
        max_tokens_field="max_completion_tokens",
        logprobs=True,
        reasoning_effort="low",
        extra_body={"return_token_ids": True, "model": "other"},
    )
    assert server.asked[0].body == {
        "model": "other",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_completion_tokens": 100,
        "logprobs": True,
        "reasoning_effort": "low",
        "return_token_ids": True,
    }


async def test_the_key_comes_from_the_named_variable(act, server, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "sk-Other\n")
    server.reply(completion())
    await act(api_key_env="OTHER_KEY")
    assert server.asked[0].headers["authorization"] == "Bearer sk-Other"


async def test_a_local_server_needs_no_key(act, server):
    server.reply(completion())
    await act()
    assert server.asked[0].headers["authorization"] == "Bearer none"


async def test_the_url_is_the_specs_alone(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    async with Openai(model="m").open() as actor:
        assert str(actor._client.base_url) == "https://api.openai.com/v1/"


async def test_without_its_key_it_does_not_open():
    with pytest.raises(ProviderError, match="OPENAI_API_KEY is not set"):
        async with Openai(model="m").open():
            pass


async def test_a_plain_answer(act, server):
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    server.reply(completion("Hello.", usage=usage))
    message, turn = await act()
    assert message == {"role": "assistant", "content": "Hello."}
    assert turn.usage == Usage(prompt_tokens=10, cached_tokens=8, completion_tokens=3)
    assert turn.finish_reason == "stop"
    assert turn.prompt_ids is turn.completion_ids is turn.logprobs is None
    assert turn.duration > 0


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 4, "prompt_tokens_details": None}])
async def test_usage_may_be_missing(act, server, usage):
    server.reply(completion(usage=usage))
    _, turn = await act()
    assert turn.usage == Usage(prompt_tokens=(usage or {}).get("prompt_tokens", 0))


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
async def test_the_finish_reason_passes_through(act, server, reason):
    server.reply(completion(finish_reason=reason))
    assert (await act())[1].finish_reason == reason


async def test_a_missing_finish_reason_follows_from_the_answer(act, server):
    server.reply(completion(finish_reason=None))
    assert (await act())[1].finish_reason == "stop"
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    server.reply(completion(finish_reason=None, message={"tool_calls": [call]}))
    server.replies.popleft()
    assert (await act())[1].finish_reason == "tool_calls"


async def test_a_refusal_is_an_answer(act, server):
    server.reply(completion(None, message={"refusal": "I will not."}))
    assert (await act())[0]["content"] == "I will not."


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_kept_and_sent_back(act, server, name):
    server.reply(completion(message={name: "Let me think."}))
    message, _ = await act()
    assert message["reasoning_content"] == "Let me think."
    await act(message)
    assert server.asked[1].body["messages"][1] == message


@pytest.mark.parametrize(
    ("content", "thought", "said"),
    [
        ("<think>\nLet me see.\n</think>\n\nIt is 4.", "Let me see.", "It is 4."),
        ("Let me see.\n</think>\n\nIt is 4.", "Let me see.", "It is 4."),
        ("<think>\n\n</think>\n\nIt is 4.", None, "It is 4."),
        ("The tags <think> and </think> mark it.", None, "The tags <think> and </think> mark it."),
        ("<think> was never closed", None, "<think> was never closed"),
    ],
)
async def test_reasoning_in_the_content_is_told_apart(act, server, content, thought, said):
    server.reply(completion(content))
    message, _ = await act()
    assert (message.get("reasoning_content"), message["content"]) == (thought, said)


async def test_tool_calls_make_the_round_trip(act, server):
    server.reply(calling(("a", "execute_code", '{"code": "1"}'), ("b", "nope", "{}")))
    message, turn = await act(tools=[EXECUTE])
    assert turn.finish_reason == "tool_calls"
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": call["function"]["name"]}
        for call in message["tool_calls"]
    ]
    server.reply(completion())
    await act(message, *results, tools=[EXECUTE])
    _, assistant, *tool = server.asked[1].body["messages"]
    assert [call["id"] for call in assistant["tool_calls"]] == ["a", "b"]
    assert assistant["tool_calls"][0]["type"] == "function"
    assert [(m["tool_call_id"], m["content"]) for m in tool] == [
        ("a", "execute_code"),
        ("b", "nope"),
    ]


async def test_malformed_arguments_are_kept_but_not_sent_back(act, server):
    """vLLM answers 400 to a history that holds arguments which are no JSON object."""
    raw = '{"code": "print(1)'
    server.reply(calling(("a", "execute_code", raw), ("b", "execute_code", "[1]")))
    message, _ = await act()
    assert message["tool_calls"][0]["function"]["arguments"] == raw
    await act(message)
    sent = server.asked[1].body["messages"][1]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in sent] == [
        {"malformed": raw},
        {"malformed": "[1]"},
    ]
    assert message["tool_calls"][0]["function"]["arguments"] == raw


@pytest.mark.parametrize(
    ("given", "arguments"), [({"a": 1}, '{"a": 1}'), (None, "{}"), ("", ""), ("{}", "{}")]
)
async def test_arguments_are_text(act, server, given, arguments):
    server.reply(calling(("a", "f", given)))
    message, _ = await act()
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


async def test_calls_without_an_id_get_one_each(act, server):
    server.reply(calling((None, "f", "{}"), ("", "f", "{}"), ("own", "f", "{}")))
    message, _ = await act()
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 3
    assert all(ids)
    assert ids[2] == "own"


async def test_keys_of_other_services_are_not_sent(act, server):
    server.reply(completion())
    await act({"role": "assistant", "content": "x", "provider_items": [{"type": "reasoning"}]})
    assert server.asked[0].body["messages"][1] == {"role": "assistant", "content": "x"}


def tokens(*pairs: tuple[str, float]) -> dict[str, object]:
    return {"content": [{"token": token, "logprob": logprob} for token, logprob in pairs]}


async def test_token_ids_of_their_own_field(act, server):
    choice = {"token_ids": [5, 6], "logprobs": tokens(("He", -0.5), ("llo", -1))}
    server.reply(completion(choice=choice, prompt_token_ids=[1, 2, 3]))
    _, turn = await act(logprobs=True)
    assert turn.prompt_ids == (1, 2, 3)
    assert turn.completion_ids == (5, 6)
    assert turn.logprobs == (-0.5, -1.0)


async def test_token_ids_in_the_tokens_names(act, server):
    choice = {"logprobs": tokens(("token_id:11", -0.1), ("token_id:12", -0.2))}
    server.reply(completion(choice=choice))
    _, turn = await act(logprobs=True)
    assert turn.completion_ids == (11, 12)
    assert turn.logprobs == (-0.1, -0.2)


async def test_tokens_that_are_no_ids(act, server):
    server.reply(completion(choice={"logprobs": tokens(("token_id:11", -0.1), ("Hi", -0.2))}))
    _, turn = await act(logprobs=True)
    assert turn.completion_ids is None
    assert turn.logprobs == (-0.1, -0.2)


async def test_ids_and_logprobs_of_different_length_are_refused(act, server):
    server.reply(completion(choice={"token_ids": [5, 6], "logprobs": tokens(("He", -0.5))}))
    with pytest.raises(ProviderError, match="1 log-probabilities for 2 tokens"):
        await act(logprobs=True, max_retries=0)


async def test_one_client_serves_many_rollouts_within_its_limit(server, ask):
    server.reply(completion())
    policy = Openai(model="m", base_url=server.url, max_connections=3)
    async with policy.open() as actor:
        answers = await asyncio.gather(*(actor.act(ask()) for _ in range(20)))
    assert len(answers) == 20
    assert server.most_busy <= 3
    assert server.connections <= 3


async def test_waiting_for_a_connection_is_no_time_of_the_request(server, ask):
    server.reply(replace(completion(), delay=0.1))
    policy = Openai(model="m", base_url=server.url, max_connections=1, timeout=1, max_retries=0)
    async with policy.open() as actor:
        answers = await asyncio.gather(*(actor.act(ask()) for _ in range(12)))
    assert max(turn.duration for _, turn in answers) < 1


async def test_cancelling_closes_the_request(server, ask):
    server.reply(Reply(act="hang"))
    async with Openai(model="m", base_url=server.url).open() as actor:
        rollout = asyncio.create_task(actor.act(ask()))
        await server.arrived.wait()
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        await asyncio.wait_for(server.left.wait(), 5)


async def test_a_cancelled_request_frees_its_slot(server, ask):
    server.reply(Reply(act="hang"), completion())
    policy = Openai(model="m", base_url=server.url, max_connections=1)
    async with policy.open() as actor:
        rollout = asyncio.create_task(actor.act(ask()))
        await server.arrived.wait()
        rollout.cancel()
        message, _ = await asyncio.wait_for(actor.act(ask()), 5)
    assert message["content"] == "Hello."
