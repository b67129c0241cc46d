"""Scripted turns: which one is played, and the tokens that they pretend to have."""

import asyncio

import pytest

from rlpipe.errors import ProviderError
from rlpipe.policies.scripted import Scripted
from rlpipe.types import Task, Turn, lay_out

CALL = {"tool_calls": [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": '{"b'}]}


async def play(policy, request):
    async with policy.open() as actor:
        return await actor.act(request)


async def test_an_answer(ask):
    message, turn = await play(Scripted(turns=["Done."]), ask())
    assert message == {"role": "assistant", "content": "Done."}
    assert turn == Turn(finish_reason="stop")


async def test_tool_calls(ask):
    message, turn = await play(Scripted.model_validate({"turns": [CALL]}), ask())
    assert message["content"] == ""
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": '{"b'},
    ]
    assert turn.finish_reason == "tool_calls"


async def test_the_conversation_says_which_turn_it_is(ask):
    policy = Scripted(turns=["one", "two"])
    example = {"role": "assistant", "content": "part of the task"}
    task = Task(id="t", messages=({"role": "user", "content": "Hi"}, example))
    first, _ = await play(policy, ask(task=task))
    second, _ = await play(policy, ask(first, {"role": "user", "content": "Go on"}, task=task))
    assert (first["content"], second["content"]) == ("one", "two")


async def test_ids_of_calls_differ_between_turns(ask):
    policy = Scripted.model_validate({"turns": [CALL], "loop": True})
    first, _ = await play(policy, ask())
    second, _ = await play(policy, ask(first))
    ids = [call["id"] for message in (first, second) for call in message["tool_calls"]]
    assert len(set(ids)) == 4


async def test_after_the_last_turn(ask):
    said = {"role": "assistant", "content": "one"}
    message, _ = await play(Scripted(turns=["one"], loop=True), ask(said, said))
    assert message["content"] == "one"
    with pytest.raises(ProviderError, match="script for task t1 ends after 1 turns"):
        await play(Scripted(turns=["one"]), ask(said))


async def test_turns_of_a_particular_task(ask):
    policy = Scripted(turns=["other"], by_task={"t1": ["mine"]})
    assert (await play(policy, ask()))[0]["content"] == "mine"
    other = Task(id="t2", messages=())
    assert (await play(policy, ask(task=other)))[0]["content"] == "other"


async def test_a_delay(ask, monkeypatch):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await play(Scripted.model_validate({"turns": [{"content": "x", "delay": 600}]}), ask())
    assert waited == [600]


async def test_fake_tokens_extend_the_history(ask):
    script = {"turns": [{"content": "Hm", **CALL}, "Done."], "fake_tokens": True}
    policy = Scripted.model_validate(script)
    first, turn = await play(policy, ask())
    turn = turn.model_copy(update={"message_index": 1})
    result = {"role": "tool", "tool_call_id": "call_0_0", "content": "2"}
    _, last = await play(policy, ask(first, result, turns=[turn]))
    (row,) = lay_out([turn, last])
    text = "".join(map(chr, row.completion_ids))
    assert "".join(map(chr, row.prompt_ids)) == "user: Hi\nassistant: "
    assert text == 'Hmf({"a": 1})g({"b)\ntool: 2\nassistant: Done.'
    sampled = "".join(c for c, mask in zip(text, row.mask, strict=True) if mask)
    assert sampled == 'Hmf({"a": 1})g({"b)Done.'
    assert {p for p, mask in zip(row.logprobs, row.mask, strict=True) if mask} == {-1.0}
    assert last.usage.completion_tokens == 5
    assert last.usage.prompt_tokens == len(last.prompt_ids)


async def test_fake_tokens_of_plain_text_are_its_code_points(ask):
    _, turn = await play(Scripted(turns=["Aé"], fake_tokens=True), ask())
    assert turn.completion_ids == (65, 233)


async def test_a_history_without_tokens_is_rendered_anew(ask):
    said = {"role": "assistant", "content": "one"}
    policy = Scripted(turns=["one", "two"], fake_tokens=True)
    _, turn = await play(policy, ask(said, turns=[Turn(message_index=1)]))
    prompt = "".join(map(chr, turn.prompt_ids))
    assert prompt == "user: Hi\nassistant: one\nassistant: "


def test_empty_scripts_are_found():
    assert [finding.key for finding in Scripted().check()] == ["turns"]
    assert [finding.key for finding in Scripted(by_task={"t1": []}).check()] == ["by_task.t1"]
    assert Scripted(by_task={"t1": ["x"]}).check() == []
