"""What a run lends a backend, with a scripted policy and real sandboxes."""

import json
from collections import Counter

import pytest

from rlpipe import cli
from rlpipe.config.compose import load_experiment
from rlpipe.console import Console
from rlpipe.errors import ConfigError, RunError
from rlpipe.execution import open_execution
from rlpipe.report.live import Report
from rlpipe.runner import run
from rlpipe.store import RunFolder, read_metrics, read_trajectories
from rlpipe.testing import FakeTracker

SMALL = (
    "dataset.tasks=17",
    "dataset.held_out=5",
    "train.groups_per_batch=5",
    "train.group_size=2",
    "train.warmup_tasks=6",
    "policy=reference",
)


@pytest.fixture
async def execution(tmp_path, request):
    extra = getattr(request, "param", ())
    experiment = load_experiment("quickstart", *SMALL, *extra)
    folder = RunFolder.create(experiment, tmp_path / "run")
    async with open_execution(experiment, folder, Console(), Report(folder.path)) as opened:
        yield opened


async def test_every_epoch_takes_each_task_once_in_its_own_order(execution):
    ids = [task.id for step in range(1, 13) for task in execution.batch(step)]
    first, second = ids[:12], ids[12:24]
    everyone = {task.id for task in execution.splits.train}
    assert len(everyone) == 12
    assert set(first) == set(second) == everyone
    assert first != second
    assert ids == [task.id for step in range(1, 13) for task in execution.batch(step)]
    assert set(Counter(ids).values()) == {5}


async def test_held_out_tasks_are_never_trained_on(execution):
    held_out = {task.id for task in execution.splits.held_out}
    trained = {task.id for step in range(1, 13) for task in execution.batch(step)}
    assert len(held_out) == 5
    assert not held_out & trained


async def test_a_step_is_recorded_with_its_figures(execution):
    async with execution.experiment.policy.open() as actor:
        groups = await execution.collect(actor, execution.batch(1), 1)
    execution.finish_step(1, {"train/loss": 0.25})
    assert [len(group.trajectories) for group in groups] == [2] * 5
    figures = read_metrics(execution.folder.path)[1]
    assert figures["train/reward"] == 1.0
    assert figures["train/loss"] == 0.25
    assert figures["cwsandbox/sandboxes_created"] >= 10
    assert figures["time/step"] == pytest.approx(
        figures["time/rollouts"] + figures["time/training"]
    )
    rows = read_trajectories(execution.folder.path / "trajectories/step_1.jsonl")
    assert Counter(row.task_id for row in rows) == {t.id: 2 for t in execution.batch(1)}


@pytest.mark.parametrize("execution", [("evaluate.samples=3",)], indirect=True)
async def test_an_evaluation_is_greedy_and_sampled(execution):
    async with execution.experiment.policy.open() as actor:
        await execution.evaluate(actor, 7)
    (evaluation,) = execution.evaluations
    assert (evaluation.step, evaluation.greedy.value, evaluation.greedy.count) == (7, 1.0, 5)
    assert {k: rate.value for k, rate in evaluation.pass_at.items()} == {1: 1.0, 3: 1.0}
    figures = read_metrics(execution.folder.path)[7]
    assert (figures["val/pass@3"], figures["val/reward"]) == (1.0, 1.0)
    assert "val/tokens/completion" in figures
    rows = list(read_trajectories(execution.folder.path / "trajectories/eval_7.jsonl"))
    assert len(rows) == 5 + 15


async def test_a_teacher_makes_a_steps_groups(tmp_path, capsys):
    experiment = load_experiment(
        None,
        *("train=teacher_grpo", "dataset=arithmetic", "reward=expected_output", "tools=[]"),
        *("dataset.tasks=17", "dataset.held_out=5", "teacher=reference", "teacher.mistakes=0.5"),
        *("train.groups_per_batch=5", "train.group_size=4"),
    )
    folder = RunFolder.create(experiment, tmp_path / "run")
    async with open_execution(experiment, folder, Console(), Report(folder.path)) as opened:
        groups = await opened.job().teach(opened.batch(3), 3)
        opened.finish_step(3, {"train/loss": 0.25})
    rewards = [reward for group in groups for reward in group.rewards]
    assert [group.task_id for group in groups] == [task.id for task in opened.batch(3)]
    assert (len(rewards), set(rewards)) == (20, {0.0, 1.0})
    figures = read_metrics(folder.path)[3]
    assert figures["teacher/reward"] == sum(rewards) / 20
    assert "train/reward" not in figures
    rows = list(read_trajectories(folder.path / "trajectories/step_3.jsonl"))
    assert {(row.phase, row.policy) for row in rows} == {("teacher", "reference")}
    assert f"teacher's reward {sum(rewards) / 20:.3f}" in capsys.readouterr().out


async def test_a_run_without_a_teacher_lends_none(execution):
    execution.teacher = None
    with pytest.raises(ConfigError, match="teacher: needed, but none is chosen"):
        await execution.job().teach(execution.batch(1), 1)


@pytest.mark.parametrize("execution", [("teacher.mistakes=1.0",)], indirect=True)
async def test_demonstrations_that_are_all_kept_need_no_sandbox(execution):
    shown = await execution.demonstrate()
    assert len(shown) == 6
    assert {trajectory.score for trajectory in shown} == {None}
    assert {trajectory.failure for trajectory in shown} == {None}
    assert execution.collector.sandboxes.metrics()["cwsandbox/executions"] == 0


async def test_a_step_without_rollouts_shows_its_loss_and_only_its_own_seconds(execution, capsys):
    execution._step_began -= 1000.0  # the model was loaded meanwhile
    await execution.demonstrate()
    execution.finish_step(1, {"train/loss": 0.25})
    assert read_metrics(execution.folder.path)[1]["time/training"] < 100
    line = next(said for said in capsys.readouterr().out.splitlines() if "step 1/" in said)
    assert "| loss 0.2500 | training" in line
    assert "valid" not in line


async def test_a_step_begins_after_the_evaluation_before_it(execution):
    execution._step_began -= 1000.0
    async with execution.experiment.policy.open() as actor:
        await execution.evaluate(actor, 0)
    execution.finish_step(1, {"train/loss": 0.25})
    assert read_metrics(execution.folder.path)[1]["time/step"] < 100


@pytest.mark.parametrize("execution", [("train.warmup_keep=passed",)], indirect=True)
async def test_demonstrations_to_choose_from_are_scored(execution):
    shown = await execution.demonstrate()
    assert {trajectory.reward for trajectory in shown} <= {0.0, 1.0}
    figures = read_metrics(execution.folder.path)[0]
    assert "teacher/tokens/completion" in figures
    assert figures["teacher/pass_rate"] == sum(trajectory.reward for trajectory in shown) / len(
        shown
    )


async def test_the_manifest_says_what_the_data_was(execution):
    manifest = json.loads((execution.folder.path / "manifest.json").read_text())
    assert manifest["dataset"] == {
        "kind": "arithmetic",
        "revision": None,
        "fingerprint": manifest["dataset"]["fingerprint"],
        "tasks": 17,
        "train": 12,
        "held_out": 5,
    }
    assert len(manifest["dataset"]["fingerprint"]) == 16


@pytest.mark.parametrize(
    ("mode", "figure"), [("eval", "val/pass_rate"), ("collect", "collect/pass_rate")]
)
def test_a_teacher_is_evaluated_and_collected_from(mode, figure, tmp_path):
    section = {"eval": "evaluate", "collect": "collect"}[mode]
    experiment = load_experiment(
        *("quickstart", "dataset.tasks=6", "dataset.held_out=3", f"mode={mode}"),
        *(f"{section}.who=teacher", "teacher=reference"),
    )
    result = run(experiment, tmp_path / "run")
    assert result.last(figure) == 1.0
    (file,) = (result.folder / "trajectories").iterdir()
    assert {row.policy for row in read_trajectories(file)} == {experiment.teacher.name}


async def test_trackers_and_complaints_get_no_secret(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf-TEST-12345")
    tracker = FakeTracker()
    experiment = load_experiment("quickstart", *SMALL, "name=hf-TEST-12345").model_copy(
        update={"tracker": {"fake": tracker}}
    )
    folder = RunFolder.create(experiment, tmp_path / "run")
    async with open_execution(experiment, folder, Console(), Report(folder.path)):
        pass
    (told,) = tracker.opened
    assert "hf-TEST-12345" not in str(told.run)
    cli._complain(RunError("refused hf-TEST-12345"))
    assert capsys.readouterr().err == "rlpipe: refused [redacted]\n"
