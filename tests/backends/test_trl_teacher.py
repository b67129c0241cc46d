"""A very small model really learns from a teacher's groups, on a CPU."""

import asyncio
import json

import pytest

pytest.importorskip("trl", reason="needs the trl extra")

import torch

import rlpipe
from rlpipe import checkpoints
from rlpipe.backends._trl_teacher import laid_out
from rlpipe.backends.base import Job
from rlpipe.backends.trl import Trl
from rlpipe.chat import IGNORED, supervised_rows
from rlpipe.policies.tiny import Tiny
from rlpipe.train.teacher_grpo import TeacherGrpo
from rlpipe.types import Failure, Score, StopReason, Task, Trajectory, TrajectoryGroup, Turn

TINY = Tiny(hidden_size=32, layers=2, heads=2, intermediate_size=64)
TASK = Task(id="t", messages=({"role": "user", "content": "Say the word."},))


def called(code):
    function = {"name": "execute_code", "arguments": json.dumps({"code": code})}
    return [{"id": "call_0", "type": "function", "function": function}]


GOOD = (
    {"role": "assistant", "content": "", "tool_calls": called("max(17, 25)")},
    {"role": "tool", "tool_call_id": "call_0", "content": "9999 zzzz"},
    {"role": "assistant", "content": "the larger of them"},
)
BAD = ({"role": "assistant", "content": "17 - 25 - 25 - 17"},)


def trajectory(index, said, reward, group="g"):
    lost = Failure(boundary="sandbox", type="SandboxGone", message="")
    return Trajectory(
        rollout_id=f"{group}-{index}",
        group_id=group,
        task_id="t",
        phase="teacher",
        messages=(*TASK.messages, *said),
        turns=(Turn(),),
        stop_reason=StopReason.FINAL_ANSWER,
        score=None if reward is None else Score(value=reward),
        failure=lost if reward is None else None,
    )


def group(*members, name="g"):
    made = tuple(trajectory(i, said, reward, name) for i, (said, reward) in enumerate(members))
    return TrajectoryGroup(group_id=name, task_id="t", trajectories=made)


MIXED = (group((GOOD, 1.0), (BAD, 0.0), (BAD, None)), group((BAD, 1.0), (BAD, 1.0), name="equal"))
EQUAL = (group((GOOD, 1.0), (BAD, 1.0)),)


def train(tmp_path, groups, **options):
    """Train the tiny model; return the folder of its weights and the figures of its steps."""
    backend = Trl(threads=1, **options.pop("backend", {}))
    settings = TeacherGrpo(
        **{"steps": 6, "groups_per_batch": 1, "group_size": 2, "learning_rate": 3e-3, **options}
    )
    figures, asked = {}, []

    async def teach(tasks, step):
        asked.append((step, [task.id for task in tasks], len(figures)))
        return list(groups)

    async def nothing(*_):
        raise AssertionError("the policy makes no rollout of a training step")

    async def evaluate(actor, step):
        pass

    job = Job(
        policy=TINY,
        train=settings,
        seed=3,
        temperature=1.0,
        max_sampled_tokens=8,
        folder=tmp_path,
        batch=lambda step: [TASK],
        collect=nothing,
        teach=teach,
        demonstrate=nothing,
        evaluate=evaluate,
        finish_step=lambda step, said: figures.update({step: dict(said)}),
        checkpoint=lambda step: checkpoints.saving(tmp_path, step),
        resume=None,
        status=lambda text: None,
    )
    asyncio.run(backend.train(job))
    # Each step is asked for when those before it are done, never ahead.
    assert asked == [(step, ["t"], step - 1) for step in range(1, settings.steps + 1)]
    return checkpoints.latest(tmp_path).folder, figures


def model_of(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def logprob(model, tokenizer, said):
    """Log-probability of what the teacher said, worked out token by token."""
    total = 0.0
    for ids, labels in supervised_rows(tokenizer, trajectory(0, said, 1.0)):
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        total += sum(
            scores[i - 1, label].item() for i, label in enumerate(labels) if label != IGNORED
        )
    return total


@pytest.mark.parametrize(
    ("lora_rank", "backend"), [(None, {}), (8, {}), (8, {"gradient_checkpointing": True})]
)
def test_good_trajectories_become_more_probable_and_bad_ones_less(tmp_path, lora_rank, backend):
    start, tokenizer = TINY.load(3)
    folder, figures = train(tmp_path, MIXED, lora_rank=lora_rank, backend=backend)
    trained = model_of(folder)
    good, bad = (
        logprob(trained, tokenizer, said) - logprob(start, tokenizer, said) for said in (GOOD, BAD)
    )
    assert good > 1
    assert bad < -1
    better = [figures[step]["train/logprob_better"] for step in sorted(figures)]
    worse = [figures[step]["train/logprob_worse"] for step in sorted(figures)]
    assert better[-1] > better[0]
    assert worse[-1] < worse[0]


def test_the_loss_is_the_advantage_weighted_cross_entropy_per_token(tmp_path):
    start, tokenizer = TINY.load(3)
    rows = [lesson.tokens for lesson in laid_out(tokenizer, MIXED, TeacherGrpo())]
    _, figures = train(tmp_path, MIXED, steps=1)
    good, bad = (logprob(start, tokenizer, said) for said in (GOOD, BAD))
    first = figures[1]
    assert len(rows) == first["train/rows"] == 2  # the failed one and the equal group are left out
    assert first["train/tokens"] == sum(rows)
    # Rewards of 1 and 0 have the advantages 1 and -1.
    assert first["train/loss"] == pytest.approx(-(good - bad) / sum(rows), rel=1e-4)
    assert first["train/logprob_better"] == pytest.approx(good / rows[0], rel=1e-4)
    assert first["train/logprob_worse"] == pytest.approx(bad / rows[1], rel=1e-4)


def test_tool_output_carries_no_loss():
    _, tokenizer = TINY.load(3)
    good, _ = laid_out(tokenizer, MIXED, TeacherGrpo())
    learned = tokenizer.decode([label for label in good.labels if label != IGNORED])
    assert "max(17, 25)" in learned
    assert learned.endswith("the larger of them<|im_end|>")
    assert "9999" not in learned
    assert "Say the word" not in learned


def test_the_passes_of_a_step_add_up_to_one_step(tmp_path):
    whole, _ = train(tmp_path / "a", MIXED)
    split, _ = train(tmp_path / "b", MIXED, backend={"micro_batch_size": 1})
    one, other = model_of(whole).state_dict(), model_of(split).state_dict()
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def test_equal_rewards_move_no_weight(tmp_path):
    folder, figures = train(tmp_path, EQUAL, backend={"weight_decay": 0.5}, learning_rate=0.1)
    start, trained = TINY.load(3)[0].state_dict(), model_of(folder).state_dict()
    assert all(torch.equal(start[name], trained[name]) for name in trained)
    assert {said["train/skipped"] for said in figures.values()} == {1.0}
    assert {said["train/rows"] for said in figures.values()} == {0.0}


def test_a_run_learns_from_a_teacher_that_errs(tmp_path):
    experiment = rlpipe.load_experiment(
        None,
        *("train=teacher_grpo", "teacher=reference", "teacher.mistakes=0.5", "backend.threads=1"),
        *("dataset=arithmetic", "dataset.tasks=40", "dataset.held_out=4", "tools=[]"),
        *("reward=expected_output", "rollout.max_turns=1", "rollout.max_tokens=8"),
        *("policy=tiny", "policy.hidden_size=32", "policy.heads=2", "train.learning_rate=1e-3"),
        *("train.steps=3", "train.groups_per_batch=2", "train.group_size=4"),
        *("train.eval_every=2", "train.save_every=2"),
    )
    assert rlpipe.check(experiment) == []
    result = rlpipe.run(experiment, tmp_path / "run")
    assert [e.step for e in result.evaluations] == [0, 2, 3]
    for step in (1, 2, 3):
        figures = result.metrics[step]
        assert 0 < figures["teacher/reward"] < 1
        trained = round(figures["groups/trainable"] * figures["groups/count"])
        assert figures["train/rows"] == 4 * trained
    saved = sorted(folder.name for folder in (result.folder / "checkpoints").iterdir())
    assert saved == ["step_2", "step_3"]
