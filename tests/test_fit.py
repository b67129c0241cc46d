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
        (["mode=eval", "dataset.held_out=0"], "dataset.held_out", "nothing to evaluate on"),
        (["train.eval_every=2", "dataset.held_out=0"], "train.eval_every", "nothing to evaluate"),
        (["train.eval_every=2", "evaluate.greedy=false"], "train.eval_every", "nothing to eval"),
        (["mode=collect", "collect.tasks=held_out", "dataset.held_out=0"], "collect.tasks", "no"),
        (["backend.lora_alpha=64"], "backend.lora_alpha", "no effect; set train.lora_rank"),
        (["objective=val/pass_rat"], "objective", "did you mean 'val/pass_rate'?"),
        (["objective=train/rewards"], "objective", "did you mean 'train/reward'?"),
        (["objective=pass_rate"], "objective", "no metric is called 'pass_rate'"),
        (["mode=eval", "evaluate.who=teacher", "teacher=none"], "teacher", "evaluate.who=teacher"),
        (["mode=collect", "collect.who=teacher", "teacher=none"], "teacher", "collect.who"),
        (["evaluate.who=teacher"], "evaluate.who", "use mode=eval"),
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


@pytest.mark.parametrize(
    "name",
    [
        *("val/pass@4_low", "val/reward", "val/failures/sandbox/SandboxGone", "val/tokens/prompt"),
        *("train/loss", "train/reward_parts/tests", "train/clip_ratio", "teacher/pass_rate"),
        *("collect/pass_rate", "time/step", "cwsandbox/total/executions", "tokens/completion"),
    ],
)
def test_what_a_run_records_can_be_optimised(name):
    assert problems(f"objective={name}") == {}


@pytest.mark.parametrize("mode", ["collect", "eval"])
def test_only_who_acts_needs_a_key(mode, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    section = {"collect": "collect", "eval": "evaluate"}[mode]
    idle = problems(f"mode={mode}", "policy=reference", "teacher=openai")
    assert idle == {}
    used = problems(f"mode={mode}", "policy=reference", "teacher=openai", f"{section}.who=teacher")
    assert "OPENAI_API_KEY" in used["teacher.api_key_env"]
    policy = ("policy=openai", "policy.model=m", "teacher=reference")
    assert problems(f"mode={mode}", *policy, f"{section}.who=teacher") == {}


def test_a_teacher_without_a_warm_up_needs_no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    experiment = load_experiment(None, "policy=tiny", "teacher=openai", "train=grpo")
    assert not [found for found in check(experiment) if found.key.startswith("teacher")]


def test_the_plan_of_fine_tuning_is_the_teachers_work():
    experiment = load_experiment(
        *(None, "train=sft", "train.steps=4", "train.groups_per_batch=3", "train.group_size=2"),
        *("teacher=reference", "dataset=arithmetic", "dataset.held_out=5"),
    )
    planned = plan(experiment)
    assert (planned.steps, planned.tasks, planned.groups) == (4, 12, 12)
    assert planned.demonstrations == 12 * 2
    assert planned.rollouts == 12 * 2 + 2 * 5


def test_a_warm_up_that_is_off_is_noted_where_something_was_set_for_it():
    off = load_experiment("quickstart", "train.warmup_steps=0", "train.steps=1")
    assert check(off) == []
    assert plan(off).lines()[-1] == (
        "no effect with train.warmup_steps=0: "
        "train.warmup_tasks, train.warmup_learning_rate, train.warmup_keep"
    )
    assert plan(load_experiment("quickstart")).notes == ()


def test_fine_tuning_needs_a_teacher():
    experiment = load_experiment(None, "train=sft")
    assert [str(found) for found in check(experiment)] == [
        "teacher: train=sft needs a teacher; choose one with teacher=..."
    ]


def test_what_is_compared_within_its_group_must_not_be_greedy():
    taught = ("train=teacher_grpo", "teacher=reference", "rollout.temperature=0")
    found = {f.key: f.problem for f in check(load_experiment(None, *taught))}
    assert "alike" in found["rollout.temperature"]
    fine_tuned = ("train=sft", "teacher=reference", "rollout.temperature=0")
    assert check(load_experiment(None, *fine_tuned)) == []


def test_several_processes_are_refused_until_they_share_the_work(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "one process" in problems()["backend.kind"]
