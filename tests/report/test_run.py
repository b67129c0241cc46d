"""A real run keeps its report: while it goes on, at its end, and when it fails."""

import json
import re

import pytest

from rlpipe.config.compose import load_experiment
from rlpipe.console import Console
from rlpipe.errors import RunError
from rlpipe.execution import open_execution
from rlpipe.report import live
from rlpipe.report.live import Report
from rlpipe.runner import run
from rlpipe.store import RunFolder, read_trajectories

from . import made

SMALL = ("dataset.tasks=7", "dataset.held_out=3", "policy=reference")


def shown(folder):
    """What the report tells of the run's state, and its headlines."""
    text = (folder / "report.html").read_text()
    (status,) = re.findall(r'"status":"(\w+)","last_written"', text)
    return status, re.findall(r'"headline":"([^"]*)"', text)


def test_a_run_leaves_its_report(tmp_path):
    experiment = load_experiment("quickstart", *SMALL, "mode=collect")
    folder = run(experiment, tmp_path / "run").folder
    status, headlines = shown(folder)
    assert status == "done"
    assert headlines[0] == "Nothing was trained: 100.0\\u00a0% of 7 rollouts passed"
    assert headlines[1] == "7 rollouts: 100.0\\u00a0% final answer"


async def test_an_evaluation_is_in_the_report_while_the_run_goes_on(tmp_path):
    experiment = load_experiment("quickstart", *SMALL)
    folder = RunFolder.create(experiment, tmp_path / "run")
    folder.note(status="running", mode="train")
    async with open_execution(experiment, folder, Console(), Report(folder.path)) as execution:
        assert not (folder.path / "report.html").exists()
        async with experiment.policy.open() as actor:
            await execution.evaluate(actor, 0)
        status, headlines = shown(folder.path)
    assert status == "running"
    assert headlines[0] == "Not known yet: held-out pass rate 100.0\\u00a0% after step 0"


def test_a_run_that_failed_says_why(tmp_path, monkeypatch):
    experiment = load_experiment("quickstart", *SMALL, "mode=collect")
    kind = type(experiment.reward)

    async def broken(self, task, trajectory, sandbox):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(kind, "score", broken)
    with pytest.raises(RunError):
        run(experiment, tmp_path / "run")
    status, headlines = shown(tmp_path / "run")
    assert status == "failed"
    assert headlines[2] == "Machinery: lost 7 of 7 rollouts (100.0\\u00a0%). Model:\\u00a0no score."
    assert "RunError: all 7 rollouts" in (tmp_path / "run" / "report.html").read_text()


def test_a_fault_in_the_report_fails_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "figures", lambda data, against: 1 / 0)
    experiment = load_experiment("quickstart", *SMALL, "mode=collect")
    result = run(experiment, tmp_path / "run")
    assert result.last("collect/pass_rate") == 1.0
    log = (result.folder / "rlpipe.log").read_text()
    assert "the report could not be written; the run goes on" in log
    assert "ZeroDivisionError" in log


def test_the_report_has_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf-TEST-12345")
    experiment = load_experiment("quickstart", *SMALL, "mode=collect", "name=hf-TEST-12345")
    folder = run(experiment, tmp_path / "run").folder
    said = trajectory_of(folder).model_copy(
        update={"rollout_id": "told", "messages": ({"role": "user", "content": "hf-TEST-12345"},)}
    )
    RunFolder(folder).add_trajectory("collect", said)
    path = Report(folder).write()
    inside = json.dumps(made.blocks(path))
    assert '"told"' in inside
    for text in (path.read_text(), inside):
        assert "[redacted]" in text
        assert "hf-TEST-12345" not in text


def trajectory_of(folder):
    (file,) = (folder / "trajectories").iterdir()
    return next(iter(read_trajectories(file)))
