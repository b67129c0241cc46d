"""The pool hands out sandboxes before they exist, and loses none."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from rlpipe.errors import SandboxConfigError, SandboxFileError, SandboxGone, SandboxStartError
from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes.base import SandboxSpec
from rlpipe.sandboxes.local import Local
from rlpipe.testing import FakeSandbox, FakeSandboxSession, exited, script

SPEC = SandboxSpec(tags=("run",))


class Gate:
    """Holds starts back until they are let through, and remembers how many there are."""

    def __init__(self):
        self.open = asyncio.Semaphore(0)
        self.waiting = 0
        self.most = 0

    async def __call__(self, spec):
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self.open.acquire()
        finally:
            self.waiting -= 1

    def let(self, count):
        for _ in range(count):
            self.open.release()


def pool_of(session, *, warm=0, max_live=8, max_starting=4):
    return SandboxPool(session, SPEC, warm=warm, max_live=max_live, max_starting=max_starting)


async def settle():
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_claim_is_there_at_once_and_waits_when_used():
    gate = Gate()
    session = FakeSandboxSession(on_start=gate)
    async with pool_of(session) as pool, pool.claim() as front:
        use = asyncio.ensure_future(front.exec("true"))
        await settle()
        assert not front.started
        assert not use.done()
        gate.let(1)
        assert (await use).ok
        assert front.started
        assert front.id == session.sandboxes[0].id


async def test_the_start_does_not_wait_for_the_first_use():
    session = FakeSandboxSession()
    async with pool_of(session) as pool, pool.claim() as front:
        await settle()
        assert front.started
        assert session.calls == []


async def test_a_start_that_is_not_ahead_begins_with_the_first_use():
    session = FakeSandboxSession()
    async with pool_of(session) as pool:
        async with pool.claim(ahead=False):
            await settle()
        assert session.sandboxes == []
        async with pool.claim(ahead=False) as front:
            assert (await front.exec("true")).ok
            assert len(session.sandboxes) == 1


async def test_files_come_first_and_once():
    seen = []
    session = FakeSandboxSession(lambda call: seen.append(dict(call.sandbox.files)) or exited())
    async with pool_of(session) as pool, pool.claim(files={"a": "1", "b/c": "2"}) as front:
        await asyncio.gather(front.exec("x"), front.run_python("y"))
        await front.write_file("a", "mine")
        await front.exec("z")
    expected = {"a": b"1", "b/c": b"2"}
    assert seen == [expected, expected, expected | {"a": b"mine"}]


async def test_a_file_of_the_task_that_cannot_be_written_is_no_doing_of_the_agent():
    class Full(FakeSandbox):
        async def write_file(self, path, data):
            raise SandboxFileError(path, "io", "no space left")

    class Session(FakeSandboxSession):
        async def start(self, spec):
            return Full("full", spec, lambda call: exited())

    async with pool_of(Session()) as pool, pool.claim(files={"a": "1"}) as front:
        for use in (front.exec("x"), front.read_file("b")):
            with pytest.raises(SandboxStartError, match=r"own file .*: a: .*no space left"):
                await use


async def test_tags_are_recorded():
    session = FakeSandboxSession()
    async with pool_of(session) as pool, pool.claim(tags=("task-1",)) as front:
        await front.exec("x")
        assert front.spec.tags == ("run", "task-1")
        assert session.sandboxes[0].spec.tags == ("run",)


async def test_arguments_and_results_pass_unchanged():
    session = FakeSandboxSession(lambda call: exited("out", 3))
    async with pool_of(session) as pool, pool.claim() as front:
        result = await front.exec(
            ["a", "b"], cwd="c", env={"d": "e"}, stdin=b"f", timeout=1, max_output=2
        )
        await front.run_python("code", stdin=b"g", timeout=3, max_output=4)
    assert result == exited("out", 3)
    command, python = session.calls
    assert (command.command, command.cwd, command.env) == (("a", "b"), "c", {"d": "e"})
    assert (command.stdin, command.timeout, command.max_output) == (b"f", 1, 2)
    assert (python.code, python.stdin, python.timeout, python.max_output) == ("code", b"g", 3, 4)


async def test_preloading_is_passed_on_and_makes_no_sandbox_used():
    async with Local().open() as session, pool_of(session) as pool, pool.claim() as front:
        assert await front.preload("import sys; sys.modules['extra'] = sys")
        first = front.id
        await front.reset()
        assert (await front.run_python("import extra; print(extra.__name__)")).stdout == "sys\n"
        assert front.id == first


async def test_warm_ones_are_kept_and_replaced():
    session = FakeSandboxSession()
    async with pool_of(session, warm=2) as pool:
        await settle()
        assert len(session.running) == 2
        async with pool.claim() as front:
            assert front.started
            await settle()
            assert len(session.running) == 3
        await settle()
        assert len(session.running) == 2
    assert session.running == []


async def test_bounds_hold():
    gate = Gate()
    session = FakeSandboxSession(on_start=gate)
    async with pool_of(session, warm=2, max_live=3, max_starting=2) as pool:
        claims = [pool.claim() for _ in range(5)]
        fronts = [await claim.__aenter__() for claim in claims]
        await settle()
        gate.let(100)
        await settle()
        assert gate.most == 2
        assert [front.started for front in fronts] == [True, True, True, False, False]
        await claims[0].__aexit__(None, None, None)
        await settle()
        assert fronts[3].started
        assert len(session.running) == 3
        for claim in claims[1:]:
            await claim.__aexit__(None, None, None)


async def test_leaving_does_not_wait_and_cancels_a_start():
    gate = Gate()
    session = FakeSandboxSession(on_start=gate)
    async with pool_of(session, max_live=1) as pool:
        async with pool.claim():
            await settle()
            assert gate.waiting == 1
        await settle()
        assert gate.waiting == 0
        async with pool.claim() as front:
            gate.let(1)
            assert (await front.exec("x")).ok
    assert session.running == []
    assert len(session.sandboxes) == 1


async def test_a_start_that_completes_in_spite_of_being_cancelled_is_not_lost():
    class Stubborn(FakeSandboxSession):
        async def start(self, spec):
            with suppress(asyncio.CancelledError):
                await entered.wait()
            return await super().start(spec)

    entered = asyncio.Event()
    session = Stubborn()
    async with pool_of(session) as pool:
        async with pool.claim():
            await settle()
        await settle()
        assert len(session.sandboxes) == 1
        async with pool.claim() as front:
            await front.exec("x")
        assert len(session.sandboxes) == 1
    assert session.running == []


async def test_stops_go_on_in_the_background_and_closing_awaits_them():
    let_go = asyncio.Event()
    session = FakeSandboxSession()
    async with pool_of(session) as pool:
        async with pool.claim() as front:
            await front.exec("x")
            (sandbox,) = session.sandboxes
            stop = sandbox.stop

            async def slow_stop():
                await let_go.wait()
                await stop()

            sandbox.stop = slow_stop
        assert sandbox.status == "running"
        asyncio.get_running_loop().call_soon(let_go.set)
    assert sandbox.status == "stopped"


async def test_a_failed_start_is_raised_by_each_use_and_nowhere_else():
    async def fail(spec):
        raise SandboxStartError("no room", retryable=True)

    session = FakeSandboxSession(on_start=fail)
    async with pool_of(session, warm=2) as pool:
        async with pool.claim():
            await settle()
        async with pool.claim() as front:
            for _ in range(2):
                with pytest.raises(SandboxStartError, match="no room"):
                    await front.run_python("x")
            with pytest.raises(SandboxStartError, match="no room"):
                await front.read_file("x")
            assert not front.started
        assert pool.metrics()["cwsandbox/startup_count"] == 0


async def test_one_failed_start_is_one_failed_claim():
    failures = iter([SandboxStartError("busy"), None])

    async def fail_once(spec):
        if error := next(failures):
            raise error

    session = FakeSandboxSession(on_start=fail_once)
    pool = pool_of(session, max_live=1, max_starting=1)
    async with pool, pool.claim() as first, pool.claim() as second:
        assert (await second.exec("x")).ok
        with pytest.raises(SandboxStartError):
            await first.exec("x")
    assert session.running == []


async def test_a_claim_that_is_over_is_gone():
    session = FakeSandboxSession()
    async with pool_of(session) as pool:
        async with pool.claim() as front:
            await front.exec("x")
        with pytest.raises(SandboxGone):
            await front.exec("x")
    async with pool.claim() as late:
        with pytest.raises(SandboxGone, match="closed"):
            await late.exec("x")


async def test_a_use_that_waits_ends_with_its_claim():
    session = FakeSandboxSession(on_start=Gate())
    async with pool_of(session) as pool:
        async with pool.claim() as front:
            use = asyncio.ensure_future(front.exec("x"))
            await settle()
        with pytest.raises(SandboxGone):
            await use


async def test_stopping_a_claim_early_waits_for_its_end():
    session = FakeSandboxSession()
    async with pool_of(session) as pool, pool.claim() as front:
        await front.exec("x")
        await front.stop()
        await front.stop()
        assert session.running == []
        with pytest.raises(SandboxGone):
            await front.exec("x")


async def test_an_old_warm_one_is_not_handed_out(monkeypatch):
    now = 0.0
    monkeypatch.setattr("rlpipe.sandboxes._pool.time.monotonic", lambda: now)
    session = FakeSandboxSession()
    async with pool_of(session, warm=1) as pool:
        await settle()
        now = SPEC.lifetime
        async with pool.claim() as front:
            await front.exec("x")
            assert front.id != session.sandboxes[0].id
            assert session.sandboxes[0].status == "stopped"


async def test_metrics(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("rlpipe.sandboxes._pool.time.monotonic", lambda: next(clock))
    steps = exited(), exited(exit_code=2), SandboxGone("died"), exited()
    async with pool_of(FakeSandboxSession(script(*steps))) as pool:
        async with pool.claim() as first, pool.claim() as second:
            await first.exec("x")
            await first.exec("x")
            with pytest.raises(SandboxGone):
                await first.exec("x")
            await second.run_python("x")
            assert (first.stats.exec_count, first.stats.exec_failures) == (3, 1)
        metrics = pool.metrics(reset=False)
        assert pool.metrics() == metrics
        assert set(pool.metrics().values()) == {0.0}
    seconds = {name: metrics.pop(f"cwsandbox/{name}_startup_seconds") for name in PARTS}
    assert 0 < seconds["min"] <= seconds["avg"] <= seconds["max"]
    assert metrics == {
        "cwsandbox/sandboxes_created": 2,
        "cwsandbox/executions": 4,
        "cwsandbox/exec_completed_ok": 2,
        "cwsandbox/exec_completed_nonzero": 1,
        "cwsandbox/exec_failures": 1,
        "cwsandbox/exec_completion_rate": 0.75,
        "cwsandbox/exec_failure_rate": 0.25,
        "cwsandbox/startup_count": 2,
        "cwsandbox/avg_execs_per_sandbox": 2,
        "cwsandbox/min_execs_per_sandbox": 1,
        "cwsandbox/max_execs_per_sandbox": 3,
    }


PARTS = ("min", "avg", "max")


async def test_with_real_sandboxes():
    provider = Local()
    async with provider.open() as session:
        pool = SandboxPool(session, provider.spec(), warm=2, max_live=4, max_starting=2)
        async with pool:

            async def rollout(number):
                async with pool.claim(files={"n": str(number)}) as front:
                    return (await front.run_python("print(open('n').read())")).stdout

            outputs = await asyncio.gather(*map(rollout, range(12)))
            assert outputs == [f"{number}\n" for number in range(12)]
        assert Counter(info.status for info in await session.list()).keys() == {"stopped"}


async def test_totals_go_on_where_metrics_are_reset():
    async with pool_of(FakeSandboxSession(script(exited(), exited(), exited()))) as pool:
        async with pool.claim() as front:
            await front.exec("x")
            pool.metrics()
            await front.exec("x")
        async with pool.claim() as front:
            await front.exec("x")
        recent, total = pool.metrics(), pool.totals()
    assert (recent["cwsandbox/executions"], total["cwsandbox/executions"]) == (2, 3)
    assert (recent["cwsandbox/sandboxes_created"], total["cwsandbox/sandboxes_created"]) == (1, 2)
    assert total["cwsandbox/max_execs_per_sandbox"] == 2
    assert total["cwsandbox/avg_execs_per_sandbox"] == 1.5


async def test_starts_are_spread_over_time(monkeypatch):
    now = 0.0
    monkeypatch.setattr("rlpipe.sandboxes._pool.time.monotonic", lambda: now)
    session = FakeSandboxSession()
    pool = SandboxPool(session, SPEC, warm=3, max_live=8, max_starting=8, max_starts_per_second=50)
    async with pool:
        for now, begun in ((0.0, 1), (0.019, 1), (0.021, 2), (0.04, 2), (0.042, 3), (9.0, 3)):
            pool._go_on()
            await settle()
            assert len(session.sandboxes) == begun, now


async def test_a_start_that_has_to_wait_is_begun_unasked():
    session = FakeSandboxSession()
    pool = SandboxPool(session, SPEC, warm=0, max_live=8, max_starting=8, max_starts_per_second=50)
    async with pool, pool.claim() as first, pool.claim() as second:
        async with asyncio.timeout(20):
            await asyncio.gather(first.exec("x"), second.exec("x"))


async def test_a_pool_that_is_closed_while_it_waits_starts_nothing_more():
    session = FakeSandboxSession()
    pool = SandboxPool(
        session, SPEC, warm=4, max_live=8, max_starting=8, max_starts_per_second=0.01
    )
    async with pool:
        await settle()
    assert len(session.sandboxes) == 1
    assert session.running == []


async def test_a_claim_ends_with_its_age():
    spec = SandboxSpec(lifetime=0.01)
    session = FakeSandboxSession()
    pool = SandboxPool(session, spec, warm=0, max_live=8, max_starting=8)
    async with pool, pool.claim() as front:
        (sandbox,) = [await front._ready()]
        stopped = asyncio.Event()
        stop = sandbox.stop

        async def note_stop():
            await stop()
            stopped.set()

        sandbox.stop = note_stop
        async with asyncio.timeout(5):
            await stopped.wait()
        with pytest.raises(SandboxGone):
            await front.exec("x")
    assert session.running == []


async def test_every_sandbox_is_on_record_before_it_is_used():
    rows = []

    def respond(call):
        assert ("started", call.sandbox.id) in [(event, row.get("id")) for event, row in rows]
        return exited()

    failing = iter([SandboxStartError("busy"), None])

    async def fail_once(spec):
        if error := next(failing):
            raise error

    session = FakeSandboxSession(respond, on_start=fail_once)
    pool = SandboxPool(
        session,
        SPEC,
        warm=0,
        max_live=1,
        max_starting=1,
        record=lambda event, **row: rows.append((event, row)),
    )
    async with pool:
        async with pool.claim() as front:
            with pytest.raises(SandboxStartError):
                await front.exec("x")
        async with pool.claim(tags=("task:a",)) as front:
            await front.exec("x")
    box = session.sandboxes[0].id
    assert rows == [
        ("asked", {"number": 0}),
        ("failed", {"number": 0}),
        ("asked", {"number": 1}),
        ("started", {"number": 1, "id": box, "process": None}),
        ("claimed", {"id": box, "tags": ("task:a",)}),
        ("stopped", {"id": box}),
    ]


async def test_a_reset_that_nothing_made_necessary_changes_nothing():
    session = FakeSandboxSession()
    async with pool_of(session) as pool, pool.claim(files={"a": "1"}) as sandbox:
        await sandbox.read_file("a")
        await sandbox.reset()
        await sandbox.run_python("")
    assert len(session.sandboxes) == 1


async def test_a_reset_gives_another_sandbox_with_the_files_and_ends_the_first():
    session = FakeSandboxSession()
    async with pool_of(session, max_live=1) as pool, pool.claim(files={"a": "1"}) as sandbox:
        await sandbox.write_file("a", "2")
        await sandbox.reset()
        assert await sandbox.read_file("a") == b"1"
        first, second = session.sandboxes
        assert (first.status, second.status, sandbox.id) == ("stopped", "running", second.id)


async def test_a_claim_that_is_over_is_not_made_new():
    session = FakeSandboxSession()
    async with pool_of(session) as pool:
        async with pool.claim() as sandbox:
            await sandbox.run_python("")
        await sandbox.reset()
        with pytest.raises(SandboxGone):
            await sandbox.run_python("")
    assert not session.running


async def test_a_used_sandbox_without_a_pool_cannot_be_made_new():
    sandbox = await FakeSandboxSession().start(SandboxSpec())
    await sandbox.reset()
    await sandbox.run_python("")
    with pytest.raises(SandboxConfigError, match="cannot be made new"):
        await sandbox.reset()
