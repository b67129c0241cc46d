"""What is counted, by whom, at which price, and when it is enough."""

import json
from typing import ClassVar

import pytest
from pydantic import PrivateAttr

from rlpipe.backends.base import Backend, TrainSummary
from rlpipe.budget import lines
from rlpipe.config.compose import load_experiment
from rlpipe.errors import ConfigError, GraderError
from rlpipe.fit import check, plan
from rlpipe.policies.openai import Openai
from rlpipe.rewards.base import Reward
from rlpipe.rewards.weighted import Weighted
from rlpipe.runner import run
from rlpipe.spending import Limits, Price, Spending
from rlpipe.store import read_metrics, read_trajectories
from rlpipe.testing import FakeTracker
from rlpipe.types import Score, Turn, Usage

PRICE = Price(input=2.0, cached=0.5, output=8.0, train=4.0)


def turn(prompt, cached, completion):
    used = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)
    return Turn(usage=used)


def test_cached_tokens_are_charged_once_and_at_their_own_price():
    used = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=250_000)
    assert PRICE.of(used) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.25 * 8)
    assert PRICE.of(used, trained=500_000) == pytest.approx(3.4 + 0.5 * 4)
    assert Price(input=2.0, output=8.0).of(used) == pytest.approx(1 * 2 + 0.25 * 8)


def test_tokens_and_costs_are_told_by_role():
    spending = Spending({"big": PRICE})
    spending.add("policy", "small", turn(100, 0, 10))
    spending.add("teacher", "big", turn(1000, 500, 100))
    spending.add("judge", "big", turn(10, 0, 1))
    spending.add("judge", "other", turn(5, 0, 2))
    assert spending.tokens == 110 + 1100 + 11 + 7
    teacher = (500 * 2 + 500 * 0.5 + 100 * 8) / 1e6
    judge = (10 * 2 + 1 * 8) / 1e6
    assert spending.so_far() == {
        **{f"tokens/total/judge/{k}": v for k, v in zip(KINDS, (15, 0, 3), strict=True)},
        **{f"tokens/total/policy/{k}": v for k, v in zip(KINDS, (100, 0, 10), strict=True)},
        **{f"tokens/total/teacher/{k}": v for k, v in zip(KINDS, (1000, 500, 100), strict=True)},
        "costs/teacher": pytest.approx(teacher),
        "costs/judge": pytest.approx(judge),
        "costs/total": pytest.approx(teacher + judge),
    }


KINDS = ("prompt", "cached", "completion")


def test_a_step_is_charged_with_what_it_took():
    spending = Spending({"big": PRICE})
    spending.add("judge", "big", turn(100, 0, 0))
    assert spending.of_step()["costs/step"] == pytest.approx(2e-4)
    spending.add("judge", "big", turn(50, 0, 1))
    spending.add_trained("big", 10)
    assert spending.of_step() == {
        "judge/tokens/prompt": 50,
        "judge/tokens/cached": 0,
        "judge/tokens/completion": 1,
        "costs/step": pytest.approx((50 * 2 + 8 + 10 * 4) / 1e6),
    }


@pytest.mark.parametrize(
    ("limits", "seconds", "said"),
    [
        (Limits(), 1e9, None),
        (Limits(cost=0.003), 0, None),
        (Limits(cost=0.002), 0, "limits.cost=0.002 is reached: 0.002 spent"),
        (Limits(tokens=1001), 0, None),
        (Limits(tokens=1000), 0, "limits.tokens=1000 is reached: 1,000 used"),
        (Limits(time=60.0), 59.9, None),
        (Limits(time=60.0), 61.2, "limits.time=60 is reached: 61 s passed"),
    ],
)
def test_a_limit_is_reached_at_its_number(limits, seconds, said):
    spending = Spending({"m": Price(input=2.0, output=8.0)})
    spending.add("teacher", "m", turn(1000, 0, 0))
    assert spending.over(limits, seconds) == said


class Counting(Backend):
    """Drives a run without training, as a backend does that knows of limits."""

    kind: str = "counting"
    honours: ClassVar = {"grpo": frozenset({"learning_rate"})}

    async def train(self, job):
        async with job.policy.open() as actor:
            for step in range(1, job.train.steps + 1):
                await job.collect(actor, job.batch(step), step)
                if job.finish_step(step, {"tokens/trained": 1000.0}):
                    with job.checkpoint(step):
                        return TrainSummary(step)
            await job.evaluate(actor, job.train.steps)
        return TrainSummary(job.train.steps)


def scripted(*overrides, tokens=True):
    return load_experiment(
        *("quickstart", "policy=scripted", "policy.turns=['<answer>print(1)</answer>']"),
        *(f"policy.fake_tokens={str(tokens).lower()}", "dataset.tasks=20", "dataset.held_out=3"),
        *("train.warmup_steps=0", "train.groups_per_batch=2", "train.group_size=2"),
        *("train.steps=4", "mode=collect", *overrides),
    )


def training(**limits):
    """Four steps of four rollouts."""
    experiment = scripted()
    changed = {
        "mode": "train",
        "backend": Counting(),
        "limits": Limits(**limits),
        "prices": {"scripted": Price(input=1.0, output=1.0, train=1000.0)},
    }
    return experiment.model_copy(update=changed)


@pytest.fixture
def unchecked(monkeypatch):
    """The scripted policy is not one to train, which is all that is wrong here."""
    monkeypatch.setattr("rlpipe.runner.check", lambda experiment: [])


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def test_a_run_stops_after_the_step_that_reached_its_limit(tmp_path, unchecked, capsys):
    tracker = FakeTracker()
    experiment = training(cost=2.0).model_copy(update={"tracker": {"fake": tracker}})
    result = run(experiment, tmp_path / "run")
    noted = manifest(result.folder)
    assert noted["status"] == "stopped"
    assert noted["stopped"] == result.stopped
    assert result.stopped.startswith("limits.cost=2 is reached: 2")
    assert noted["steps"] == 2
    assert noted["checkpoint"].endswith("checkpoints/step_2")
    assert result.evaluations == ()
    assert {f"step_{n}.jsonl" for n in (1, 2)} == {
        file.name for file in (result.folder / "trajectories").iterdir()
    }
    assert tracker.opened[0].ending.status == "stopped"
    assert tracker.opened[0].ending.exit_code == 0
    assert "stopping: limits.cost=2 is reached" in capsys.readouterr().out
    figures = read_metrics(result.folder)
    assert figures[2]["costs/total"] == pytest.approx(2 * figures[1]["costs/total"], rel=0.01)
    assert figures[2]["costs/step"] == pytest.approx(
        figures[2]["costs/total"] - figures[1]["costs/total"]
    )


def test_a_limit_that_only_the_last_step_reaches_changes_nothing(tmp_path, unchecked):
    result = run(training(cost=4.0), tmp_path / "run")
    assert manifest(result.folder)["status"] == "done"
    assert result.stopped is None
    assert len(result.evaluations) == 1


class SecondTry(Reward):
    """Cannot be taken of anything at first."""

    kind: str = "second_try"
    _seen: set[str] = PrivateAttr(default_factory=set)

    async def score(self, task, trajectory, sandbox):
        if trajectory.rollout_id in self._seen:
            return Score(value=1.0)
        self._seen.add(trajectory.rollout_id)
        raise GraderError("not yet", retryable=True, retry_after=0.0)


def used(folder, role):
    figures = read_metrics(folder)[0]
    return tuple(figures[f"tokens/total/{role}/{kind}"] for kind in KINDS)


def test_tokens_of_failed_attempts_are_counted(tmp_path):
    experiment = scripted("dataset.tasks=2", "dataset.held_out=1")
    result = run(experiment.model_copy(update={"reward": SecondTry()}), tmp_path / "run")
    made = list(read_trajectories(result.folder / "trajectories" / "collect.jsonl"))
    assert [t.attempt for t in made] == [2, 2]
    assert used(result.folder, "policy") == (
        2 * sum(t.usage.prompt_tokens for t in made),
        0,
        2 * sum(t.usage.completion_tokens for t in made),
    )


def test_what_a_judge_reads_and_writes_is_its_own(tmp_path):
    """Within a weighted reward too."""
    verdict = '{"reason": "fine", "score": 1}'
    judge = {
        "kind": "judge",
        "rubric": "good",
        "policy": {"kind": "scripted", "turns": [verdict], "fake_tokens": True},
    }
    reward = Weighted.model_validate({"parts": {"judge": {"reward": judge, "weight": 1.0}}})
    experiment = scripted("dataset.tasks=2", "dataset.held_out=1", tokens=False)
    result = run(experiment.model_copy(update={"reward": reward}), tmp_path / "run")
    prompt, cached, completion = used(result.folder, "judge")
    assert prompt > 500
    assert (cached, completion) == (0, 2 * len(verdict))
    assert used(result.folder, "policy") == (0, 0, 0)


def test_a_teacher_is_no_policy(tmp_path):
    experiment = load_experiment(
        *("quickstart", "mode=eval", "evaluate.who=teacher", "teacher=scripted"),
        *("teacher.turns=['<answer>print(1)</answer>']", "teacher.fake_tokens=true"),
        *("dataset.tasks=4", "dataset.held_out=2", "policy=reference"),
    )
    result = run(experiment, tmp_path / "run")
    assert used(result.folder, "teacher")[2] == 2 * len("<answer>print(1)</answer>")
    assert not any("policy" in name for name in read_metrics(result.folder)[0])


def test_demonstrations_beyond_the_limit_are_not_made_and_nothing_is_trained(tmp_path, unchecked):
    experiment = scripted(
        *("teacher=scripted", "teacher.turns=['<answer>print(1)</answer>']"),
        *("train.warmup_steps=1", "teacher.fake_tokens=true"),
        *("train.warmup_tasks=8", "train.warmup_keep=all"),
        *("rollout.concurrency=1", "limits.tokens=1"),
    )

    class Demonstrated(Counting):
        async def train(self, job):
            await job.demonstrate()
            raise AssertionError("it went on")

    changed = {"mode": "train", "backend": Demonstrated()}
    result = run(experiment.model_copy(update=changed), tmp_path / "run")
    (file,) = (result.folder / "trajectories").iterdir()
    assert (file.name, len(list(read_trajectories(file)))) == ("teacher.jsonl", 1)
    assert manifest(result.folder)["status"] == "stopped"


def test_no_rollout_begins_beyond_the_limit_of_a_collection(tmp_path):
    one = run(scripted("dataset.tasks=1", "dataset.held_out=0"), tmp_path / "one")
    each = sum(
        value for name, value in read_metrics(one.folder)[0].items() if "tokens/total" in name
    )
    assert each > 0
    limited = scripted(f"limits.tokens={int(3 * each)}", "rollout.concurrency=1")
    result = run(limited, tmp_path / "run")
    assert result.last("rollout/count") in (3, 4)
    noted = manifest(result.folder)
    assert (noted["status"], noted["stopped"]) == ("stopped", result.stopped)


TEACHER = Openai(model="gpt/x.y-1", api_key_env="A_KEY", base_url="http://localhost:1/v1")


def taught(**changed):
    experiment = load_experiment(
        *("quickstart", "teacher=reference", "train.warmup_tasks=100", "rollout.max_turns=2"),
        *("train.steps=10", "dataset.held_out=10", "rollout.max_tokens=100"),
    )
    return experiment.model_copy(update={"teacher": TEACHER, **changed})


def said(experiment):
    return list(lines(experiment, plan(experiment)))


def test_the_dry_run_bounds_what_is_written():
    rollout = taught().rollout.model_copy(update={"max_trajectory_tokens": None})
    prices = {"gpt/x.y-1": Price(input=2.0, output=10_000.0)}
    # 100 demonstrations of 2 turns of 100 tokens
    assert said(taught(prices=prices, rollout=rollout, limits=Limits(cost=5, time=60))) == [
        "cost, policy    no price, counts as free (tiny)",
        "cost, teacher   at most 200.00 without prompts; rollout.max_trajectory_tokens would bound "
        "those (gpt/x.y-1)",
        "ends early at   cost=5, time=60",
    ]


def test_the_dry_run_bounds_prompts_where_a_conversation_has_an_end():
    rollout = taught().rollout.model_copy(update={"max_trajectory_tokens": 1000})
    prices = {"gpt/x.y-1": Price(input=2.0, output=1.0)}
    # 100 demonstrations of 2 turns that read 1000 tokens at most, and write 200 in all
    (_, line) = said(taught(prices=prices, rollout=rollout))
    assert line == "cost, teacher   at most 0.42, of which 0.40 for prompts (gpt/x.y-1)"


def test_the_dry_run_says_nothing_of_costs_without_a_price():
    assert said(taught()) == []


def test_a_limit_on_costs_needs_the_prices_of_what_is_paid_for(monkeypatch):
    monkeypatch.setenv("A_KEY", "x")
    found = check(taught(limits=Limits(cost=5)))
    assert [f"{f.key}: {f.problem}" for f in found] == [
        "limits.cost: the policy 'tiny' has no price; set it in prices",
        "limits.cost: the teacher 'gpt/x.y-1' has no price; set it in prices, "
        "{input: 0, output: 0} for a server of your own",
    ]
    priced = {"gpt/x.y-1": Price(input=1, output=1)}
    assert check(taught(limits=Limits(cost=5), prices=priced)) == []


def test_prices_stand_in_a_spec_under_any_name_of_a_model():
    experiment = load_experiment(
        "quickstart", "prices={gpt-5.1-codex-mini: {input: 0.25, cached: 0.025, output: 2}}"
    )
    assert experiment.prices == {"gpt-5.1-codex-mini": Price(input=0.25, cached=0.025, output=2.0)}
    with pytest.raises(ConfigError, match=r"ouput.*did you mean 'output'"):
        load_experiment("quickstart", "prices={m: {input: 0.25, ouput: 2}}")
