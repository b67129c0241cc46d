"""The oldest SDK that rlpipe takes, on the server as its makers wrote it."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="makes a model with the trl extra")

from rlpipe.store import read_metrics
from tests.tinker import task

ROOT = Path(__file__).parents[2]
SAMPLED = ("train/reward", "rollout/turns", "train/tokens", "train/rows")
COMPUTED = ("train/loss", "train/entropy", "train/grad_norm")


def start(python, *words):
    """`rlpipe` with the Python and the SDK of the server's environment."""
    return subprocess.Popen(
        [str(python), "-m", "rlpipe", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process):
    said, _ = process.communicate()
    assert process.returncode == 0, said


def saved(run, step):
    return json.loads((run / f"checkpoints/step_{step}/tinker.json").read_text())


def test_a_run_that_was_interrupted_goes_on_at_its_step_with_its_optimizer(
    tmp_path, server_python, tiny_model, unmodified_server, tasks
):
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    shared = task.overrides(tasks, tiny_model, unmodified_server)
    shared += ("dataset.held_out=0", "train.steps=2", "train.save_every=1")
    finished(start(server_python, *shared, f"hydra.run.dir={whole}"))
    interrupted, seen = start(server_python, *shared, f"hydra.run.dir={halved}"), []
    for line in interrupted.stdout:
        seen.append(line)
        if line.startswith("step 1/2"):
            interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait() != 0, seen
    assert json.loads((halved / "manifest.json").read_text())["status"] == "interrupted", seen
    first = saved(halved, 1)
    finished(start(server_python, "resume", str(halved)))

    expected, figures = read_metrics(whole), read_metrics(halved)
    assert [step for step in sorted(figures) if "train/reward" in figures[step]] == [1, 2]
    for step in (1, 2):
        for name in SAMPLED:
            assert figures[step][name] == expected[step][name], name
        for name in COMPUTED:
            near = pytest.approx(expected[step][name], rel=1e-3, abs=1e-6)
            assert figures[step][name] == near, name
        assert 0 < figures[step]["train/logprob_diff_max"] < 1e-3
    second = saved(halved, 2)
    assert (first["step"], second["step"], first["lora_rank"]) == (1, 2, 8)
    assert first["state"].startswith("tinker://")
    assert len({first["state"], second["state"], second["sampler"]}) == 3
