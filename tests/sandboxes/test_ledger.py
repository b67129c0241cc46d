"""What is known of a run's sandboxes when the run itself can no longer tell."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlpipe
from rlpipe.errors import SandboxUnavailable
from rlpipe.sandboxes import _processes
from rlpipe.sandboxes._agent.system import processes
from rlpipe.sandboxes._ledger import NAME, Ledger, read, unsettled
from rlpipe.sandboxes._sweep import sweep_killed
from rlpipe.sandboxes.base import SandboxSpec
from rlpipe.sandboxes.local import Local
from rlpipe.testing import FakeSandboxProvider, FakeSandboxSession

TAGS = ("rlpipe", "run:r1")
ROOT = Path(rlpipe.__file__).parents[1]


@pytest.fixture
def ledger(tmp_path):
    return ledger_in(tmp_path / "experiment" / "r1")


def ledger_in(folder, run="r1", provider="fake"):
    folder.mkdir(parents=True)
    return Ledger(folder / NAME, run=run, provider=provider, tags=("rlpipe", f"run:{run}"))


def kill(ledger):
    """What is left when the process ends: the lock is gone, and nothing more is written."""
    ledger._file.close()


def fill(ledger):
    ledger.record("asked", number=0)
    ledger.record("started", number=0, id="a", process=None)
    ledger.record("claimed", id="a", tags=("step:3", "task:t"))
    ledger.record("asked", number=1)
    ledger.record("asked", number=2)
    ledger.record("failed", number=2)
    ledger.record("asked", number=3)
    ledger.record("started", number=3, id="b", process=None)
    ledger.record("stopped", id="b")


def test_a_reader_sees_what_lives_and_what_is_coming(ledger, tmp_path):
    fill(ledger)
    (account,) = unsettled(tmp_path)
    assert (account.run, account.provider, account.tags) == ("r1", "fake", TAGS)
    assert [(entry.id, entry.status, entry.tags) for entry in account.entries.values()] == [
        ("a", "running", (*TAGS, "step:3", "task:t")),
        ("", "pending", TAGS),
    ]
    assert account.alive


def test_each_start_is_written_with_provider_and_tags(ledger):
    fill(ledger)
    rows = [json.loads(line) for line in read(ledger_file(ledger)).file.read_text().splitlines()]
    started = next(row for row in rows if row["event"] == "started")
    assert (started["provider"], tuple(started["tags"])) == ("fake", TAGS)
    assert all(row["time"] > 0 for row in rows)


def ledger_file(ledger):
    return Path(ledger._file.name)


def test_a_closed_ledger_is_settled(ledger, tmp_path):
    fill(ledger)
    ledger.close()
    assert list(unsettled(tmp_path)) == []
    assert read(ledger_file(ledger)).entries == {}


def test_a_run_that_was_killed_is_told_from_one_that_lives(ledger, tmp_path):
    fill(ledger)
    kill(ledger)
    with ledger_file(ledger).open("a") as file:
        file.write('{"event": "sto')  # the end of what it could write
    (account,) = unsettled(tmp_path)
    assert not account.alive
    assert len(account.entries) == 2


def test_a_run_of_another_machine_may_be_alive(ledger, monkeypatch):
    kill(ledger)
    account = read(ledger_file(ledger))
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert account.alive


async def test_the_sandboxes_of_a_killed_run_are_swept_by_its_tag(ledger, tmp_path):
    session = FakeSandboxSession()
    left = [await session.start(SandboxSpec(tags=TAGS)) for _ in range(2)]
    other = await session.start(SandboxSpec(tags=("rlpipe", "run:r2")))
    by_id = {sandbox.id: sandbox for sandbox in session.sandboxes}

    async def remove(id):
        await by_id[id].stop()
        return True

    session.remove = remove
    living = ledger_in(tmp_path / "experiment" / "r2", run="r2")
    assert await sweep_killed(tmp_path, "fake", session) == []
    kill(ledger)
    assert await sweep_killed(tmp_path, "docker", session) == []
    (line,) = await sweep_killed(tmp_path, "fake", session)
    assert line == "ended 2 sandboxes that the killed run r1 had left"
    assert session.running == [other]
    assert {sandbox.status for sandbox in left} == {"stopped"}
    assert await sweep_killed(tmp_path, "fake", session) == []
    living.close()


async def test_a_killed_run_is_swept_where_its_own_options_say(ledger, tmp_path, monkeypatch):
    there = FakeSandboxSession()

    class Elsewhere(FakeSandboxProvider):
        place: str = "here"

        def session(self):
            assert self.place == "there"
            return there

    async def sweep(tags):
        return len(tags)

    there.sweep = sweep
    monkeypatch.setattr("rlpipe.sandboxes._sweep.lookup", lambda package, kind: Elsewhere)
    config = ledger_file(ledger).parent / "config.yaml"
    config.write_text("sandbox: {kind: fake, place: gone, no_such_option: 1}")
    kill(ledger)
    assert await sweep_killed(tmp_path, "fake", FakeSandboxSession()) == []
    assert len(list(unsettled(tmp_path))) == 1  # it could not be asked
    config.write_text("sandbox: {kind: fake, place: there}")
    (line,) = await sweep_killed(tmp_path, "fake", FakeSandboxSession())
    assert line.startswith("ended 1 sandboxes")


async def test_a_provider_out_of_reach_is_asked_again_the_next_time(ledger, tmp_path):
    class Away(FakeSandboxSession):
        async def sweep(self, tags):
            raise SandboxUnavailable("no route")

    kill(ledger)
    assert await sweep_killed(tmp_path, "fake", Away()) == []
    assert len(list(unsettled(tmp_path))) == 1


@pytest.mark.parametrize("isolation", ["bwrap", "landlock", "none"])
async def test_a_local_sandbox_is_ended_from_outside_with_all_that_it_started(isolation):
    async with Local(isolation=isolation).open() as session:
        box = await session.start(Local().spec())
        process = _processes.identity(box.process)
        await box.exec("setsid -f sleep 1001 >/dev/null 2>&1; sleep 1002 >/dev/null 2>&1 &")
        running = asyncio.ensure_future(box.exec("sleep 1003"))
        pid, started = process
        assert not _processes.end((pid, f"{started}0"))
        async with asyncio.timeout(10):
            while len(below := descendants(pid)) < 3:
                await box.exec("true")
        assert _processes.end(process)
        with pytest.raises(Exception, match="died"):
            await running
        assert not set(below) & processes().keys()
        await box.stop()
        assert not _processes.end(process)


def descendants(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children] + [d for c in children for d in descendants(c)]


KILLED_AT_RANDOM = """
import asyncio, ctypes, os, random, signal, sys, time
from pathlib import Path
from rlpipe.sandboxes._ledger import NAME, Ledger
from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes.local import Local

async def run(isolation, folder):
    provider = Local(isolation=isolation)
    ledger = Ledger(folder / NAME, run=folder.name, provider="local", tags=())
    async with provider.open() as session:
        pool = SandboxPool(
            session, provider.spec(), warm=2, max_live=4, max_starting=2, record=ledger.record
        )
        async with pool:
            while True:
                async with pool.claim(files={"a": "b"}) as box:
                    await box.exec("setsid -f sleep 1000 >/dev/null 2>&1")
                    await box.run_python("open('x', 'w').write('y')")

async def probe():
    async with Local().open() as session:
        await session.start(Local().spec())

asyncio.run(probe())
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # whatever is orphaned becomes a child of this process
points = random.Random(0)
for number in range(int(sys.argv[1])):
    folder = Path(f"runs/{number}")
    folder.mkdir(parents=True)
    runner = os.fork()
    if not runner:
        try:
            asyncio.run(run(sys.argv[2 + number % (len(sys.argv) - 2)], folder))
        finally:
            os._exit(1)
    time.sleep(points.uniform(0, 0.4))
    os.kill(runner, signal.SIGKILL)
signal.alarm(30)
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        break
"""


async def test_nothing_outlives_a_runner_that_is_killed_at_any_of_50_points(tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED_AT_RANDOM, "50", "bwrap", "landlock", "none"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (kept,) = temporary.iterdir()
    assert kept.name.startswith("rlpipe-agent-")
    accounts = list(unsettled(tmp_path / "runs"))
    assert not any(account.alive for account in accounts)
    assert any(account.entries for account in accounts)
    assert await sweep_killed(tmp_path / "runs", "local", FakeSandboxSession()) == []
    assert list(unsettled(tmp_path / "runs")) == []
