"""Real training runs of a very small model, on a CPU."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the trl extra")

import torch

import rlpipe
from rlpipe.advantages import advantages
from rlpipe.backends import _trl
from rlpipe.policies.tiny import Tiny
from rlpipe.store import read_trajectories
from rlpipe.train.grpo import Grpo
from rlpipe.types import Failure, Score, StopReason, Trajectory, TrajectoryGroup, Turn, lay_out

SMALL = (
    "policy.hidden_size=32",
    "policy.layers=2",
    "policy.heads=2",
    "policy.intermediate_size=64",
    "dataset.tasks=40",
    "dataset.held_out=4",
    "train.groups_per_batch=2",
    "train.group_size=2",
    "train.steps=2",
    "rollout.max_tokens=8",
    "backend.threads=1",
)
WARM_UP = ("train.warmup_steps=2", "train.warmup_tasks=8", "train.warmup_batch_size=4")


def run(folder, *overrides, recipe="quickstart"):
    warm_up = WARM_UP if recipe else ()
    return rlpipe.run(rlpipe.load_experiment(recipe, *SMALL, *warm_up, *overrides), folder)


def weights(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def trajectory(index, reward, ids, mask_gap=()):
    failed = reward is None
    first = Turn(prompt_ids=(1, 2), completion_ids=ids, logprobs=(-0.5,) * len(ids))
    turns = (first,)
    if mask_gap:
        given = (1, 2, *ids, *mask_gap)
        turns += (Turn(prompt_ids=given, completion_ids=(9,), logprobs=(-0.1,)),)
    return Trajectory(
        rollout_id=f"g-{index}",
        group_id="g",
        task_id="t",
        stop_reason=StopReason.FAILED if failed else StopReason.FINAL_ANSWER,
        turns=() if failed else turns,
        score=None if failed else Score(value=reward),
        failure=Failure(boundary="sandbox", type="SandboxGone", message="") if failed else None,
    )


def columns(*members, **train):
    group = TrajectoryGroup(group_id="g", task_id="t", trajectories=members)
    _, tokenizer = Tiny(hidden_size=16, layers=1, heads=1).load(0)
    return _trl._columns([group], Grpo(**train), tokenizer), group


def test_trl_is_handed_our_advantages_and_nothing_of_a_failed_rollout():
    rows, group = columns(
        trajectory(0, 1.0, (3, 4), mask_gap=(7, 7)),
        trajectory(1, 0.0, (5,)),
        trajectory(2, None, ()),
        trajectory(3, 1.0, (6,)),
    )
    (expected,) = advantages([group.rewards], "group")
    assert rows["advantage"] == expected
    assert rows["completion_ids"][0] == [3, 4, 7, 7, 9]
    assert rows["env_mask"][0] == [1, 1, 0, 0, 1]
    assert rows["logprobs"][0] == [-0.5, -0.5, 0.0, 0.0, -0.1]
    assert rows["advantage"][2] is None
    assert set(rows["env_mask"][2]) == {0}
    assert len({len(column) for column in rows.values()}) == 1


def test_a_group_with_one_valid_rollout_trains_nothing():
    rows, _ = columns(trajectory(0, 1.0, (3,)), trajectory(1, None, ()))
    assert rows["advantage"] == [None, None]
    assert rows["env_mask"] == [[0], [0]]


REWARDS = """
from rlpipe.errors import GraderError

def varied(task, trajectory, sandbox):
    if trajectory.seed % 5 == 0:
        raise GraderError("the judge is out")
    return trajectory.seed % 7 / 3

def equal(task, trajectory, sandbox):
    return 0.5
"""


@pytest.fixture
def rewards(tmp_path, monkeypatch):
    """A module of rewards, and what GRPOTrainer makes of the rewards that it is handed."""
    from trl import GRPOTrainer

    (tmp_path / "odd_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    seen = []
    own = GRPOTrainer._generate_and_score_completions

    def watched(trainer, inputs):
        result = own(trainer, inputs)
        weights = {name: w.detach().clone() for name, w in trainer.model.named_parameters()}
        seen.append((result["advantages"].tolist(), weights))
        return result

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", watched)
    yield seen
    sys.modules.pop("odd_rewards", None)


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_trl_trains_on_exactly_our_advantages(tmp_path, rewards, scale):
    result = run(
        tmp_path / "run",
        "reward=python",
        "reward.function=odd_rewards:varied",
        f"train.scale_rewards={scale}",
        "train.group_size=4",
        "train.warmup_steps=0",
    )
    for step, (handed, _) in enumerate(rewards, 1):
        rows = read_trajectories(result.folder / f"trajectories/step_{step}.jsonl")
        members = sorted(rows, key=lambda t: (t.group_id, t.index))
        groups = [[t.reward for t in members[start : start + 4]] for start in (0, 4)]
        ours = [value or 0.0 for group in advantages(groups, scale) for value in group]
        assert handed == pytest.approx(ours, abs=1e-6)
    assert len(rewards) == 2
    assert {t.reward is None for t in members} == {True, False}


def test_a_step_that_teaches_nothing_moves_no_weight(tmp_path, rewards):
    result = run(
        tmp_path / "run",
        "reward=python",
        "reward.function=odd_rewards:equal",
        "train.warmup_steps=0",
        "backend.weight_decay=0.5",
        "train.learning_rate=0.1",
    )
    figures = result.metrics[1]
    assert (figures["groups/zero_variance"], figures["groups/trainable"]) == (1.0, 0.0)
    assert figures["train/skipped"] == 1.0
    (_, first), (_, second) = rewards
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_rollouts_without_log_probabilities_are_refused_with_what_can_learn_from_them():
    bare = Turn(prompt_ids=(1,), completion_ids=(2,))
    member = trajectory(0, 1.0, (3,)).model_copy(update={"turns": (bare,)})
    with pytest.raises(
        rlpipe.RunError, match=r"needs the log-probabilities.*train=sft.*train=teacher_grpo"
    ):
        columns(member, trajectory(1, 0.0, (3,)))


def test_warm_up_and_grpo_write_a_run_that_loads_again(tmp_path):
    result = run(tmp_path / "run", "train.save_every=1", "train.eval_every=1")
    folder = result.folder
    assert sorted(result.metrics) == [0, 1, 2]
    for step in (1, 2):
        figures = result.metrics[step]
        assert figures["rollout/count"] == 4
        assert {"train/reward", "train/loss", "train/grad_norm", "val/pass_rate"} <= set(figures)
        rows = list(read_trajectories(folder / f"trajectories/step_{step}.jsonl"))
        assert len(rows) == 4
        assert {row.policy_version for row in rows} == {step - 1}
        for row in rows:
            (laid,) = lay_out(row.turns)
            assert sum(laid.mask) == row.usage.completion_tokens
    assert [e.step for e in result.evaluations] == [0, 1, 2]
    assert len(list(read_trajectories(folder / "trajectories/teacher.jsonl"))) == 8
    before, after = (weights(folder / f"checkpoints/step_{step}") for step in (1, 2))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["status"], manifest["steps"]) == ("done", 2)
    assert before.keys() == after.keys()


def test_the_same_seed_gives_the_same_metrics_and_weights(tmp_path):
    first, second = (run(tmp_path / name) for name in ("a", "b"))

    def comparable(result):
        return {
            step: {k: v for k, v in figures.items() if not k.startswith(("time/", "cwsandbox/"))}
            for step, figures in result.metrics.items()
        }

    for step, figures in comparable(first).items():
        assert figures == comparable(second)[step]
    one, other = (weights(r.folder / "checkpoints/step_2") for r in (first, second))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_fine_tuning_on_the_teachers_passing_trajectories(tmp_path):
    result = run(
        tmp_path / "run",
        "train=sft",
        "teacher=reference",
        "dataset=arithmetic",
        "reward=expected_output",
        "tools=[]",
        "train.steps=30",
        "train.group_size=1",
        "train.batch_size=8",
        "train.learning_rate=3e-3",
        recipe=None,
    )
    losses = [result.metrics[step]["train/loss"] for step in range(1, 31)]
    assert losses[-1] < losses[0] / 2
    assert (result.folder / "checkpoints/step_30").is_dir()


def test_tool_output_is_masked_and_tool_runs_train(tmp_path):
    """The tiny model calls no tool by itself; a template of calls makes it see tool output."""
    result = run(
        tmp_path / "run",
        "tools=[execute_code,submit_solution]",
        "train.warmup_steps=0",
        "rollout.max_tokens=4",
    )
    rows = list(read_trajectories(result.folder / "trajectories/step_1.jsonl"))
    assert {tool["function"]["name"] for row in rows for tool in row.tools} == {
        "execute_code",
        "submit_solution",
    }


def test_lora_trains_adapters_alone(tmp_path):
    result = run(tmp_path / "run", "train.lora_rank=4", "train.warmup_steps=0")
    checkpoint = result.folder / "checkpoints/step_2"
    assert (checkpoint / "adapter" / "adapter_model.safetensors").exists()
    merged = weights(checkpoint)
    assert not any("lora" in name for name in merged)
    untrained, _ = Tiny(hidden_size=32, layers=2, heads=2, intermediate_size=64).load(0)
    assert merged.keys() == untrained.state_dict().keys()


def test_a_kl_term_holds_towards_the_policy_after_the_warm_up(tmp_path):
    result = run(tmp_path / "run", "train.beta=0.5", "train.learning_rate=1e-2", "reward=exit_code")
    assert result.metrics[1]["train/kl"] == pytest.approx(0, abs=1e-6)


def test_an_error_while_a_step_is_recorded_ends_the_run(tmp_path, monkeypatch):
    def full(self, step, metrics):
        raise OSError("disk full")

    monkeypatch.setattr("rlpipe.store.RunFolder.add_metrics", full)
    with pytest.raises(OSError, match="disk full"):
        run(tmp_path / "run", "train.warmup_steps=0", "dataset.held_out=0")


def test_a_teacher_that_never_passes_ends_the_run_in_one_sentence(tmp_path):
    with pytest.raises(rlpipe.RunError, match="none of the teacher's 8 trajectories passed"):
        run(
            tmp_path / "run",
            "teacher=scripted",
            "teacher.turns=[nothing]",
            "train.warmup_keep=passed",
        )


def test_evaluating_the_untrained_policy_trains_nothing(tmp_path):
    result = run(tmp_path / "run", "mode=eval", "evaluate.samples=2")
    assert sorted(result.metrics) == [0]
    assert {"val/pass_rate", "val/pass@1", "val/pass@2"} <= set(result.metrics[0])
    assert not (result.folder / "checkpoints").exists()


MBPP = Path(__file__).parents[3] / "shared" / "data" / "mbpp" / "mbpp.jsonl"


@pytest.mark.skipif(not MBPP.exists(), reason=f"no MBPP data at {MBPP}")
def test_the_tiny_model_trains_on_mbpp_with_tools(tmp_path):
    experiment = rlpipe.load_experiment(
        None,
        "dataset=mbpp",
        f"dataset.path={MBPP}",
        "backend=trl",
        "dataset.held_out=2",
        "train.steps=2",
        "train.groups_per_batch=2",
        "train.group_size=2",
        "rollout.max_tokens=16",
    )
    result = rlpipe.run(experiment, tmp_path / "run")
    assert sorted(result.metrics) == [0, 1, 2]
    row = next(read_trajectories(result.folder / "trajectories/step_2.jsonl"))
    assert [tool["function"]["name"] for tool in row.tools] == ["execute_code", "submit_solution"]
    assert row.reward == 0.0
    assert row.score.outcome == "no_answer"


def test_a_limit_ends_the_training_after_a_step_with_a_checkpoint(tmp_path):
    """The reference teacher uses no tokens, so it is the first step that finds the limit passed."""
    result = run(tmp_path, "train.steps=4", "train.eval_every=1", "limits.tokens=1")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["status"], manifest["steps"]) == ("stopped", 1)
    assert manifest["stopped"].startswith("limits.tokens=1 is reached: ")
    assert [evaluation.step for evaluation in result.evaluations] == [0]
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {"step_0", "step_1"}  # the first is of the warm-up
    assert weights(tmp_path / "checkpoints" / "step_1")
