import pytest

from rlpipe.config.compose import load_experiment
from rlpipe.fit import check, plan


def problems(*overrides):
    return {f.key: f.problem for f in check(load_experiment("quickstart", *overrides))}


def test_the_quickstart_fits():
    assert problems() == {}


@pytest.mark.parametrize(
    ("overrides", "key", "said"),
    [
        (["policy=reference"], "policy.kind", "cannot be trained"),
        (["teacher=none"], "teacher", "train.warmup_steps needs a teacher"),
        (["reward=tests_pass"], "reward.kind", "needs tasks with tests"),
        (["reward.answer=submitted"], "reward.answer", "no tool submits"),
        (["rollout.temperature=0"], "rollout.temperature", "alike"),
        (["train.loss_fn=cispo"], "train.loss_fn", "has only: bnpo, dapo, dr_grpo, grpo"),
        (
            ["backend.micro_batch_size=32", "train.group_size=9"],
            "backend.micro_batch_size",
            "divide the 72 rollouts",
        ),
        (
            ["backend.micro_batch_size=16", "train.warmup_batch_size=20"],
            "backend.micro_batch_size",
            "divide the 20 demonstrations of a warm-up step",
        ),
        (
            ["policy=trainable", "policy.model=a/b", "policy.dtype=bfloat16"],
            "policy.dtype",
            "lost",
        ),
        (["mode=eval", "evaluate.greedy=false"], "evaluate", "nothing to evaluate"),
    ],
)
def test_parts_that_do_not_fit_are_named(overrides, key, said):
    assert said in problems(*overrides)[key]


def test_all_misfits_are_told_together():
    assert {"teacher", "reward.answer"} <= set(problems("teacher=none", "reward.answer=submitted"))


def test_the_plan_counts_what_would_run_at_most():
    experiment = load_experiment(
        "quickstart",
        "train.steps=10",
        "train.groups_per_batch=4",
        "train.group_size=2",
        "train.eval_every=5",
        "train.warmup_tasks=30",
        "dataset.held_out=7",
        "evaluate.samples=3",
        "rollout.max_tokens=11",
    )
    planned = plan(experiment)
    assert (planned.tasks, planned.groups) == (40, 40)
    assert planned.evaluations == 3 * 7 * 4  # before, after step 5, at the end
    assert planned.demonstrations == 30
    assert planned.rollouts == 80 + 84 + 30
    assert planned.sampled_tokens == 194 * 11
    assert planned.sandboxes == 80 + 84  # demonstrations that are all kept are not judged


def test_collecting_needs_no_backend_for_a_frozen_policy():
    assert problems("mode=collect", "policy=reference", "train.loss_fn=cispo", "teacher=none") == {}


def test_fine_tuning_needs_a_teacher():
    experiment = load_experiment(None, "train=sft")
    assert [str(found) for found in check(experiment)] == [
        "teacher: train=sft needs a teacher; choose one with teacher=..."
    ]


def test_several_processes_are_refused_until_they_share_the_work(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "one process" in problems()["backend.kind"]
