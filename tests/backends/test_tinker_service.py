"""A service that is not there, and one that lacks what is asked for."""

import socket

import pytest

pytest.importorskip("tinker", reason="needs the tinker extra")

import rlpipe
from rlpipe.backends import _tinker_service
from rlpipe.backends.tinker import Tinker
from rlpipe.errors import Finding
from rlpipe.fit import check_online
from rlpipe.policies.trainable import Trainable
from rlpipe.train.grpo import Grpo

POLICY = Trainable(model="Qwen/Qwen3-8B")


@pytest.fixture
def nowhere(monkeypatch):
    """The address of nobody."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-1")
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_service_that_does_not_answer_is_one_line(nowhere):
    (found,) = Tinker(base_url=nowhere).check_fit_online(POLICY, Grpo())
    assert found.key == "backend.base_url"
    assert found.problem.startswith(f"the Tinker service at {nowhere} does not answer: ConnectErr")


@pytest.mark.parametrize(
    ("served", "words"),
    [
        ({"Qwen/Qwen3-4B": None}, "no model 'Qwen/Qwen3-8B'; did you mean 'Qwen/Qwen3-4B'?"),
        ({"b": None, "a": 9}, "no model 'Qwen/Qwen3-8B' (it has: a, b)"),
    ],
)
def test_a_model_that_is_not_served_is_named(monkeypatch, served, words):
    async def answer(backend):
        return served

    monkeypatch.setattr(_tinker_service, "_served", answer)
    (found,) = Tinker().check_fit_online(POLICY, None)
    assert (found.key, found.problem) == ("policy.model", f"the Tinker service has {words}")


@pytest.mark.parametrize(
    ("mode", "asked"), [("train", ["grpo"]), ("eval", [None]), ("collect", [None])]
)
def test_the_service_is_asked_about_training_where_something_is_trained(monkeypatch, mode, asked):
    seen = []

    def refuse(self, policy, train):
        seen.append(train and train.kind)
        return [Finding("policy.model", "no")]

    monkeypatch.setattr(Tinker, "check_fit_online", refuse)
    experiment = rlpipe.load_experiment(
        "mbpp_trl", "backend=tinker", f"mode={mode}", "policy.model=./nowhere"
    )
    assert [f.problem for f in check_online(experiment) if f.key == "policy.model"] == ["no"]
    assert seen == asked


def test_a_frozen_policy_asks_no_backend(monkeypatch):
    monkeypatch.setattr(Tinker, "check_fit_online", lambda *_: 1 / 0)
    experiment = rlpipe.load_experiment("reward_demo", "backend=tinker")
    assert check_online(experiment) == []
