"""What a service can do wrong, and what each of it becomes."""

import random
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.errors import ContextOverflow, ProviderError
from rlpipe.policies._requests import FIRST_PAUSE, LONGEST_PAUSE, backoff, requested_pause

from .server import NOW, Reply, completion, failing


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
async def test_passing_failures_are_tried_again(act, server, waits, status):
    server.reply(failing(status), failing(status), completion("At last."))
    message, _ = await act()
    assert message["content"] == "At last."
    assert len(server.asked) == 3
    assert len(waits) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 422])
async def test_lasting_failures_are_not(act, server, waits, status):
    server.reply(failing(status), completion())
    with pytest.raises(ProviderError) as caught:
        await act()
    assert not caught.value.retryable
    assert len(server.asked) == 1
    assert not waits


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "3600"}, 3600.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:32 GMT"}, 12.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:00 GMT"}, 0.0),
    ],
)
async def test_the_wait_that_the_server_asks_for_is_kept_exactly(act, server, waits, headers, wait):
    server.reply(Reply({"error": {}}, 429, headers), completion())
    await act()
    assert waits == [wait]


@pytest.mark.parametrize("text", ["soon", "-3", "inf", "nan", ""])
async def test_a_wait_that_makes_no_sense_is_ignored(act, server, waits, text):
    server.reply(Reply({"error": {}}, 429, {"retry-after": text}), completion())
    await act()
    assert FIRST_PAUSE / 2 <= waits[0] <= FIRST_PAUSE


@given(st.text())
def test_no_header_breaks_the_client(text):
    pause = requested_pause({"retry-after": text, "retry-after-ms": text}, NOW)
    assert pause is None or pause >= 0


def test_the_backoff_doubles_with_chance_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: (low, high))
    assert [backoff(retry) for retry in (0, 1, 2)] == [(0.25, 0.5), (0.5, 1.0), (1.0, 2.0)]
    assert backoff(5000) == (LONGEST_PAUSE / 2, LONGEST_PAUSE)


async def test_a_storm_of_429_ends_with_the_last_wait(act, server, waits):
    server.reply(failing(429, "slow down", retry_after="2"))
    with pytest.raises(ProviderError, match="HTTP 429: slow down") as caught:
        await act(max_retries=4)
    assert waits == [2.0] * 4
    assert len(server.asked) == 5
    assert caught.value.retryable
    assert caught.value.retry_after == 2.0


async def test_an_account_without_credit_is_not_waited_for(act, server, waits):
    server.reply(failing(429, "You exceeded your current quota", "insufficient_quota"))
    with pytest.raises(ProviderError, match="quota") as caught:
        await act()
    assert not caught.value.retryable
    assert not waits


@pytest.mark.parametrize("how", ["reset", "cut"])
async def test_a_broken_connection_is_tried_again(act, server, waits, how):
    server.reply(Reply({}, act=how), completion())
    message, _ = await act()
    assert message["content"] == "Hello."
    assert len(waits) == 1


async def test_a_server_that_is_not_there(act, waits):
    with pytest.raises(ProviderError, match="cannot be reached") as caught:
        await act(base_url="http://127.0.0.1:1", max_retries=2)
    assert caught.value.retryable
    assert len(waits) == 2


@pytest.mark.parametrize("how", ["hang", "trickle"])
async def test_a_server_that_takes_too_long(act, server, how):
    server.reply(Reply(act=how))
    with pytest.raises(ProviderError, match="took too long") as caught:
        await act(timeout=0.1, max_retries=0)
    assert caught.value.retryable


UNREADABLE = {
    "no JSON": b"<html>Bad gateway</html>",
    "no UTF-8": b"\xff\xfe\xff",
    "cut JSON": b'{"choices": [{"mess',
    "deep JSON": b"[" * 100_000,
    "empty": b"",
    "null": None,
    "list": [],
    "no choices": {},
    "empty choices": {"choices": []},
    "null choices": {"choices": None},
    "choice without message": {"choices": [{"finish_reason": "stop"}]},
    "null message": {"choices": [{"message": None}]},
    "content of a wrong type": {"choices": [{"message": {"content": 7}}]},
    "calls of a wrong type": {"choices": [{"message": {"tool_calls": {"a": 1}}}]},
    "call without name": {"choices": [{"message": {"tool_calls": [{"function": {}}]}}]},
    "arguments of a wrong type": {
        "choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": 3}}]}}]
    },
    "usage of a wrong type": {"choices": [{"message": {}}], "usage": {"prompt_tokens": "3"}},
    "token id of a wrong type": {"choices": [{"message": {}, "token_ids": ["x"]}]},
    "error with status 200": {"error": {"message": "overloaded"}},
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_unreadable_answer_may_be_tried_again(act, server, waits, body, api):
    server.reply(Reply(body))
    with pytest.raises(ProviderError, match="unreadable answer") as caught:
        await act(max_retries=1, api=api)
    assert caught.value.retryable
    assert len(waits) == 1


async def test_infinite_logprobs_are_refused(act, server):
    body = b"""{"choices": [{"message": {"content": "x"},
                "logprobs": {"content": [{"token": "x", "logprob": NaN}]}}]}"""
    server.reply(Reply(body))
    with pytest.raises(ProviderError, match="finite number"):
        await act(max_retries=0)


async def test_what_the_server_said_is_shown(act, server):
    server.reply(Reply({"error": {"message": "overloaded"}}))
    with pytest.raises(ProviderError, match=r"\(choices: Field required\).*overloaded"):
        await act(max_retries=0)


OVERFLOWS = [
    ("Please shorten it.", "context_length_exceeded"),
    ("This model's maximum context length is 8192 tokens. However, you requested 9000", None),
    ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 400),
    ("Input length (265330) exceeds model's maximum context length (262144).", None),
    ("You passed 9 input tokens ... However, the model's context length is only 8 tokens", 400),
    ("The prompt (total length 25938) is too long to fit into the model", 400),
    ("the request exceeds the available context size. try increasing the context size", 400),
    ("request (9000 tokens) exceeds the available context size (4096 tokens)", 400),
    ("The input (200 tokens) is longer than the model's context length (100 tokens).", 400),
    ("Requested token count exceeds the model's maximum context length of 100 tokens.", 400),
    ("Your input exceeds the context window of this model.", None),
    ("prompt is too long: 213462 tokens > 200000 maximum", None),
]


@pytest.mark.parametrize(("words", "code"), OVERFLOWS)
async def test_a_conversation_that_is_too_long(act, server, waits, words, code):
    server.reply(failing(400, words, code))
    with pytest.raises(ContextOverflow, match="HTTP 400"):
        await act()
    assert not waits


@pytest.mark.parametrize(
    "body",
    [
        {"object": "error", "message": "maximum context length is 9 tokens", "code": 400},
        {"error": "maximum context length is 9 tokens"},
        {"detail": "maximum context length is 9 tokens"},
        {"error": {"type": "exceed_context_size_error", "message": "x"}},
        b"maximum context length is 9 tokens",
    ],
)
async def test_errors_in_the_forms_of_other_servers(act, server, body):
    server.reply(Reply(body, 400))
    with pytest.raises(ContextOverflow):
        await act()


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens is too large: this model supports at most 16384 tokens",
        "Invalid schema: context",
    ],
)
async def test_another_bad_request_is_no_overflow(act, server, words):
    server.reply(failing(400, words))
    with pytest.raises(ProviderError, match=words) as caught:
        await act()
    assert not isinstance(caught.value, ContextOverflow)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_named_by_its_variable(act, server, monkeypatch, status):
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    server.reply(failing(status, "Incorrect API key provided: sk-secret"))
    with pytest.raises(ProviderError) as caught:
        await act(api_key_env="SOME_KEY")
    where = f"{server.url} wants a valid key in the environment variable SOME_KEY"
    assert str(caught.value) == f"{where} (HTTP {status})"


async def test_a_model_that_is_not_served_is_named(act, server):
    server.reply(failing(404, "The model `gtp-5` does not exist"))
    with pytest.raises(ProviderError, match="does not serve the model 'gtp-5'"):
        await act(model="gtp-5")


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_a_key_that_the_server_repeats_is_not_shown(act, server, monkeypatch, status):
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    server.reply(failing(status, "you said sk-secret"))
    with pytest.raises(ProviderError, match=r"you said \*\*\*"):
        await act(api_key_env="SOME_KEY", max_retries=0)


async def test_long_errors_are_cut(act, server):
    server.reply(failing(500, "x" * 100_000))
    with pytest.raises(ProviderError) as caught:
        await act(max_retries=0)
    assert len(str(caught.value)) < 500


async def test_a_redirect_to_elsewhere_is_followed(act, server):
    elsewhere = Reply(b"", 307, {"location": f"{server.url}/chat/completions"})
    server.reply(elsewhere, completion())
    assert (await act())[0]["content"] == "Hello."


@pytest.mark.parametrize("zone", ["GMT", "-0000", ""])
def test_dates_are_in_gmt_wherever_the_client_is(monkeypatch, zone):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert requested_pause({"retry-after": f"Tue, 14 Nov 2023 22:13:32 {zone}"}, NOW) == 12
    finally:
        monkeypatch.undo()
        time.tzset()


def test_headers_are_found_in_any_case():
    assert requested_pause(httpx.Headers({"Retry-After-Ms": "1500"}), NOW) == 1.5
