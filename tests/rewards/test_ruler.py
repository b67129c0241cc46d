"""ART's comparison of a group, with a stand-in for the library."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import pytest

from rlpipe.collect import Collector
from rlpipe.errors import GraderError, RunError
from rlpipe.policies.base import Actor
from rlpipe.rewards.ruler import Ruler
from rlpipe.rewards.weighted import Weighted
from rlpipe.rollouts.agent import Agent
from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes.base import SandboxSpec
from rlpipe.testing import FakeSandboxSession
from rlpipe.types import Turn

from .helpers import TASK, said


class FakeTrajectory(SimpleNamespace):
    """The parts of `art.Trajectory` that RULER and the reward touch, in version 0.5.18."""

    def __init__(self, *, messages_and_choices, tools=None, reward=0.0):
        super().__init__(
            messages_and_choices=messages_and_choices,
            tools=tools,
            reward=reward,
            metrics={},
            logs=[],
        )


class FakeArt:
    """Stands for openpipe-art: judges by the length of the last message, or as it is told to."""

    def __init__(self):
        self.asked = []
        self.score = lambda member: len(member.messages_and_choices[-1]["content"]) / 10
        self.error = None

    async def ruler_score_group(
        self,
        group,
        judge_model="openai/o3",
        extra_litellm_params=None,
        rubric="ART's own",
        *,
        swallow_exceptions=False,
        debug=False,
    ):
        await asyncio.sleep(0)
        self.asked.append((group, judge_model, extra_litellm_params, rubric))
        if self.error:
            raise self.error
        for member in group.trajectories:
            member.metrics["ruler_score"] = member.reward = self.score(member)
            member.logs.append("RULER explanation: by its length")
        return group


@pytest.fixture
def art(monkeypatch):
    fake, module, rewards = FakeArt(), ModuleType("art"), ModuleType("art.rewards")
    module.Trajectory = FakeTrajectory
    module.TrajectoryGroup = lambda members: SimpleNamespace(trajectories=list(members))
    rewards.ruler_score_group = fake.ruler_score_group
    monkeypatch.setitem(sys.modules, "art", module)
    monkeypatch.setitem(sys.modules, "art.rewards", rewards)
    return fake


class Answers(Actor):
    """Answers each request with the next text, or fails with the next error."""

    name = "answers"

    def __init__(self, answers):
        self.answers = iter(answers)

    async def act(self, request):
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return {"role": "assistant", "content": answer}, Turn()


async def collected(reward, *answers, seen=None, attempts=None):
    """Collect one group in which each rollout answers with the next of `answers`."""
    session = FakeSandboxSession()
    async with SandboxPool(session, SandboxSpec(), warm=0, max_live=8, max_starting=8) as pool:
        collector = Collector(Agent(max_attempts=1), {}, reward, pool, seed=0)
        collector.on_attempt = ([] if attempts is None else attempts).append
        (group,) = await collector.collect(
            Answers(answers),
            [TASK],
            phase="train",
            group_size=len(answers),
            on_rollout=([] if seen is None else seen).append,
        )
    return group


async def test_ruler_compares_the_valid_members_of_a_group(art):
    seen = []
    group = await collected(
        Ruler(rubric="Shorter.", litellm_params={"num_retries": 2}),
        "abc",
        GraderError("broke"),
        "abcdefgh",
        seen=seen,
    )
    assert group.rewards == [0.3, None, 0.8]
    assert [t.reward for t in seen] == group.rewards
    ((asked, model, params, rubric),) = art.asked
    assert (model, params, rubric) == ("openai/o3", {"num_retries": 2}, "Shorter.")
    assert [m.messages_and_choices[-1]["content"] for m in asked.trajectories] == [
        "abc",
        "abcdefgh",
    ]
    assert group.trajectories[0].score.note == "by its length"


@pytest.mark.parametrize("value", [1.2, -0.1, float("nan"), None, "1"])
async def test_a_ruler_score_out_of_range_masks_the_group(art, value):
    art.score = lambda member: value
    attempts = []
    with pytest.raises(RunError, match="is not from 0 to 1"):
        await collected(Ruler(), "a", "b", attempts=attempts)
    failed = [t for t in attempts if t.failure]
    assert [(t.failure.boundary, t.failure.grading, t.score) for t in failed] == [
        ("grader", True, None)
    ] * 2


async def test_a_ruler_that_fails_masks_the_group(art):
    art.error = ValueError("Expected 2 scores, but got 1")
    with pytest.raises(GraderError, match="RULER failed: ValueError: Expected 2"):
        await Ruler().score_group(TASK, [said("a"), said("b")])
    with pytest.raises(GraderError, match="only one of the group is valid"):
        await Ruler().score_group(TASK, [said("a")])


async def test_ruler_is_a_part_of_a_sum(art):
    reward = Weighted(
        parts={
            "compared": {"weight": 0.5, "reward": {"kind": "ruler"}},
            "form": {"weight": 1.0, "reward": {"kind": "format"}},
        },
        passes="form",
    )
    group = await collected(reward, "ab", "abcd", "<answer>")
    assert [t.failure for t in group.trajectories] == [None] * 3
    score = group.trajectories[1].score
    assert score.value == pytest.approx(0.5 * 0.4)
    assert score.parts == {"compared": 0.4, "form": 0.0}
    assert not score.passed
    assert "compared 0.4 (compared: by its length)" in score.note


def test_a_sum_in_a_sum_holds_no_comparison():
    inner = {"kind": "weighted", "parts": {"r": {"reward": {"kind": "ruler"}}}}
    reward = Weighted(parts={"inner": {"reward": inner}})
    assert any("part of a part" in found.problem for found in reward.check())


def test_ruler_says_what_to_install_and_which_key_it_needs(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("rlpipe.component._installed", lambda name: False)
    found = {finding.key: finding.problem for finding in Ruler().check()}
    assert "OPENAI_API_KEY" in found["judge_model"]
    assert found["kind"].endswith("pip install 'rlpipe[art]'")
