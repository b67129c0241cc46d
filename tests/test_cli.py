"""The command line as a user sees it, in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlpipe.store import read_metrics

COLLECT = [
    "mode=collect",
    "policy=reference",
    "dataset=arithmetic",
    "reward=expected_output",
    "tools=[]",
    "dataset.tasks=20",
    "dataset.held_out=4",
]
"""A real run of 20 tasks in real sandboxes, without any model."""


def rlpipe(*args, cwd, env=None):
    return subprocess.run(
        [sys.executable, "-m", "rlpipe", *args],
        cwd=cwd,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=300,
    )


def run_folders(root):
    return sorted(path.parent for path in Path(root).rglob("manifest.json"))


def test_help_lists_every_choice_and_recipe(tmp_path):
    done = rlpipe("--help", cwd=tmp_path)
    assert done.returncode == 0
    for word in ("quickstart", "backend", "tests_pass", "execute_code", "dry_run=true"):
        assert word in done.stdout


def test_a_typo_is_one_line_and_exit_status_2(tmp_path):
    done = rlpipe("+recipe=quickstart", "train.leraning_rate=1e-5", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "rlpipe: train.leraning_rate: no such option of train 'grpo'; "
        "did you mean 'learning_rate'? [command line]\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_a_path_leaves_no_folder(tmp_path):
    done = rlpipe("+recipe=quickstart", "name=a/b", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_written_into_the_folder_of_another(tmp_path):
    (tmp_path / "old" / ".hydra").mkdir(parents=True)
    (tmp_path / "old" / "manifest.json").write_text("{}")
    done = rlpipe(*COLLECT, "hydra.run.dir=old", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("rlpipe: hydra.run.dir: old holds a run already")
    assert list((tmp_path / "old" / ".hydra").iterdir()) == []


def test_flags_may_stand_between_overrides(tmp_path):
    done = rlpipe("+recipe=quickstart", "--cfg", "job", "seed=7", cwd=tmp_path)
    assert "seed: 7" in done.stdout, done.stderr
    wrong = rlpipe("+recipe=quickstart", "--cfg", "jib", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_a_dry_run_needs_no_key_and_says_which_the_run_does(tmp_path):
    spec = ("mode=collect", "collect.who=teacher", "teacher=openai", *COLLECT[2:])
    bare = {"OPENAI_API_KEY": ""}
    done = rlpipe(*spec, "dry_run=true", cwd=tmp_path, env=bare)
    assert done.returncode == 0, done.stderr
    said = "set the environment variable OPENAI_API_KEY (teacher.api_key_env)"
    assert done.stdout.splitlines()[-1] == f"  before it can run here: {said}"
    for real in ("dry_run=false", "dry_run=online"):
        done = rlpipe(*spec, real, cwd=tmp_path, env=bare)
        assert done.returncode == 2
        assert "teacher.api_key_env: set the environment variable" in done.stderr


def test_a_dry_run_of_a_sweep_tells_of_every_bad_job(tmp_path):
    done = rlpipe("-m", "+recipe=quickstart", "train.steps=0,-1,5", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.count(": valid") == 1
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.endswith(":")] == [
        "rlpipe: train.steps=0:",
        "rlpipe: train.steps=-1:",
    ]
    assert len(lines) == 4
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_a_sweep_says_why_a_job_is_invalid(tmp_path):
    done = rlpipe("-m", *COLLECT, "name=sweep", "collect.group_size=0,1", cwd=tmp_path)
    assert done.returncode == 2
    folder = next((tmp_path / "outputs" / "sweep").iterdir())
    noted = json.loads((folder / "0" / "manifest.json").read_text())
    assert noted["status"] == "invalid"
    assert noted["error"].startswith("collect.group_size: ")
    assert "invalid" in done.stdout
    assert json.loads((folder / "1" / "manifest.json").read_text())["status"] == "done"


def test_a_dry_run_says_what_would_run_and_leaves_nothing(tmp_path):
    done = rlpipe("+recipe=quickstart", "dry_run=true", "train.steps=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "quickstart: valid" in done.stdout
    assert "sampled tokens" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", [1, -1])
def test_a_choice_on_the_command_line_beats_the_recipe(tmp_path, order):
    args = ["+recipe=quickstart", "reward=exit_code"][::order]
    done = rlpipe(*args, "dry_run=true", cwd=tmp_path)
    assert "reward=exit_code" in done.stdout


def test_collecting_scores_every_task_and_writes_the_run_folder(tmp_path):
    done = rlpipe(*COLLECT, "name=try", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20/20 tasks solved" in done.stdout
    (folder,) = run_folders(tmp_path / "outputs" / "try")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert manifest["dataset"]["tasks"] == 20
    assert manifest["isolation"] == "namespace"
    assert {f"run:{folder.name}", "project:try", "env:dev"} < set(manifest["sandbox_tags"])
    totals = manifest["sandbox_totals"]
    assert totals["cwsandbox/executions"] == 20
    assert totals["cwsandbox/exec_failures"] == 0
    assert read_metrics(folder)[0]["cwsandbox/total/executions"] == 20
    ledger = [json.loads(line) for line in (folder / "sandboxes.jsonl").read_text().splitlines()]
    ids = [
        {row["id"] for row in ledger if row["event"] == event} for event in ("started", "stopped")
    ]
    assert ids[0] == ids[1]
    assert len(ids[0]) >= 20
    assert (ledger[0]["event"], ledger[-1]["event"]) == ("opened", "closed")
    rows = [
        json.loads(row) for row in (folder / "trajectories/collect.jsonl").read_text().splitlines()
    ]
    assert [row["reward"] for row in rows] == [1.0] * 20
    assert all(row["sandbox"]["executions"] == row["sandbox"]["completed_ok"] == 1 for row in rows)
    assert all(row["sandbox"]["id"] in ids[0] for row in rows)
    assert (folder / ".hydra" / "overrides.yaml").exists()
    assert not (folder / "failures.jsonl").exists()


def test_two_equal_launches_at_once_get_two_folders(tmp_path):
    command = [sys.executable, "-m", "rlpipe", *COLLECT, "name=twin"]
    twins = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [twin.wait(timeout=120) for twin in twins] == [0, 0]
    folders = run_folders(tmp_path)
    assert len(folders) == 2
    for folder in folders:
        assert len((folder / "trajectories/collect.jsonl").read_text().splitlines()) == 20


def test_a_sweep_runs_every_job_and_one_failure_leaves_the_others(tmp_path):
    done = rlpipe(
        "policy.mistakes=0,1",
        "-m",
        *COLLECT,
        "name=sweep",
        "rollout.timeout=0.001,60",
        cwd=tmp_path,
    )
    assert done.returncode == 1
    folders = run_folders(tmp_path / "outputs" / "sweep")
    status = [json.loads((f / "manifest.json").read_text())["status"] for f in folders]
    assert status == ["failed", "done", "failed", "done"]
    assert "rollout.timeout=60" in done.stdout
    assert "all 20 rollouts" in (folders[0] / "rlpipe.log").read_text()


def test_a_dry_run_checks_a_sweep_and_leaves_nothing(tmp_path):
    done = rlpipe("-m", *COLLECT, "seed=0,1", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": valid") == 2
    assert list(tmp_path.iterdir()) == []


def test_the_list_shows_options_defaults_and_docs(tmp_path):
    done = rlpipe("list", "rewards", cwd=tmp_path)
    assert "expected_output: 1 when the answer's code exits" in done.stdout
    assert "strip: bool = true" in done.stdout
    assert rlpipe("list", "reward", cwd=tmp_path).stdout == done.stdout
    wrong = rlpipe("list", "rewardz", cwd=tmp_path)
    assert (wrong.returncode, "did you mean 'rewards'" in wrong.stderr) == (2, True)


def test_verify_and_rescore_say_what_they_found(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    row = {
        "id": "a",
        "prompt": "f",
        "tests": ["assert f(1) == 2"],
        "hidden_tests": ["assert f(2) == 4"],
    }
    tasks.write_text(json.dumps(row | {"reference": "def f(x): return 2 * x"}))
    data = ["dataset=jsonl", f"dataset.path={tasks}"]
    done = rlpipe("verify", *data, "reward=tests_pass", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1/1 references pass, 0 cheats pass\n")
    assert rlpipe("verify", *data, "reward=exit_code", cwd=tmp_path).returncode == 1

    rlpipe("mode=collect", "policy=reference", *data, "dataset.held_out=0", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    done = rlpipe("rescore", str(folder), "reward=tests_fraction", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 judged, 0 changed, 0 masked; mean reward 1.000 of 1 -> 1.000 of 1" in done.stdout
    wrong = rlpipe("rescore", "--fast", str(folder), cwd=tmp_path)
    assert (wrong.returncode, "no such flag: --fast" in wrong.stderr) == (2, True)


def test_the_reward_demo_prints_progress_and_a_summary(tmp_path):
    done = rlpipe("+recipe=reward_demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    progress = [line for line in lines if line.startswith("  [")]
    assert [line[:7] for line in progress] == [f"  [{n}/5]" for n in range(1, 6)]
    assert {line[8:] for line in progress} == {
        "problem 0 (slow-sum): pass",
        "problem 1 (string-ops): pass",
        "problem 2 (delayed-error): fail",
        "problem 3 (syntax-error): fail",
        "problem 4 (slow-list): pass",
    }
    assert "string-ops" in progress[0] + progress[1]  # the quick ones end first
    summary = lines.index("summary, in the original order:")
    assert lines[summary + 1 : summary + 7] == [
        "  problem 0 (slow-sum): reward 1.0, pass",
        "  problem 1 (string-ops): reward 1.0, pass",
        "  problem 2 (delayed-error): reward 0.0, fail",
        "  problem 3 (syntax-error): reward 0.0, fail",
        "  problem 4 (slow-list): reward 1.0, pass",
        "total reward 3.0/5, pass rate 60 % (3/5)",
    ]


def test_a_bug_keeps_its_traceback(tmp_path):
    code = "raise ZeroDivisionError('a bug in a plugin')"
    (tmp_path / "sitecustomize.py").write_text(
        "import rlpipe.datasets.arithmetic as a\n"
        f"def load(self, seed): {code}\n"
        "a.Arithmetic.load = load\n"
    )
    done = rlpipe(*COLLECT, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "a bug in a plugin" in done.stderr


def test_completion_is_hydras_own(tmp_path):
    env = {"COMP_LINE": "rlpipe +recipe=quick", "COMP_POINT": "21"}
    done = rlpipe("-sc", "query=bash", cwd=tmp_path, env=env)
    assert done.stdout.strip() == "+recipe=quickstart"


ENDLESS = [
    *COLLECT,
    "policy=scripted",
    "policy.turns=[{content: hi, delay: 600}]",
    "rollout.timeout=900",
]


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("collecting", signal.SIGINT),
        ("collecting", signal.SIGTERM),
        ("training", signal.SIGINT),
    ],
)
def test_an_interrupt_ends_the_run_with_130_and_leaves_no_sandbox(tmp_path, when, number):
    endless = {
        "collecting": ENDLESS,
        "training": ["+recipe=quickstart", "train.warmup_steps=0", "train.steps=500"],
    }
    args = [sys.executable, "-m", "rlpipe", *endless[when]]
    if when == "training":
        pytest.importorskip("trl", reason="needs the trl extra")
    run = subprocess.Popen(
        args, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if when == "training":
        next(line for line in run.stdout if "step 1/500" in line)
    else:
        _await_manifest(tmp_path, "isolation")  # written once sandboxes can be started
    children = _descendants(run.pid)
    run.send_signal(number)
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == 130
    assert stderr.strip().splitlines()[-1] == "rlpipe: interrupted"
    (folder,) = run_folders(tmp_path)
    assert json.loads((folder / "manifest.json").read_text())["status"] == "interrupted"
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_a_second_interrupt_does_not_wait_and_says_how_to_clean_up(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import asyncio, rlpipe.sandboxes._local as local\n"
        "async def close(self):\n"
        "    print('closing', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "local.LocalSession.close = close\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-m", "rlpipe", *ENDLESS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _await_manifest(tmp_path, "isolation")
    run.send_signal(signal.SIGINT)
    next(line for line in run.stdout if line == "closing\n")
    run.send_signal(signal.SIGINT)
    _, stderr = run.communicate(timeout=20)
    (folder,) = run_folders(tmp_path)
    assert run.returncode == 130
    assert f"rlpipe sandboxes stop --run {folder.name} --root" in stderr
    assert json.loads((folder / "manifest.json").read_text())["status"] == "interrupted"


def _await_manifest(root, key):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if any(key in (f / "manifest.json").read_text() for f in run_folders(root)):
            return
        time.sleep(0.01)
    raise AssertionError(f"no manifest with {key!r}")


def _descendants(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children] + [d for c in children for d in _descendants(c)]
