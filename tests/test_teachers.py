"""A teacher behind a real server on loopback, from the spec to the figures of the run."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, ClassVar

import pytest

import rlpipe
from rlpipe.store import read_trajectories

SAID = ("<answer>print(1)</answer>", "<answer>1 / 0</answer>")
"""What the teacher answers in turn: one that ends well, and one that does not."""


def policys(figures):
    """The tokens of the step that count as the policy's."""
    return [n for n in figures if n.startswith("tokens/") and not n.startswith("tokens/total/")]


class Service(BaseHTTPRequestHandler):
    """Answers on both APIs, thinks before it speaks, and counts its tokens."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    numbers: ClassVar[Iterator[int]] = count()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, body))
        said = SAID[next(self.numbers) % 2]
        answer = _response(said) if self.path.endswith("/responses") else _completion(said)
        sent = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: Any) -> None:
        pass


def _completion(said: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": said, "reasoning_content": "I wonder."}
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def _response(said: str) -> dict[str, Any]:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I wonder."}]}
    spoken = {"type": "message", "content": [{"type": "output_text", "text": said}]}
    usage = {
        "input_tokens": 20,
        "output_tokens": 7,
        "input_tokens_details": {"cached_tokens": 16},
    }
    return {"status": "completed", "output": [thought, spoken], "usage": usage}


@pytest.fixture
def url(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))  # the world's certificates are slow to read
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    Service.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


TASKS = ("dataset=arithmetic", "dataset.tasks=12", "reward=exit_code", "tools=[]")


def compatible(url):
    return ("teacher=compatible", f"teacher.base_url={url}", "teacher.model=m")


def test_teacher_openai_is_asked_on_the_responses_api(tmp_path, url):
    experiment = rlpipe.load_experiment(
        None,
        *TASKS,
        *("mode=collect", "collect.who=teacher", "collect.tasks=held_out", "dataset.held_out=4"),
        *("teacher=openai", f"teacher.base_url={url}"),
    )
    result = rlpipe.run(experiment, tmp_path / "run")
    assert [(path, body["model"]) for path, body in Service.asked] == [
        ("/v1/responses", "gpt-5.1-codex-mini")
    ] * 4
    figures = result.metrics[0]
    assert figures["collect/reward"] == 0.5
    assert figures["teacher/tokens/completion"] == 4 * 7
    assert figures["teacher/tokens/cached"] == 4 * 16
    assert not policys(figures)


def test_teacher_openai_has_the_chat_api_by_option(tmp_path, url):
    experiment = rlpipe.load_experiment(
        None,
        *TASKS,
        *("mode=eval", "evaluate.who=teacher", "dataset.held_out=2"),
        *("teacher=openai", f"teacher.base_url={url}", "teacher.api=chat"),
    )
    figures = rlpipe.run(experiment, tmp_path / "run").metrics[0]
    assert figures["teacher/tokens/prompt"] == 2 * 20
    assert "val/tokens/prompt" not in figures
    (path, body), _ = Service.asked
    assert path == "/v1/chat/completions"
    assert "max_completion_tokens" in body
    assert not {"temperature", "max_tokens"} & body.keys()


@pytest.mark.parametrize("kind", ["compatible", "openai"])
def test_a_policy_learns_from_a_served_teacher_and_their_tokens_are_counted_apart(
    tmp_path, url, kind
):
    pytest.importorskip("trl", reason="needs the trl extra")
    teacher = compatible(url) if kind == "compatible" else ("teacher=openai",)
    experiment = rlpipe.load_experiment(
        None,
        *TASKS,
        *(*teacher, f"teacher.base_url={url}", "train=teacher_grpo", "backend.threads=1"),
        *("policy=tiny", "policy.hidden_size=32", "policy.heads=2", "rollout.max_tokens=8"),
        *("train.steps=2", "train.groups_per_batch=1", "train.group_size=4", "dataset.held_out=2"),
    )
    assert rlpipe.check(experiment) == []
    result = rlpipe.run(experiment, tmp_path / "run")
    for step in (1, 2):
        figures = result.metrics[step]
        assert figures["teacher/reward"] == 0.5
        assert figures["train/rows"] == 4
        assert figures["teacher/tokens/prompt"] == 4 * 20
        assert figures["teacher/tokens/completion"] == 4 * 7
        assert not [
            name for name in figures if name.startswith("tokens/") and "/total/" not in name
        ]
        rows = list(read_trajectories(result.folder / f"trajectories/step_{step}.jsonl"))
        assert {row.messages[-1]["reasoning_content"] for row in rows} == {"I wonder."}
    assert result.metrics[0]["val/tokens/completion"] > 0
