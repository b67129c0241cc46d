"""Runs that are killed, interrupted or ended by an error, and go on."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the trl extra")

import rlpipe
from rlpipe import checkpoints, runner
from rlpipe.errors import ConfigError, RunError
from rlpipe.store import RunFolder, read_metrics, read_trajectories

SMALL = (
    "policy.hidden_size=32",
    "policy.layers=2",
    "policy.heads=2",
    "policy.intermediate_size=64",
    "dataset.tasks=14",
    "dataset.held_out=4",
    "train.groups_per_batch=2",
    "train.group_size=2",
    "train.steps=5",
    "train.save_every=2",
    "train.eval_every=2",
    "train.warmup_steps=2",
    "train.warmup_tasks=8",
    "train.warmup_batch_size=4",
    "train.learning_rate=1e-3",
    "rollout.max_tokens=8",
    "backend.threads=1",
    "reward=python",
    "reward.function=tests.reward_functions:length",
)


def experiment(*overrides):
    return rlpipe.load_experiment("quickstart", *SMALL, *overrides)


def start(folder, *overrides):
    command = [sys.executable, "-m", "rlpipe", "+recipe=quickstart", *SMALL, *overrides]
    return subprocess.Popen(
        [*command, f"hydra.run.dir={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(rlpipe.__file__).parents[1])},
    )


def until(run, beginning):
    """Read what a run prints up to a line."""
    lines = []
    for line in run.stdout:
        lines.append(line)
        if line.startswith(beginning):
            return
    pytest.fail(f"never came to {beginning!r}:\n{''.join(lines)}")


def figures(folder):
    """What depends neither on how busy the machine is nor on what was done twice."""
    timed = ("time/", "cwsandbox/", "tokens/total/")
    return {
        step: {name: value for name, value in row.items() if not name.startswith(timed)}
        for step, row in read_metrics(folder).items()
    }


def trained(folder):
    files = (folder / "trajectories").glob("step_*.jsonl")
    return Counter(t.task_id for file in files for t in read_trajectories(file))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    runner.run(experiment(), folder)
    return folder


@pytest.mark.parametrize("beta", ["0", "0.1"])
def test_a_killed_run_that_goes_on_ends_like_one_that_was_not(tmp_path, uninterrupted, beta):
    whole = uninterrupted
    if beta != "0":
        whole = runner.run(experiment(f"train.beta={beta}"), tmp_path / "whole").folder
    folder = tmp_path / "run"
    with start(folder, f"train.beta={beta}") as run:
        until(run, "step 3/5")
        run.send_signal(signal.SIGKILL)
    assert checkpoints.latest(folder).step == 2
    result = runner.resume(folder, experiment(f"train.beta={beta}"))
    assert figures(folder) == figures(whole)
    assert trained(folder) == trained(whole)
    assert set(trained(folder).values()) == {2}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["status"], manifest["resumed"][0]["step"]) == ("done", 2)
    (lost,) = read_metrics(folder / "superseded" / "1").values()
    total = "tokens/total/policy/completion"
    again = read_metrics(whole)[5][total] + lost["tokens/completion"]
    assert read_metrics(folder)[5][total] == again
    assert result.last("val/pass_rate") == figures(whole)[5]["val/pass_rate"]
    superseded = read_metrics(folder / "superseded" / "1")
    assert list(superseded) == [3]


def test_an_interrupted_run_keeps_what_it_learned_and_says_how_to_go_on(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    with start(folder) as run:
        until(run, "step 3/5")
        run.send_signal(signal.SIGINT)
        said = run.stdout.read()
    assert run.returncode == 130
    assert f"to go on: rlpipe resume {folder}" in said
    assert checkpoints.latest(folder).step in (3, 4)
    runner.resume(folder, experiment())
    assert figures(folder) == figures(uninterrupted)


def test_a_job_that_a_cluster_starts_again_goes_on_by_itself(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    with start(folder, "resume=auto") as run:
        until(run, "step 4/5")
        run.send_signal(signal.SIGKILL)
    with start(folder, "resume=auto") as run:
        assert "going on after step" in run.stdout.read()
    assert run.returncode == 0
    assert figures(folder) == figures(uninterrupted)


def test_lora_goes_on_as_if_it_had_not_stopped(tmp_path):
    lora = ("train.lora_rank=4", "train.warmup_steps=0")
    whole = runner.run(experiment(*lora), tmp_path / "whole").folder
    with start(tmp_path / "run", *lora) as run:
        until(run, "step 3/5")
        run.send_signal(signal.SIGKILL)
    runner.resume(tmp_path / "run", experiment(*lora))
    assert figures(tmp_path / "run") == figures(whole)


def test_fine_tuning_goes_on_without_asking_the_teacher_again(tmp_path):
    sft = ("train=sft", "train.steps=5", "train.groups_per_batch=4", "train.batch_size=4")
    common = [said for said in SMALL if "train." not in said and "reward" not in said]
    parts = ("dataset=arithmetic", "teacher=reference", "reward=expected_output", "tools=[]")
    sft = (*parts, *sft, *common, "train.save_every=2")
    spec = rlpipe.load_experiment(None, *sft)
    whole = runner.run(spec, tmp_path / "whole").folder
    command = [sys.executable, "-m", "rlpipe", *sft]
    command += [f"hydra.run.dir={tmp_path / 'run'}"]
    environment = os.environ | {"PYTHONPATH": str(Path(rlpipe.__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as run:
        until(run, "step 3/5")
        run.send_signal(signal.SIGKILL)
    asked = (tmp_path / "run" / "trajectories" / "teacher.jsonl").stat().st_mtime_ns
    runner.resume(tmp_path / "run", spec)
    assert (tmp_path / "run" / "trajectories" / "teacher.jsonl").stat().st_mtime_ns == asked
    assert figures(tmp_path / "run") == figures(whole)


def test_a_checkpoint_that_was_half_written_is_skipped(tmp_path):
    with checkpoints.saving(tmp_path, 2) as folder:
        (folder / "weights").write_bytes(b"two")
    with suppress(OSError), checkpoints.saving(tmp_path, 4) as folder:
        (folder / "weights").write_bytes(b"fo")
        raise OSError("the disk is full")
    (tmp_path / "checkpoints" / "step_6").mkdir()
    assert checkpoints.latest(tmp_path).step == 2
    assert (checkpoints.latest(tmp_path).folder / "weights").read_bytes() == b"two"
    with checkpoints.saving(tmp_path, 4) as folder:
        assert list(folder.iterdir()) == []
    assert [found.step for found in checkpoints.every(tmp_path)] == [2, 4]


@pytest.fixture
def stopped(tmp_path):
    """The folder of a run that ended by an error, without a checkpoint."""
    with RunFolder.create(experiment(), tmp_path / "run") as folder:
        folder.note(status="failed")
    return tmp_path / "run"


def test_a_change_of_what_the_run_means_is_refused(stopped):
    changed = experiment("train.group_size=4", "rollout.concurrency=3")
    with pytest.raises(ConfigError) as caught:
        runner.resume(stopped, changed)
    (finding,) = caught.value.findings
    assert str(finding) == (
        "train.group_size: changes what the run is about: 2 -> 4; leave it, or type force=true "
        "to go on with it"
    )


def test_a_folder_that_is_in_use_is_refused(stopped):
    with RunFolder.reopen(stopped), pytest.raises(RunError, match="goes on in another process"):
        runner.resume(stopped, experiment())


def test_a_secret_has_to_be_set_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")
    teacher = ("teacher=compatible", "teacher.model=m", "teacher.base_url=http://sk-0123456789.x")
    with RunFolder.create(experiment(*teacher), tmp_path / "run") as folder:
        folder.note(status="failed")
    teacher = (*teacher[:2], "teacher.base_url='http://[redacted].x'")
    with pytest.raises(ConfigError, match=r"teacher\.base_url: is a secret"):
        runner.resume(tmp_path / "run", experiment(*teacher))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "resume: name one run folder"),
        (["nowhere"], "nowhere holds no run"),
    ],
)
def test_what_is_no_run_is_one_line(args, said, tmp_path):
    command = [sys.executable, "-m", "rlpipe", "resume", *args]
    environment = os.environ | {"PYTHONPATH": str(Path(rlpipe.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(f"rlpipe: {said}")
    assert len(done.stderr.splitlines()) == 1
