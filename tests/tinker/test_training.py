"""`backend=tinker` trains on a real server, with the SDK that is installed here."""

import asyncio
from statistics import fmean

import pytest

pytest.importorskip("tinker", reason="needs the tinker extra")
pytest.importorskip("torch", reason="makes a model with the trl extra")

import rlpipe
from rlpipe import checkpoints
from rlpipe.backends.base import Job
from rlpipe.backends.tinker import Tinker
from rlpipe.fit import check_online
from rlpipe.policies.trainable import Trainable
from rlpipe.store import read_trajectories
from rlpipe.train.sft import Sft
from rlpipe.train.teacher_grpo import TeacherGrpo
from rlpipe.types import Score, Task, TrajectoryGroup, lay_out
from tests.tinker import task
from tests.tinker.model import dialogue
from tests.tinker.server import RANK

TASK = Task(id="d", messages=({"role": "user", "content": task.QUESTION},))
BLUE, RED = dialogue("blue", "7"), dialogue("red", "7")


@pytest.fixture
def settings(tasks, tiny_model, launched_server):
    return task.overrides(tasks, tiny_model, launched_server)


def test_an_agent_learns_where_to_look(tmp_path, settings):
    """Reward is for the key alone, which takes a tool call in a sandbox and a second turn."""
    steps = 10
    experiment = rlpipe.load_experiment(None, *settings, f"train.steps={steps}")
    result = rlpipe.run(experiment, tmp_path / "run")
    rewards = [result.metrics[step]["train/reward"] for step in range(1, steps + 1)]
    print("reward by step:", rewards)
    assert fmean(rewards[-3:]) >= rewards[0] + 0.3
    for step in range(1, steps + 1):
        figures = result.metrics[step]
        assert figures["rollout/infra_failure_rate"] == 0
        assert figures["train/split_rollouts"] == 0
        # The sampler and the trainer are one model.
        assert 0 < figures["train/logprob_diff"] <= figures["train/logprob_diff_max"] < 1e-3
    for row in read_trajectories(result.folder / f"trajectories/step_{steps}.jsonl"):
        (laid,) = lay_out(row.turns)
        assert sum(laid.mask) == row.usage.completion_tokens
        assert row.policy_version == steps - 1


def test_the_untrained_policy_is_served_for_evaluation(tmp_path, settings):
    experiment = rlpipe.load_experiment(None, *settings, "mode=eval", "evaluate.samples=2")
    result = rlpipe.run(experiment, tmp_path / "run")
    assert {"val/pass_rate", "val/pass@2"} <= set(result.metrics[0])
    assert result.evaluations[0].failed == 0


def job(tmp_path, model, train, trajectories):
    """A job whose teacher shows these trajectories; returned with what becomes of it."""
    figures, evaluated = {}, []

    async def teach(tasks, step):
        return [TrajectoryGroup(group_id="d", task_id="d", trajectories=trajectories)]

    async def demonstrate():
        return list(trajectories)

    async def evaluate(actor, step):
        evaluated.append((step, actor.version))

    async def collect(*_):
        raise AssertionError("the policy makes no rollout")

    lent = Job(
        policy=Trainable(model=str(model)),
        train=train,
        seed=1,
        temperature=1.0,
        max_sampled_tokens=80,
        folder=tmp_path,
        batch=lambda step: [TASK],
        collect=collect,
        teach=teach,
        demonstrate=demonstrate,
        evaluate=evaluate,
        finish_step=lambda step, said: figures.update({step: dict(said)}),
        checkpoint=lambda step: checkpoints.saving(tmp_path, step),
        resume=None,
        status=lambda text: None,
    )
    return lent, figures, evaluated


def scored(trajectory, index, reward):
    score = Score(value=reward, passed=reward > 0)
    return trajectory.model_copy(update={"rollout_id": f"d-{index}", "score": score})


def test_a_teacher_is_imitated(tmp_path, tiny_model, launched_server):
    train = Sft(steps=5, batch_size=4, learning_rate=5e-3, lora_rank=RANK)
    lent, figures, evaluated = job(tmp_path, tiny_model, train, (scored(BLUE, 0, 1.0),))
    summary = asyncio.run(Tinker(base_url=launched_server).train(lent))
    losses = [figures[step]["train/loss"] for step in range(1, 6)]
    assert losses[-1] < losses[0] / 2
    assert evaluated == [(0, 0), (5, 5)]
    assert summary.steps == 5
    assert checkpoints.latest(tmp_path).step == 5


def test_what_a_teacher_did_well_becomes_likelier_and_what_it_did_badly_less(
    tmp_path, tiny_model, launched_server
):
    train = TeacherGrpo(steps=2, groups_per_batch=1, group_size=2, learning_rate=2e-3, lora_rank=8)
    shown = (scored(BLUE, 0, 1.0), scored(RED, 1, 0.0))
    lent, figures, _ = job(tmp_path, tiny_model, train, shown)
    asyncio.run(Tinker(base_url=launched_server).train(lent))
    # Figures of a step are of the weights before it. Further steps need not go on like the first:
    # the two conversations share most of their tokens, which are pushed both ways.
    before, after = figures[1], figures[2]
    assert after["train/logprob_better"] > before["train/logprob_better"] + 0.005
    assert after["train/logprob_worse"] < before["train/logprob_worse"] - 0.005


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
def test_clipped_losses_train(tmp_path, settings, loss):
    experiment = rlpipe.load_experiment(
        None,
        *settings,
        *(f"train.loss_fn={loss}", "train.epsilon=0.3", "train.steps=2", "dataset.held_out=0"),
    )
    result = rlpipe.run(experiment, tmp_path / "run")
    assert result.metrics[2]["train/skipped"] == 0
    assert result.metrics[2]["train/logprob_diff_max"] < 1e-3


def test_the_service_is_asked_what_it_refuses(settings):
    def refused(*overrides):
        found = check_online(rlpipe.load_experiment(None, *settings, *overrides))
        return {finding.key: finding.problem for finding in found}

    assert refused() == {}
    assert (
        "has no model 'Qwen/Qwen3-8B'"
        in refused("backend.base_model=Qwen/Qwen3-8B")["policy.model"]
    )
    assert "must be between 1 and 8" in refused("train.lora_rank=64")["train.lora_rank"]


def test_a_model_that_the_service_has_not_ends_the_run_before_any_rollout(tmp_path, settings):
    experiment = rlpipe.load_experiment(None, *settings, "backend.base_model=other")
    with pytest.raises(rlpipe.RunError, match="has no model 'other'"):
        rlpipe.run(experiment, tmp_path / "run")
    assert not (tmp_path / "run" / "trajectories").exists()
