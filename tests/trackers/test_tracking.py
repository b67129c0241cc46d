"""Trackers as a run uses them: in order, told of the end, and never in its way."""

import asyncio
import json
import subprocess
import sys
import threading

import pytest

from rlpipe import tracking
from rlpipe.config.compose import load_experiment
from rlpipe.console import Console
from rlpipe.errors import RunError
from rlpipe.execution import open_execution
from rlpipe.report.live import Report
from rlpipe.runner import run
from rlpipe.store import RunFolder, read_metrics
from rlpipe.testing import FakeTracker
from rlpipe.trackers.base import COLUMNS, Ending, conversation, excerpt, sample
from rlpipe.types import Failure, Score, StopReason, Trajectory, TrajectoryGroup

SMALL = ("dataset.tasks=6", "dataset.held_out=2", "policy=reference", "mode=collect")


def experiment_with(*extra, **trackers):
    experiment = load_experiment("quickstart", *SMALL, *extra)
    return experiment.model_copy(update={"tracker": trackers})


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(load_experiment("quickstart", *SMALL), tmp_path / "run")


def manifest(path):
    return json.loads((path / "manifest.json").read_text())


def test_a_run_is_told_to_every_tracker(tmp_path):
    first, second = FakeTracker(), FakeTracker(trajectories=2)
    experiment = experiment_with("collect.group_size=2", a=first, b=second)
    result = run(experiment, tmp_path / "run", group="sweep_7")
    (told,), (other,) = first.opened, second.opened
    assert (told.run.name, told.run.group) == ("quickstart", "sweep_7")
    assert told.run.config["dataset"]["tasks"] == 6
    figures = {}
    for step, metrics in told.metrics:
        figures.setdefault(step, {}).update(metrics)
    assert figures == read_metrics(result.folder)
    assert figures[0]["cwsandbox/total/sandboxes_created"] >= 1
    ((step, phase, rows),) = told.shown
    assert (step, phase, len(rows), set(rows[0])) == (0, "collect", 8, set(COLUMNS))
    assert len({row["task"] for row in rows[:6]}) == 6  # a trajectory of each task comes first
    assert rows[0]["reward"] == 1.0
    assert len(other.shown[0][2]) == 2
    assert told.ending == other.ending == Ending("done")
    assert manifest(result.folder)["trackers"]["a"] == {"where": "memory", "failures": 0}
    assert manifest(result.folder)["sweep"] == "sweep_7"


async def test_figures_arrive_in_order_also_those_of_an_earlier_step(folder):
    tracker = FakeTracker()
    experiment = experiment_with(fake=tracker)
    async with open_execution(experiment, folder, Console(), Report(folder.path)) as execution:
        execution.log(5, {"train/reward": 0.5})
        execution.log(4, {"val/reward": 0.25})
    (told,) = tracker.opened
    assert told.metrics[:2] == [(5, {"train/reward": 0.5}), (4, {"val/reward": 0.25})]


def test_one_that_fails_midway_is_reported_once_and_ends_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "sk-TEST-1234567")

    def fails(call):
        if call in ("log", "show"):
            raise ConnectionError("no route with sk-TEST-1234567")

    broken, sound = FakeTracker.of(fails), FakeTracker()
    result = run(experiment_with(broken=broken, sound=sound), tmp_path / "run")
    assert result.last("collect/pass_rate") == 1.0
    assert broken.opened[0].ending == sound.opened[0].ending == Ending("done")
    assert len(sound.opened[0].metrics) == 2
    log = (result.folder / "rlpipe.log").read_text()
    assert log.count("Traceback") == 1
    assert "raise ConnectionError" in log
    said = capsys.readouterr().out
    assert said.count("warning: tracker broken: it failed, the run goes on") == 1
    noted = manifest(result.folder)["trackers"]
    assert noted["broken"]["failures"] == 3
    assert noted["broken"]["error"] == "ConnectionError: no route with [redacted]"
    assert noted["sound"]["failures"] == 0
    assert "sk-TEST" not in log + said


def test_one_that_cannot_open_ends_the_run_before_it_costs_anything(tmp_path):
    def fails(call):
        raise PermissionError("the key is refused")

    first = FakeTracker()
    experiment = experiment_with(first=first, second=FakeTracker.of(fails))
    with pytest.raises(RunError, match="tracker second cannot be opened: PermissionError: the key"):
        run(experiment, tmp_path / "run")
    assert first.opened[0].ending.status == "failed"
    assert not (tmp_path / "run" / "sandboxes.jsonl").exists()
    assert not (tmp_path / "run" / "trajectories").exists()
    assert manifest(tmp_path / "run")["status"] == "failed"


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (RuntimeError("broken"), Ending("failed", 1, "RuntimeError: broken")),
        (asyncio.CancelledError(), Ending("interrupted", 130)),
    ],
)
async def test_they_are_told_how_a_run_ended(error, ending, folder):
    tracker = FakeTracker()
    with pytest.raises(type(error)):
        async with open_execution(
            experiment_with(fake=tracker), folder, Console(), Report(folder.path)
        ):
            raise error
    assert tracker.opened[0].ending == ending


async def test_a_slow_one_holds_nothing_up_and_is_not_waited_for_for_ever(
    folder, capsys, monkeypatch
):
    monkeypatch.setattr(tracking, "PATIENCE", 0.1)
    release, begun = threading.Event(), threading.Event()

    def fails(call):
        if call == "log":
            begun.set()
            release.wait()

    slow, sound = FakeTracker.of(fails), FakeTracker()
    experiment = experiment_with(slow=slow, sound=sound)
    async with open_execution(experiment, folder, Console(), Report(folder.path)) as execution:
        execution.log(1, {"train/reward": 0.5})
        await asyncio.to_thread(begun.wait)
        execution.log(2, {"train/reward": 0.75})
    noted = manifest(folder.path)["trackers"]
    assert noted["slow"]["unsent"]
    assert "unsent" not in noted["sound"]
    assert [step for step, _ in sound.opened[0].metrics] == [1, 2, 2]
    assert "tracker slow: not all was sent within 0.1 s" in capsys.readouterr().out
    release.set()


def trajectory(index, **fields):
    facts = {"rollout_id": f"g-{index}", "group_id": "g", "task_id": "t", "index": index}
    return Trajectory.model_validate({**facts, "stop_reason": StopReason.FINAL_ANSWER, **fields})


def test_a_sample_takes_every_task_in_turn():
    groups = [
        TrajectoryGroup(
            group_id=group,
            task_id=group,
            trajectories=[
                trajectory(n, group_id=group, task_id=group, rollout_id=f"{group}-{n}")
                for n in range(size)
            ],
        )
        for group, size in (("a", 3), ("b", 1), ("c", 2))
    ]
    assert [t.rollout_id for t in sample(groups, 5)] == ["a-0", "b-0", "c-0", "a-1", "c-1"]
    assert len(sample(groups, 50)) == 6
    assert sample(groups, 0) == []


def test_an_excerpt_tells_a_failure_from_a_reward_of_nothing():
    wrong = excerpt(trajectory(0, score=Score(value=0.0)))
    lost = excerpt(
        trajectory(1, failure=Failure(boundary="sandbox", type="SandboxGone", message="gone"))
    )
    assert (wrong["reward"], wrong["passed"], wrong["failure"]) == (0.0, False, None)
    assert (lost["reward"], lost["passed"], lost["failure"]) == (None, None, "sandbox: SandboxGone")


def test_a_conversation_names_who_said_what_and_loses_its_middle():
    call = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": '{"c": 1}'}}
    said = conversation(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "exit=0"},
        ]
    )
    assert said == '[user]\ngo\n\n[assistant]\nbash({"c": 1})\n\n[tool]\nexit=0'
    long = conversation([{"role": "user", "content": "a" * 15_000 + "b" * 15_000}])
    assert long.startswith("[user]\na")
    assert long.endswith("b")
    assert "characters left out" in long
    assert len(long) < 20_100


def test_several_are_chosen_by_name_and_a_sweep_is_their_group(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    command = [sys.executable, "-m", "rlpipe", "-m", "+recipe=quickstart", *SMALL, "seed=1,2"]
    command += ["tracker=[wandb,tensorboard]", "tracker.wandb.mode=off"]
    command += [f"hydra.sweep.dir={tmp_path}/sweep_7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for job in ("0", "1"):
        noted = manifest(tmp_path / "sweep_7" / job)
        assert noted["sweep"] == "sweep_7"
        assert list(noted["trackers"]) == ["tensorboard"]  # the other rests
    assert "tracker wandb: off\n" in done.stdout
