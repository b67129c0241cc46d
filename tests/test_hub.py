import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("huggingface_hub", reason="needs the hub extra")

from rlpipe import hub
from rlpipe.datasets.mbpp import Mbpp
from rlpipe.policies.trainable import Trainable


class Hub(BaseHTTPRequestHandler):
    """Knows one model and one revision of one data set."""

    known = ("/api/models/org/model", "/api/datasets/org/data/revision/abc")

    def do_GET(self):
        found = self.path.split("?")[0] in self.known
        body = json.dumps({"id": "x", "sha": "abc"} if found else {"error": "no"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        if not found:
            self.send_header("X-Error-Code", "RevisionNotFound")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def endpoint(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("endpoint")
def test_what_is_there_is_no_problem():
    assert hub.problem("model", "org/model", None) is None
    assert Mbpp(repo="org/data", revision="abc").check_online() == []
    assert Trainable(model="org/model").check_online() == []


@pytest.mark.usefixtures("endpoint")
def test_a_missing_revision_is_named():
    (finding,) = Mbpp(repo="org/data", revision="xyz").check_online()
    assert finding.key == "revision"
    assert "'org/data' at xyz" in finding.problem
    (finding,) = Trainable(model="org/other").check_online()
    assert finding.key == "model"
    assert "'org/other'" in finding.problem


def test_a_hub_out_of_reach_is_a_problem_in_one_line(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    said = hub.problem("model", "org/model", None)
    assert said.startswith("the hub does not give 'org/model': ")
    assert "\n" not in said


def test_local_sources_ask_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert Trainable(model=str(tmp_path)).check_online() == []
    assert Mbpp(path=str(tmp_path)).check_online() == []
