"""A secret of the environment reaches no tracker's files, whatever part of a run holds it."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from .conftest import files_with

SECRET = "sk-TEST-" + "0123456789abcdef" * 2
KINDS = [kind for kind in ("wandb", "tensorboard", "mlflow", "trackio") if find_spec(kind)]

SCRIPT = """
import os, sys
from rlpipe.cli import main
sys.argv[0] = "rlpipe"
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(not KINDS, reason="needs one of the extras wandb, tensorboard, mlflow, trackio")
def test_no_file_of_any_tracker_holds_a_secret(tmp_path, monkeypatch):
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "TRACKIO_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("FORGE_API_KEY", SECRET)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    overrides = [
        "+recipe=quickstart",
        *("mode=collect", "dataset.tasks=3", "dataset.held_out=1", "policy=scripted"),
        f"tracker=[{','.join(KINDS)}]",
        "policy.turns=['the key is ${oc.env:OPENAI_API_KEY}']",
        "name=a_${oc.env:OPENAI_API_KEY}",
        f"hydra.run.dir={tmp_path}/run",
    ]
    if "wandb" in KINDS:
        overrides += [
            "tracker.wandb.mode=offline",
            "tracker.wandb.tags=['${oc.env:OPENAI_API_KEY}']",
        ]
    if "mlflow" in KINDS:
        overrides.append(f"tracker.mlflow.tracking_uri=sqlite:///{tmp_path}/mlflow.db")
    command = [sys.executable, "-c", SCRIPT, *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    noted = json.loads((tmp_path / "run" / "manifest.json").read_text())["trackers"]
    assert {name: facts["failures"] for name, facts in noted.items()} == dict.fromkeys(KINDS, 0)
    found = [file.relative_to(tmp_path) for file in files_with(tmp_path, SECRET)]
    assert found == []
