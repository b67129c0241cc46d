"""Another distribution adds a reward, and a user's folder a recipe, without touching rlpipe."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parent / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the example plugin installed in it, as pip leaves it."""
    site = tmp_path_factory.mktemp("site")
    source = shutil.copytree(PLUGIN, tmp_path_factory.mktemp("source") / "plugin")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", site, source], check=True, timeout=120)
    return site


def rlpipe(installed, *args, cwd):
    return subprocess.run(
        [sys.executable, "-m", "rlpipe", *args],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_users_recipe_runs_with_a_plugins_reward(installed, tmp_path):
    shutil.copytree(PLUGIN / "workdir" / "recipes", tmp_path / "recipes")
    done = rlpipe(installed, "+recipe=short_answers", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("collect.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 6
    for row in rows:
        answer = row["messages"][-1]["content"]
        assert row["reward"] == pytest.approx(1 - len(answer) / 50)
        assert row["note"] == f"{len(answer)} characters"


def test_a_plugins_options_are_judged_like_any_other(installed, tmp_path):
    shutil.copytree(PLUGIN / "workdir" / "recipes", tmp_path / "recipes")
    done = rlpipe(installed, "+recipe=short_answers", "reward.longst=3", cwd=tmp_path)
    assert done.returncode == 2
    assert (
        "reward.longst: no such option of reward 'brevity'; did you mean 'longest'?" in done.stderr
    )


def test_a_plugins_kind_is_listed_and_one_that_does_not_load_is_named(installed, tmp_path):
    listed = rlpipe(installed, "list", "rewards", cwd=tmp_path).stdout
    assert "brevity: 1 for an empty answer" in listed
    assert "longest: int = 100" in listed
    done = rlpipe(installed, "reward.kind=broken", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 2
    assert "'broken' of rewards is installed (rlpipe_example.missing:Broken)" in done.stderr
    assert "Traceback" not in done.stderr


FRUGAL = (
    "+recipe=quickstart",
    "backend=frugal",
    "train.warmup_steps=0",
    "train.warmup_tasks=256",
    "train.warmup_learning_rate=null",
    "train.warmup_keep=passed",
    "dataset.tasks=40",
    "dataset.held_out=4",
    "train.steps=2",
)


def test_a_plugins_backend_takes_the_place_of_the_recipes(installed, tmp_path):
    done = rlpipe(installed, *FRUGAL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [(row["step"], row["train/groups"]) for row in rows if "train/groups" in row]
    assert steps == [(1, 8.0), (2, 8.0)]


def test_a_setting_that_the_backend_would_ignore_is_refused_with_what_it_honours(
    installed, tmp_path
):
    done = rlpipe(installed, *FRUGAL, "train.beta=0.1", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "rlpipe: train.beta: backend 'frugal' ignores it; it honours: eval_every, group_size, "
        "groups_per_batch, learning_rate, save_every, steps [command line]\n"
    )
