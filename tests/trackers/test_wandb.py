"""Read back with wandb's own reader of its transaction log."""

import json
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from rlpipe.config.compose import load_experiment
from rlpipe.fit import check
from rlpipe.trackers.base import Ending
from rlpipe.trackers.wandb import KEY, OLD_KEY, Wandb

from .conftest import files_with, tell, tracked_run

SECRET = "sk-TEST-" + "f0a1" * 10


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """No key, and nothing of the person's own that wandb reads or writes."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in (KEY, OLD_KEY, "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
            patch.delenv(name, raising=False)
        for name in ("CACHE", "CONFIG", "DATA", "ARTIFACT"):
            patch.setenv(f"WANDB_{name}_DIR", str(home / name))
        patch.setenv("HOME", str(home))
        patch.setenv("NETRC", str(home / ".netrc"))
        yield home


@pytest.fixture(scope="module")
def wandb():
    return pytest.importorskip("wandb", reason="needs the extra wandb")


def read(file):
    """The records of one run, by type."""
    command = shutil.which("wandb", path=Path(sys.executable).parent)
    done = subprocess.run(
        [command, "leet", "inspect", "--json", str(file)], capture_output=True, check=True
    )
    records = [json.loads(line) for line in done.stdout.splitlines()]
    found = {}
    for record in records:
        found.setdefault(record["type"], []).append(record)
    return found


def log_of(run):
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    return file


@pytest.fixture(scope="module")
def failed(wandb, tmp_path_factory):
    """A run that failed, and its records."""
    run = tracked_run(tmp_path_factory.mktemp("failed"))
    tell(Wandb(mode="offline", project="p", tags=("a",)), run, Ending("failed", 1, "RunError: no"))
    return run, read(log_of(run))


def test_figures_have_a_step_of_their_own_and_late_ones_are_there(failed):
    _, found = failed
    rows = [record["history"]["item"] for record in found["history"]]
    assert [(row["step"], row.get("train/reward")) for row in rows[:2]] == [(4, 0.25), (5, 0.5)]
    assert rows[0]["cwsandbox/executions"] == 12.0
    assert rows[1]["train/loss"] == "NaN"
    assert (rows[2]["step"], rows[2]["val/pass@1"]) == (4, 0.75)
    (general,) = [r["metric"] for r in found["metric"] if r["metric"].get("glob_name") == "*"]
    assert general["step_metric"] == "step"


def test_a_run_is_named_grouped_and_configured(failed):
    tracked, found = failed
    run = found["run"][0]["run"]
    assert (run["project"], run["run_group"], run["tags"]) == ("p", "sweep_1", ["a"])
    assert run["run_id"] == tracked.id
    assert run["display_name"] == f"maths {tracked.id}"
    assert run["config"]["update"]["train"] == {"steps": 5, "learning_rate": 1e-05}


def test_trajectories_are_a_table(failed):
    tracked, found = failed
    (file,) = tracked.folder.rglob("*.table.json")
    table = json.loads(file.read_text())
    assert [row[table["columns"].index("reward")] for row in table["data"]] == [1.0, None]
    row = found["history"][3]["history"]["item"]
    assert row["step"] == 5
    assert row["trajectories/train._type"] == "table-file"


def test_a_failed_job_is_marked_failed(failed):
    _, found = failed
    assert found["exit"][0]["exit"]["exit_code"] == 1
    summary = {k: v for r in found["summary"] for k, v in r["summary"]["update"].items()}
    assert (summary["status"], summary["ended"]) == ("failed", "RunError: no")


def test_a_resumed_run_keeps_its_id_wherever_its_folder_lies(wandb, tracked):
    tracked.keep("wandb", "first-id")
    tracking = Wandb(mode="offline").open(tracked)
    tracking.close(Ending("done"))
    found = read(log_of(tracked))
    assert found["run"][0]["run"]["run_id"] == "first-id"
    assert found["run"][0]["run"]["resume"]
    assert found["exit"][0]["exit"].get("exit_code", 0) == 0


def test_the_key_reaches_other_libraries_and_no_file(wandb, tracked, tmp_path, monkeypatch):
    import os

    monkeypatch.setenv(KEY, SECRET)
    monkeypatch.setattr(sys, "argv", ["rlpipe", f"policy.extra_body.key={SECRET}"])
    seen = []
    tracking = Wandb(mode="offline").open(tracked)
    seen.append(os.environ[OLD_KEY])
    tracking.log(1, {"train/reward": 0.5})
    tracking.close(Ending("done"))
    assert seen == [SECRET]
    assert OLD_KEY not in os.environ
    assert log_of(tracked).stat().st_size > 0
    assert files_with(tmp_path, SECRET) == []


class Refusing(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"errors": [{"message": "user is not logged in"}]}'
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_):
        pass


OPEN = """
import pathlib, sys
from rlpipe.trackers.base import TrackedRun
from rlpipe.trackers.wandb import Wandb
Wandb(mode="on").open(TrackedRun("n", "id", pathlib.Path(sys.argv[1]), {}))
"""


def test_a_refused_key_is_told_at_once(wandb, tmp_path, monkeypatch):
    """In a process of its own: wandb keeps the server that it first saw."""
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv(KEY, SECRET)
    command = [sys.executable, "-c", OPEN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    server.shutdown()
    assert done.returncode == 1
    assert "error 401" in done.stderr
    assert "user is not logged in" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert files_with(tmp_path, SECRET) == []


def chosen(*overrides):
    return load_experiment("quickstart", "tracker=[wandb]", *overrides).tracker["wandb"]


def test_wandb_login_is_a_key(home):
    file = home / ".netrc"
    file.write_text(f"machine api.wandb.ai login user password {SECRET}")
    assert chosen().resting() is None
    file.unlink()


@pytest.mark.parametrize(
    ("mode", "environment", "rests"),
    [
        (
            "auto",
            {},
            "off without a key (set FORGE_API_KEY or WANDB_API_KEY, or type: wandb login)",
        ),
        ("auto", {KEY: SECRET}, None),
        ("auto", {OLD_KEY: SECRET}, None),
        ("auto", {OLD_KEY: SECRET, "WANDB_MODE": "disabled"}, "off, as WANDB_MODE=disabled"),
        ("auto", {"WANDB_MODE": "offline"}, None),
        ("on", {}, None),
        ("off", {KEY: SECRET}, "off"),
    ],
)
def test_auto_is_on_where_there_is_a_key(mode, environment, rests, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert chosen(f"tracker.wandb.mode={mode}").resting() == rests


def test_on_without_a_key_is_wrong_before_the_run(wandb):
    experiment = load_experiment("quickstart", "tracker=[wandb]", "tracker.wandb.mode=on")
    assert [f"{f.key}: {f.problem}" for f in check(experiment)] == [
        "tracker.wandb.mode: set FORGE_API_KEY or WANDB_API_KEY, or type: wandb login"
    ]


@pytest.mark.parametrize(("said", "meant"), [(True, "on"), (False, "off"), ("offline", "offline")])
def test_yaml_may_take_on_and_off_for_truth_values(said, meant):
    assert Wandb(mode=said).mode == meant
