"""What is wrong with a spec, found without and with the network."""

import asyncio
import subprocess
import sys

import pytest
from pydantic import ValidationError

from rlpipe.policies.openai import Openai

from .server import Reply, failing

SERVED = Reply({"object": "list", "data": [{"id": "gpt-5.1"}, {"id": "gpt-5.1-codex-mini"}]})


@pytest.mark.parametrize(
    ("options", "variable"),
    [
        ({}, "OPENAI_API_KEY"),
        ({"api_key_env": "OTHER_KEY"}, "OTHER_KEY"),
        ({"api_key_env": "OTHER_KEY", "base_url": "http://localhost:1/v1"}, "OTHER_KEY"),
    ],
)
def test_a_missing_key(monkeypatch, options, variable):
    policy = Openai(model="m", **options)
    (finding,) = policy.check()
    assert finding.key == "api_key_env"
    assert variable in finding.problem
    monkeypatch.setenv(variable, "sk-1")
    assert policy.check() == []


def test_a_local_server_needs_no_key():
    assert Openai(model="m", base_url="http://localhost:1/v1").check() == []


def test_log_probabilities_need_the_chat_api():
    policy = Openai(model="m", base_url="http://localhost:1/v1", api="responses", logprobs=True)
    assert [finding.key for finding in policy.check()] == ["logprobs"]


@pytest.mark.parametrize(
    "options",
    [{"base_url": "localhost:8000"}, {"api": "completions"}, {"timeout": 0}, {"max_retries": -1}],
)
def test_options_out_of_range(options):
    with pytest.raises(ValidationError):
        Openai(model="m", **options)


async def findings(server, **options):
    policy = Openai.model_validate({"model": "gpt-5.1", "base_url": server.url, **options})
    return await asyncio.to_thread(policy.check_online)


async def test_all_is_well(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    server.reply(SERVED)
    assert await findings(server) == []
    assert server.asked[0].path == "/v1/models"
    assert server.asked[0].headers["authorization"] == "Bearer sk-1"


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("gpt-5.1-codex-mimi", "did you mean 'gpt-5.1-codex-mini'?"),
        ("llama", "it serves: gpt-5.1, gpt-5.1-codex-mini"),
    ],
)
async def test_a_model_that_is_not_served(server, model, hint):
    server.reply(SERVED)
    (finding,) = await findings(server, model=model)
    assert finding.key == "model"
    assert model in finding.problem
    assert hint in finding.problem


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key(server, status):
    server.reply(failing(status))
    (finding,) = await findings(server)
    assert finding.key == "api_key_env"
    assert "OPENAI_API_KEY" in finding.problem


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "http://", "http://[/v1", "http://a:b"])
async def test_a_server_that_is_not_there(server, url):
    (finding,) = await findings(server, base_url=url)
    assert finding.key == "base_url"
    assert "does not answer" in finding.problem


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (failing(500), "HTTP 500"),
        (Reply(b"<html>"), "not answer like an OpenAI API"),
        (Reply({"data": [{"name": "m"}]}), "not answer like an OpenAI API"),
    ],
)
async def test_a_server_that_answers_strangely(server, reply, problem):
    server.reply(reply)
    (finding,) = await findings(server)
    assert finding.key == "base_url"
    assert problem in finding.problem


@pytest.mark.parametrize("status", [404, 405])
async def test_a_server_without_a_list_of_models_is_trusted(server, status):
    server.reply(failing(status))
    assert await findings(server) == []


def test_validating_a_spec_imports_no_client():
    code = (
        "import sys; from rlpipe.policies.openai import Openai; Openai(model='m').check();"
        "sys.exit(bool({'openai', 'httpx'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
