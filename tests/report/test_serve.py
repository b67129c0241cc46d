"""`rlpipe view` over a real socket."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import httpx
import pytest

from rlpipe.errors import ConfigError, RunError
from rlpipe.report.serve import open_server
from rlpipe.store import read_row

from . import made


@pytest.fixture
def root(tmp_path):
    made.agent_run(tmp_path / "outputs" / "a" / "one", steps=2, held_out=4)
    made.agent_run(tmp_path / "outputs" / "a" / "two", "seed=4", steps=1, held_out=4)
    (tmp_path / "outputs" / "secret.txt").write_text("secret")
    return tmp_path / "outputs"


@pytest.fixture
def ask(root):
    """Asks a server of the folder."""
    server, address = open_server(root, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with httpx.Client(base_url=address, trust_env=False) as client:
        yield client.get
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_runs_of_a_folder(ask):
    table = ask("/runs.json").json()
    assert [run["id"] for run in table["runs"]] == ["a/one", "a/two"]
    assert table["settings"] == {"seed": [0, 4]}
    one = table["runs"][0]
    assert (one["status"], one["step"], one["seconds"]) == ("done", 2, 1230.0)
    assert one["before"]["step"] == 0
    assert one["after"]["step"] == 2
    assert one["results"]["val/pass_rate"] == one["after"]["value"]
    assert [step for step, _ in one["curves"]["train/reward"]] == [1, 2]


def test_a_run_and_its_trajectories(ask, root):
    assert "<title>one</title>" in ask("/run/a/one/").text
    shown = ask("/run/a/one/figures.json").json()
    assert shown["answers"]["tried"]["rollouts"] == 32
    assert shown["beside"] == ["two"]
    index = ask("/run/a/one/index.json").json()
    assert len(index["rollout"]) == 40
    at = index["second"][-1]
    asked = {"file": "step_2", "at": at}
    row = read_row(root / "a" / "one" / "trajectories" / "step_2.jsonl", at)
    body = ask("/run/a/one/trajectory.json", params=asked).json()
    assert body["rollout_id"] == row["rollout_id"] == index["rollout"][-1]
    made.add_tokenizer(root / "a" / "one")
    spoken = ask("/run/a/one/tokens.json", params=asked).json()
    assert spoken["1"] == " largest"


def test_a_spec_is_laid_beside_the_run_that_is_asked_for(ask):
    shown = ask("/run/a/one/figures.json", params={"against": "two"}).json()
    assert shown["against"]["settings"] == {"seed": ["4", "0"]}
    shown = ask("/run/a/one/figures.json", params={"against": "../../secret"}).json()
    assert shown["against"]["id"] == "two"


def test_what_has_not_changed_is_not_sent_again(ask, root):
    first = ask("/run/a/one/figures.json")
    tag = {"If-None-Match": first.headers["ETag"]}
    again = ask("/run/a/one/figures.json", headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    with (root / "a" / "one" / "metrics.jsonl").open("a") as out:
        out.write('{"step": 9, "train/reward": 1}\n')
    fresh = ask("/run/a/one/figures.json", headers=tag)
    assert fresh.json()["metrics"]["steps"] == [0, 1, 2, 9]


@pytest.mark.parametrize(
    "path",
    [
        *("/secret.txt", "/run/a/../secret.txt", "/run/..%2Fsecret.txt/", "/run/a/three/"),
        *("/run/a/one/manifest.json", "/run/a/one/config.yaml", "/run//", "/favicon.ico"),
        "/run/a/one/trajectory.json?file=..%2Fmetrics&at=0",
        "/run/a/one/trajectory.json?file=step_1&at=-1",
        "/run/a/one/trajectory.json?file=step_1&at=3",
        "/run/a/one/trajectory.json",
    ],
)
def test_nothing_else_is_served(ask, path):
    answer = ask(path)
    assert answer.status_code == 404
    assert "secret" not in answer.text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil:1"])
def test_a_name_that_points_here_is_refused(ask, host):
    assert ask("/runs.json", headers={"Host": host}).status_code == 403


def test_only_this_machine_is_answered(root):
    server, address = open_server(root / "a" / "one", 0)
    assert server.server_address[0] == "127.0.0.1"
    assert urlsplit(address).path == "/run/one/"
    server.server_close()


def test_a_folder_without_runs_is_one_sentence(tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        open_server(tmp_path)
    with pytest.raises(RunError, match="holds no run"):
        open_server(tmp_path / "nothing")


def test_a_port_that_is_taken_is_one_sentence(root):
    server, _ = open_server(root, 0)
    port = server.server_address[1]
    with server, pytest.raises(ConfigError, match=f"port {port} cannot be used"):
        open_server(root, port)


def test_a_run_that_is_removed_meanwhile_is_no_longer_there(ask, root):
    assert ask("/run/a/two/figures.json").status_code == 200
    for file in sorted((root / "a" / "two").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    assert ask("/run/a/two/figures.json").status_code == 404
    assert [run["id"] for run in ask("/runs.json").json()["runs"]] == ["a/one"]


def test_the_command_says_where_to_look_and_ends_quietly(root):
    command = [sys.executable, "-m", "rlpipe", "view", str(root), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as view:
        assert view.stdout is not None
        address = view.stdout.readline().split()[0]
        url = urlsplit(address)
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=20)
        connection.request("GET", "/runs.json", headers={"Accept-Encoding": "gzip"})
        assert connection.getresponse().status == 200
        connection.close()
        view.send_signal(signal.SIGINT)
        _, complaint = view.communicate(timeout=20)
    assert view.returncode == 130
    assert complaint == "rlpipe: interrupted\n"


def test_a_sweeps_job_that_was_never_started_is_listed(ask, root):
    (root / "sweep" / "0").mkdir(parents=True)
    noted = {"status": "invalid", "error": "train.steps: too few"}
    (root / "sweep" / "0" / "manifest.json").write_text(json.dumps(noted))
    last = ask("/runs.json").json()["runs"][-1]
    assert (last["id"], last["status"], last["after"]) == ("sweep/0", "invalid", None)
