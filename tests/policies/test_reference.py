"""The reference policy: how it hands in, and how often it errs."""

import json

import pytest

from rlpipe.errors import ProviderError
from rlpipe.policies.reference import Reference
from rlpipe.tools.submit_solution import SubmitSolution
from rlpipe.types import Task

from .server import EXECUTE

TASK = Task(id="t1", messages=(), reference="right()", mistake="wrong()")


async def answer(request, **options):
    async with Reference(**options).open() as actor:
        return await actor.act(request)


@pytest.mark.parametrize(
    "tools",
    [
        [],
        [EXECUTE],
        [{"function": {"name": "submit_solution"}}],
        [{"function": {"name": "submit_solution", "parameters": {"properties": {"text": {}}}}}],
    ],
)
async def test_without_a_submitting_tool_it_answers(ask, tools):
    message, turn = await answer(ask(task=TASK, tools=tools))
    assert message["content"] == "<answer>right()</answer>"
    assert "tool_calls" not in message
    assert turn.finish_reason == "stop"


async def test_with_one_it_submits(ask):
    submit = SubmitSolution().function("submit_solution")
    message, turn = await answer(ask(task=TASK, tools=[EXECUTE, submit]))
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "submit_solution"
    assert json.loads(call["function"]["arguments"]) == {"code": "right()"}
    assert turn.finish_reason == "tool_calls"


async def test_a_share_of_the_rollouts_errs_by_the_seed(ask):
    requests = [ask(task=TASK, seed=seed) for seed in range(400)]
    texts = [(await answer(request, mistakes=0.25))[0]["content"] for request in requests]
    again = [(await answer(request, mistakes=0.25))[0]["content"] for request in requests]
    assert texts == again
    assert 60 < sum("wrong()" in text for text in texts) < 140


@pytest.mark.parametrize(("mistakes", "code"), [(0.0, "right()"), (1.0, "wrong()")])
async def test_never_and_always(ask, mistakes, code):
    for seed in range(20):
        message, _ = await answer(ask(task=TASK, seed=seed), mistakes=mistakes)
        assert code in message["content"]


async def test_a_task_without_a_mistake_is_answered_right(ask):
    task = TASK.model_copy(update={"mistake": None})
    message, _ = await answer(ask(task=task), mistakes=1.0)
    assert "right()" in message["content"]


async def test_a_task_without_a_reference(ask):
    task = TASK.model_copy(update={"reference": None})
    with pytest.raises(ProviderError, match="task t1 has no reference"):
        await answer(ask(task=task))
