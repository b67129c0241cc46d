"""Whole runs on CoreWeave's stand-in: with faults everywhere, and killed at any moment."""

import asyncio
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from rlpipe.collect import Collector
from rlpipe.policies.base import Actor
from rlpipe.rewards.expected_output import ExpectedOutput
from rlpipe.rollouts.agent import Agent
from rlpipe.sandboxes._ledger import unsettled
from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes._sweep import sweep_killed
from rlpipe.sandboxes.coreweave import CoreWeave
from rlpipe.tools.bash import Bash
from rlpipe.types import Task, Turn

pytest.importorskip("cwsandbox", reason="needs: pip install 'rlpipe[coreweave]'")

from tests.sandboxes.coreweave_server import provider_of

SPEC = CoreWeave(image="python:3.11").spec()


class Calculates(Actor):
    """Uses the shell, then answers: right, or with every fourth seed wrong."""

    name = "calculates"

    async def act(self, request):
        if len(request.turns) == 0:
            function = {"name": "bash", "arguments": '{"command": "echo $((2 + 2))"}'}
            call = {"id": "1", "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}, Turn()
        answer = WRONG if request.seed % 4 == 0 else RIGHT
        return {"role": "assistant", "content": answer}, Turn()


RIGHT, WRONG = "<answer>print(4)</answer>", "<answer>print(5)</answer>"
FOUR = Task(id="four", messages=({"role": "user", "content": "Print 4."},), expected_output="4")
FINAL = ("refused", "missing", "gone", "killed")
FAULTS = {
    "CreateSandbox": ("unavailable", "exhausted", "lost_reply", "refused"),
    "GetSandbox": ("unavailable", "exhausted"),
    "StreamExec": ("unavailable", "exhausted", "cut", *FINAL),
    "DeleteSandbox": ("unavailable", "exhausted", "lost_reply"),
}


def every_tenth():
    """Every tenth call of each method goes wrong, each time in another way."""
    calls = Counter()

    def fault(method):
        calls[method] += 1
        turn, rest = divmod(calls[method], 10)
        kinds = FAULTS.get(method)
        return kinds[turn % len(kinds)] if kinds and rest == 0 else None

    return fault


async def no_pause(seconds):
    await asyncio.sleep(0)


async def test_256_rollouts_with_a_tenth_of_all_calls_failing(service):
    service.fault = every_tenth()
    attempts = []
    sizes = {"warm": 0, "max_live": 48, "max_starting": 16}
    async with (
        provider_of(service, data_plane_mode="gateway").open() as session,
        SandboxPool(session, SPEC, **sizes) as pool,
    ):
        collector = Collector(
            Agent(concurrency=64, max_attempts=9),
            {"bash": Bash()},
            ExpectedOutput(),
            pool,
            seed=0,
            on_attempt=attempts.append,
            pause=no_pause,
        )
        groups = await collector.collect(Calculates(), [FOUR] * 32, phase="train", group_size=8)
    rollouts = [trajectory for group in groups for trajectory in group.trajectories]
    assert len(rollouts) == 256
    # An attempt is lost exactly where a sandbox of its own, the one that it worked in or the one
    # that it was judged in, or a start met a fault that is not absorbed.
    struck = {id: fault for method, fault, id in service.injected if method == "StreamExec"}
    refused = service.injected.count(("CreateSandbox", "refused", ""))
    lost = [one for one in attempts if one.failure]
    working = {one.sandbox.id for one in lost if one.sandbox and not one.failure.grading}
    judging = {one.sandbox.id for one in lost if one.sandbox and one.failure.grading}
    assert working - struck.keys() == set()
    assert judging & struck.keys() == set()  # the sandbox that was struck is the second one
    assert len(lost) == len(struck) + refused
    # Of those, the ones that another sandbox may not make good cost their rollout.
    final = [fault for fault in struck.values() if fault in FINAL]
    valid = [one for one in rollouts if not one.failure]
    assert len(valid) == 256 - len(final) - refused
    assert 200 < len(valid) < 250, len(valid)
    for one in rollouts:
        right = one.messages[-1]["content"] == RIGHT if one.messages else False
        assert one.reward == (None if one.failure else float(right))
    assert service.live == []


async def test_sandboxes_of_another_run_are_swept_and_removed(service):
    async with provider_of(service).open() as killed, provider_of(service).open() as later:
        tagged = [replace(SPEC, tags=("rlpipe", tag)) for tag in ("run:a", "run:a", "run:b")]
        _, _, kept = [await killed.start(spec) for spec in tagged]
        assert await later.sweep(["run:a"]) == 2
        assert [info.id for info in await later.list(status="running")] == [kept.id]
        assert await later.remove(kept.id)
        assert not await later.remove(kept.id)
        assert service.live == []


KILLED_AT_RANDOM = """
import asyncio, os, random, signal, sys, time
from pathlib import Path
from cwsandbox import Sandbox  # before the forks, each of which would take a second for it
from rlpipe.sandboxes._coreweave.session import CoreWeaveSession
from rlpipe.sandboxes._ledger import NAME, Ledger
from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes._tags import run_tag
from rlpipe.sandboxes.coreweave import CoreWeave

url, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

async def run(folder):
    provider = CoreWeave(base_url=url, image="x", tags=(run_tag(folder.name),))
    ledger = Ledger(folder / NAME, run=folder.name, provider="coreweave", tags=provider.tags)
    async with provider.open() as session:
        pool = SandboxPool(
            session, provider.spec(), warm=1, max_live=3, max_starting=2, record=ledger.record
        )
        async with pool:
            while True:
                async with pool.claim() as box:
                    await box.exec("true")

points = random.Random(first)
for number in range(first, first + count):
    folder = Path(f"runs/{number}")
    folder.mkdir(parents=True)
    runner = os.fork()
    if not runner:
        try:
            asyncio.run(run(folder))
        finally:
            os._exit(1)
    time.sleep(points.uniform(0, 1))
    os.kill(runner, signal.SIGKILL)
    os.waitpid(runner, 0)
"""


async def test_nothing_is_left_unswept_of_a_runner_that_is_killed_at_any_of_50_points(
    service, tmp_path
):
    swept = []
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    async with provider_of(service).open() as later:
        for first in range(0, 50, 10):
            words = [sys.executable, "-c", KILLED_AT_RANDOM, service.url, str(first), "10"]
            runner = await asyncio.create_subprocess_exec(*words, cwd=tmp_path, env=environment)
            assert await runner.wait() == 0
            # What was asked for in the last moment may only now be there.
            await asyncio.gather(*service._requests.values())
            swept += await sweep_killed(tmp_path / "runs", "coreweave", later)
            assert service.live == []
    assert len(list((tmp_path / "runs").iterdir())) == 50
    assert swept
    assert list(unsettled(tmp_path / "runs")) == []
