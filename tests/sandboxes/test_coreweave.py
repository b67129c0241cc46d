"""CoreWeave: the conformance suite through the SDK and a stand-in service, and every failure."""

import asyncio
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from rlpipe.collect import Collector
from rlpipe.errors import (
    SandboxAuthError,
    SandboxConfigError,
    SandboxFileError,
    SandboxGone,
    SandboxStartError,
    SandboxUnavailable,
)
from rlpipe.policies.base import Actor
from rlpipe.rewards.expected_output import ExpectedOutput
from rlpipe.rollouts.agent import Agent
from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes.coreweave import CoreWeave
from rlpipe.testing import SandboxConformance
from rlpipe.tools.bash import Bash
from rlpipe.types import Task, Turn

pytest.importorskip("cwsandbox", reason="needs: pip install 'rlpipe[coreweave]'")

from cwsandbox import exceptions as sdk

from rlpipe.sandboxes._coreweave.errors import file_error, translated
from tests.sandboxes.coreweave_server import StandIn

KEY = "test-key"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("CWSANDBOX_API_KEY", KEY)
    monkeypatch.delenv("CWSANDBOX_BASE_URL", raising=False)


@pytest.fixture
async def service():
    async with StandIn(KEY) as service:
        yield service


def provider_of(service, **options):
    return CoreWeave(base_url=service.url, image="python:3.11", **options)


@pytest.fixture
async def session(service):
    async with provider_of(service).open() as session:
        yield session


SPEC = CoreWeave(image="python:3.11").spec()


@pytest.fixture
async def box(session):
    async with await session.start(SPEC) as box:
        yield box


class TestConformance(SandboxConformance):
    spec = SPEC

    @pytest.fixture
    async def session(self, session):
        return session

    @pytest.fixture
    async def sandbox(self, box):
        return box
