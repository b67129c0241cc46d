"""The sampling actor on a recorded service: what goes out, and what it makes of the answer."""

import asyncio
import json
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

pytest.importorskip("tinker", reason="needs the tinker extra")
pytest.importorskip("trl", reason="takes the tiny policy's tokenizer")

import httpx
import tinker

from rlpipe import chat
from rlpipe.backends._tinker_actor import SamplingActor
from rlpipe.backends._tinker_failures import failing
from rlpipe.errors import ContextOverflow, ProviderError, RunError, TrajectoryTooLong
from rlpipe.policies.base import Request, Sampling
from rlpipe.policies.tiny import Tiny
from rlpipe.types import Task, lay_out

_, TOKENIZER = Tiny(hidden_size=16, layers=1, heads=1).load(0)
END = TOKENIZER.eos_token_id
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "blue"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}


def ids_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


class Sampler:
    """Answers with these texts in turn; an error is raised in the answer's place."""

    def __init__(self, *answers, ended=True):
        self.answers = list(answers)
        self.ended = ended
        self.asked = []

    def sample(self, prompt, num_samples, sampling_params):
        assert num_samples == 1
        self.asked.append((prompt.to_ints(), sampling_params))
        answer, future = self.answers.pop(0), Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            ids = ids_of(answer) if isinstance(answer, str) else answer
            ids = ids + ([END] if self.ended else [])
            logprobs = [-0.5] * len(ids)
            stop = "stop" if self.ended else "length"
            sequence = SimpleNamespace(tokens=ids, logprobs=logprobs, stop_reason=stop)
            future.set_result(SimpleNamespace(sequences=[sequence]))
        return future


def request(*messages, turns=(), seed=5, **sampling):
    task = Task(id="t", messages=({"role": "user", "content": "Where?"},))
    return Request(task, [*task.messages, *messages], [TOOL], Sampling(**sampling), seed, turns)


def actor(sampler, context=4096):
    return SamplingActor(sampler, TOKENIZER, "tiny", context, 3)


async def test_a_tool_call_is_read_and_history_is_extended_by_the_tools_answer():
    sampler = Sampler(CALL, "done 7")
    asked = actor(sampler)
    message, turn = await asked.act(request(max_tokens=9, temperature=0.7, top_p=0.9))
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"]) == {"at": "blue"}
    prompt, params = sampler.asked[0]
    assert (params.max_tokens, params.temperature, params.top_p) == (9, 0.7, 0.9)
    assert (params.seed, list(params.stop)) == (5, [END])
    assert turn.prompt_ids == tuple(prompt)
    assert turn.completion_ids == (*ids_of(CALL), END)
    assert turn.logprobs == (-0.5,) * len(turn.completion_ids)
    assert (turn.policy_version, turn.finish_reason) == (3, "stop")
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "7"}
    first = turn.model_copy(update={"message_index": 1})
    message, second = await asked.act(request(message, answer, turns=(first,)))
    assert message == {"role": "assistant", "content": "done 7"}
    (row,) = lay_out((first, second))
    given = len(row.completion_ids) - len(turn.completion_ids) - len(second.completion_ids)
    assert given > 0
    assert sum(row.mask) == len(turn.completion_ids) + len(second.completion_ids)
    assert "\n7\n" in TOKENIZER.decode(row.completion_ids)


async def test_an_answer_that_no_template_continues_begins_a_new_row():
    spelled = [ids_of(letter)[0] for letter in "print"]  # no encoding of the word
    sampler = Sampler(spelled, "more", ended=False)
    asked = actor(sampler)
    message, turn = await asked.act(request())
    first = turn.model_copy(update={"message_index": 1})
    user = {"role": "user", "content": "Go on."}
    _, second = await asked.act(request(message, user, turns=(first,)))
    assert len(lay_out((first, second))) == 2
    whole = [*request().messages, message, user]
    assert list(second.prompt_ids) == chat.prompt_ids(TOKENIZER, whole, [TOOL], ())


@pytest.mark.parametrize(
    ("sampling", "context", "reason"),
    [
        ({"max_tokens": 4}, 4096, "length"),
        ({"max_tokens": 999, "max_total_tokens": 600}, 4096, "trajectory_length"),
        ({"max_tokens": 999}, 600, "context_length"),
    ],
)
async def test_an_answer_that_was_cut_says_by_what(sampling, context, reason):
    sampler = Sampler("x", ended=False)
    _, turn = await actor(sampler, context).act(request(**sampling))
    assert turn.finish_reason == reason
    asked = sampler.asked[0][1].max_tokens
    assert asked == (4 if reason == "length" else 600 - len(turn.prompt_ids))


async def test_a_conversation_that_is_too_long_is_not_sent():
    sampler = Sampler()
    with pytest.raises(ContextOverflow):
        await actor(sampler, context=8).act(request())
    with pytest.raises(TrajectoryTooLong):
        await actor(sampler).act(request(max_total_tokens=8))
    assert sampler.asked == []


async def test_seeds_fit_the_services_integers():
    sampler = Sampler("x")
    await actor(sampler).act(request(seed=2**31 + 4))
    assert sampler.asked[0][1].seed == 4


async def test_a_deadline_cancels_the_request():
    future = Future()
    sampler = Sampler()
    sampler.sample = lambda *_: future
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await actor(sampler).act(request())
    assert future.cancelled()


def refused(status, said="no", **headers):
    sent = httpx.Request("POST", "http://x")
    response = httpx.Response(status, request=sent, headers=headers)
    return tinker.APIStatusError(said, response=response, body=None)


def failed(category, said="lost"):
    return tinker.RequestFailedError(
        said, request_id="r", category=tinker.types.RequestErrorCategory(category)
    )


def wrapped(error):
    """As the SDK hands on what it was told when it asked for a result."""
    outer = ValueError("Error retrieving result")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "retryable", "pause"),
    [
        (refused(503), True, None),
        (refused(429, **{"retry-after": "7"}), True, 7.0),
        (refused(500, **{"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}), True, None),
        (refused(401), False, None),
        (refused(400), False, None),
        (wrapped(refused(400)), False, None),
        (wrapped(refused(502)), True, None),
        (tinker.APIConnectionError(request=httpx.Request("POST", "http://x")), True, None),
        (tinker.APITimeoutError(request=httpx.Request("POST", "http://x")), True, None),
        (failed("server"), True, None),
        (failed("unknown"), True, None),
        (failed("user"), False, None),
    ],
)
async def test_a_failure_says_whether_another_try_may_help(error, retryable, pause):
    with pytest.raises(ProviderError) as caught:
        await actor(Sampler(error)).act(request())
    assert not isinstance(caught.value, ContextOverflow)
    assert (caught.value.retryable, caught.value.retry_after) == (retryable, pause)


@pytest.mark.parametrize(
    "error",
    [
        refused(400, "Prompt is too long: 9000 tokens"),
        failed("user", "exceeds the model's context window"),
        wrapped(refused(400, "Prompt is too long: 9000 tokens")),
    ],
)
async def test_a_refusal_for_length_ends_the_rollout_without_a_failure(error):
    with pytest.raises(ContextOverflow):
        await actor(Sampler(error)).act(request())


@pytest.mark.parametrize("error", [failed("server"), wrapped(refused(400))])
def test_a_failure_outside_rollouts_ends_the_run_and_names_the_cause(error):
    with pytest.raises(RunError, match=r"it failed: \w+Error: (lost|no)"), failing("it failed"):
        raise error


def test_a_bug_outside_rollouts_stays_what_it_is():
    with pytest.raises(ValueError, match="a bug"), failing("it failed"):
        raise ValueError("a bug")


async def test_a_bug_is_no_failure_of_the_service():
    with pytest.raises(ValueError, match="a bug"):
        await actor(Sampler(ValueError("a bug"))).act(request())


def test_messages_end_where_the_template_ends_them():
    assert chat.end_ids(TOKENIZER) == [END]
