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


def start(python, folder, *overrides):
    """`rlpipe` with the Python and the SDK of the server's environment."""
    command = [str(python), "-m", "rlpipe", *overrides, f"hydra.run.dir={folder}"]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def checkpoint(run, step):
    return json.loads((run / f"checkpoints/step_{step}/tinker.json").read_text())


def test_a_run_that_was_interrupted_goes_on_at_its_step_with_its_optimizer(
    tmp_path, server_python, tiny_model, unmodified_server, tasks
):
    settings = task.overrides(tasks, tiny_model, unmodified_server)
    shared = (*settings, "dataset.held_out=0", "train.save_every=1")
    first, second = tmp_path / "first", tmp_path / "second"
    interrupted = start(server_python, first, *shared, "train.steps=9")
    seen = []
    for line in interrupted.stdout:
        seen.append(line)
        if line.startswith("step 2/9"):
            interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait() != 0, seen
    assert json.loads((first / "manifest.json").read_text())["status"] == "interrupted", seen

    resume = f"backend.resume_from={first}/checkpoints/step_1"
    resumed = start(server_python, second, *shared, "train.steps=2", resume)
    said, _ = resumed.communicate()
    assert resumed.returncode == 0, said
    before, after = read_metrics(first), read_metrics(second)
    assert sorted(step for step in after if "train/reward" in after[step]) == [2]
    for name in SAMPLED:
        assert after[2][name] == before[2][name], name
    for name in COMPUTED:
        assert after[2][name] == pytest.approx(before[2][name], rel=1e-3, abs=1e-6), name
    assert 0 < before[1]["train/logprob_diff_max"] < 1e-3
    one, other = checkpoint(first, 1), checkpoint(second, 2)
    assert (one["step"], other["step"], one["lora_rank"]) == (1, 2, 8)
    assert one["state"].startswith("tinker://")
    assert one["state"] != other["state"] != other["sampler"]
