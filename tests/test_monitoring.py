"""Sandboxes seen and ended from a process that did not start them."""

import asyncio
import time

import pytest

from rlpipe import monitoring
from rlpipe.errors import ConfigError, RunError, SandboxGone, SandboxUnavailable
from rlpipe.sandboxes._ledger import NAME, Ledger
from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes.base import SandboxSpec
from rlpipe.sandboxes.local import Local
from rlpipe.testing import FakeSandboxProvider, FakeSandboxSession

RUN = "2026-01-02_03-04-05-abcdef"


@pytest.fixture(autouse=True)
def in_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ledger_of(tmp_path, run=RUN, provider="local"):
    folder = tmp_path / "outputs" / "try" / run
    folder.mkdir(parents=True)
    return Ledger(folder / NAME, run=run, provider=provider, tags=("rlpipe", f"run:{run}"))


def kill(ledger):
    ledger._file.close()


@pytest.fixture
async def ask(capsys):
    async def ask(*args):
        await asyncio.to_thread(monitoring.main, args)
        return capsys.readouterr().out.splitlines()

    return ask


@pytest.fixture
async def pool(tmp_path):
    """A run that goes on, with real sandboxes."""
    ledger = ledger_of(tmp_path)
    provider = Local()
    async with provider.open() as session:
        pool = SandboxPool(
            session, provider.spec(), warm=0, max_live=8, max_starting=8, record=ledger.record
        )
        async with pool:
            yield pool
    ledger.close()


async def test_a_local_run_is_seen_from_outside(pool, ask):
    assert await ask("list") == ["running 0, pending 0, total 0"]
    async with pool.claim(tags=("step:3", "task:mbpp-7")) as box:
        await box.exec("true")
        head, row, total = await ask("list")
        assert head.split() == ["SANDBOX", "STATUS", "AGE", "STEP", "TASK", "PROVIDER", "RUN"]
        assert row.split() == [box.id, "running", row.split()[2], "3", "mbpp-7", "local", RUN]
        assert total == "running 1, pending 0, total 1"
        assert await ask("count", "--tag", "step:3") == [
            f"{RUN} (local): running 1, pending 0, total 1",
            "running 1, pending 0, total 1",
        ]
        for other in (["--tag", "step:4"], ["--run", "other"]):
            assert await ask("count", *other) == ["running 0, pending 0, total 0"]


async def test_stopping_ends_what_is_chosen_and_the_run_is_told(pool, ask):
    async with pool.claim(tags=("step:1",)) as first, pool.claim(tags=("step:2",)) as second:
        await second.exec("true")
        lost = asyncio.ensure_future(first.exec("setsid -f sleep 1001; sleep 1002"))
        await first.exec("true")
        assert await ask("stop", "--run", RUN, "--tag", "step:1") == ["stopped 1 of 1"]
        with pytest.raises(SandboxGone):
            await lost
        assert (await second.exec("true")).ok
        assert (await ask("count"))[-1] == "running 2, pending 0, total 2"


def test_stopping_everything_has_to_be_said():
    with pytest.raises(ConfigError, match="--run, --tag or --provider"):
        monitoring.main(["stop"])


def test_help_explains_itself(capsys):
    with pytest.raises(SystemExit) as left:
        monitoring.main(["--help"])
    assert left.value.code == 0
    assert "killed" in capsys.readouterr().out


async def test_one_that_is_being_started_is_pending(tmp_path, ask):
    ledger = ledger_of(tmp_path)
    ledger.record("asked", number=0)
    _, row, total = await ask("list")
    assert row.split()[:2] == ["-", "pending"]
    assert total == "running 0, pending 1, total 1"
    assert await ask("stop", "--run", RUN) == ["stopped 0 of 0"]
    kill(ledger)
    assert await ask("list") == ["running 0, pending 0, total 0"]


class Remote(FakeSandboxSession):
    """Sandboxes that outlive their run and whoever looks at them, and are seen by everyone."""

    async def remove(self, id):
        (sandbox,) = (one for one in self.sandboxes if one.id == id)
        await sandbox.stop()
        return True

    async def close(self):
        pass


@pytest.fixture
def remote(monkeypatch):
    session = Remote()

    class Provider(FakeSandboxProvider):
        @classmethod
        def model_validate(cls, options):
            return FakeSandboxProvider.of(session)

    monkeypatch.setattr("rlpipe.monitoring.lookup", lambda package, kind: Provider)
    return session


async def test_what_a_killed_run_left_with_a_provider_is_seen_and_ended(tmp_path, remote, ask):
    ledger = ledger_of(tmp_path, provider="fake")
    known, unrecorded, gone = [
        await remote.start(SandboxSpec(tags=("rlpipe", f"run:{RUN}"))) for _ in range(3)
    ]
    for number, sandbox in enumerate((known, gone)):
        ledger.record("asked", number=number)
        ledger.record("started", number=number, id=sandbox.id, process=None)
    ledger.record("claimed", id=known.id, tags=("step:9",))
    await gone.stop()
    kill(ledger)
    rows = [row.split() for row in (await ask("list"))[1:-1]]
    assert [(row[0], row[3]) for row in rows] == [(known.id, "9"), (unrecorded.id, "-")]
    assert await ask("stop", "--run", RUN) == ["stopped 2 of 2"]
    assert remote.running == []


async def test_sandboxes_of_runs_elsewhere_are_seen_by_their_provider(remote, ask):
    await remote.start(SandboxSpec(tags=("rlpipe", "run:elsewhere", "env:prod")))
    await remote.start(SandboxSpec(tags=("someone-else",)))
    assert await ask("count") == ["running 0, pending 0, total 0"]
    assert await ask("count", "--provider", "fake", "--tag", "env:prod") == [
        "? (fake): running 1, pending 0, total 1",
        "running 1, pending 0, total 1",
    ]


async def test_a_provider_out_of_reach_is_named(tmp_path, remote, ask, capsys):
    async def away(**asked):
        raise SandboxUnavailable("no route")

    ledger = ledger_of(tmp_path, provider="fake")
    sandbox = await remote.start(SandboxSpec(tags=("rlpipe", f"run:{RUN}")))
    ledger.record("asked", number=0)
    ledger.record("started", number=0, id=sandbox.id, process=None)
    remote.list = away
    await asyncio.to_thread(monitoring.main, ["count"])
    out, err = capsys.readouterr()
    assert out.endswith("running 1, pending 0, total 1\n")
    assert err == "rlpipe: fake could not be asked: no route\n"
    remote.remove = lambda id: away()
    with pytest.raises(RunError, match=sandbox.id):
        await asyncio.to_thread(monitoring.main, ["stop", "--run", RUN])


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3600 * 30 + 62, "30:01:02"), (-5, "0:00")]
)
def test_age(seconds, text):
    assert monitoring._age(seconds) == text


async def test_a_thousand_runs_that_ended_well_cost_little(tmp_path, ask):
    for number in range(1000):
        ledger_of(tmp_path, run=f"{number}").close()
    began = time.process_time()
    assert await ask("list") == ["running 0, pending 0, total 0"]
    assert time.process_time() - began < 1
