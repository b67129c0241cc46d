"""Containers that really run: the conformance suite in both ways, attacks, and their end."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import pytest_asyncio

from rlpipe.errors import SandboxGone
from rlpipe.sandboxes import _container
from rlpipe.sandboxes.docker import Docker
from rlpipe.testing import SandboxConformance

MEMORY = (512 + 2 * 64 + 16 + 64) << 20  # programs', two folders', shared, and the agent's own
AGENT, WITHOUT_AGENT = _container.MAIN, 'eval "$2"'
BOTH = pytest.mark.parametrize("main", [AGENT, WITHOUT_AGENT], ids=["agent", "plain"])


@pytest.fixture(scope="session")
def spec(image):
    return Docker(image=image).spec()


async def start(session, spec, main):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_container, "MAIN", main)
        return await session.start(spec)


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def session(image):
    """One for all tests of a class, since engines are slow."""
    async with Docker(image=image).open() as session:
        yield session


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def sandbox(request, session, spec):
    """Likewise, and in the way that the class asks for."""
    return await start(session, spec, request.cls.main)


@pytest_asyncio.fixture(
    scope="class", loop_scope="class", params=[AGENT, WITHOUT_AGENT], ids=["agent", "plain"]
)
async def box(request, session, spec):
    return await start(session, spec, request.param)


@pytest.fixture(scope="class")
def own_spec(request, spec):
    request.cls.spec = spec


@pytest.mark.usefixtures("own_spec")
@pytest.mark.asyncio(loop_scope="class")
class TestAgent(SandboxConformance):
    main = AGENT
    at_once = 16  # each start is half a second of an engine's work


class TestPlain(TestAgent):
    """Where the image has no Python for the agent, each execution is a call of the engine."""

    main = WITHOUT_AGENT


@pytest.mark.asyncio(loop_scope="class")
class TestContainers:
    """What only containers promise."""

    async def test_which_way_it_is(self, session, spec):
        assert type(await session.start(spec)).__name__ == "ContainerSandbox"
        assert type(await start(session, spec, WITHOUT_AGENT)).__name__ == "PlainSandbox"

    async def test_limits_are_the_engine_s(self, box):
        """One that is asked for and silently absent would be worse than an error."""
        read = "cat /sys/fs/cgroup/{0} 2>/dev/null || cat /sys/fs/cgroup/{1}"
        memory = await box.exec(read.format("memory.max", "memory/memory.limit_in_bytes"))
        assert int(memory.stdout) == MEMORY
        pids = await box.exec(read.format("pids.max", "pids/pids.max"))
        assert int(pids.stdout) == 64 + 3

    async def test_cores_are_bounded(self, session, spec):
        box = await session.start(replace(spec, cpus=0.5))
        code = (
            "import time\nbegin = time.monotonic()\n"
            "while time.monotonic() - begin < 2: pass\nprint(time.process_time())"
        )
        assert float((await box.run_python(code)).stdout) < 1.3

    async def test_memory_over_processes(self, session, spec):
        box = await session.start(replace(spec, memory=128 << 20))
        code = (
            "import os, time\nprint('partial', flush=True)\n"
            "for i in range(4):\n"
            "    if os.fork() == 0: data = b'x' * (60 << 20); time.sleep(60)\n"
            "time.sleep(60)"
        )
        result = await box.run_python(code, timeout=50)
        assert (result.outcome, result.stdout) == ("out_of_memory", "partial\n")
        assert (await box.exec("echo alive")).stdout == "alive\n"

    async def test_memory_beyond_the_container_s_own(self, session, spec):
        small = replace(spec, memory=64 << 20, disk=16 << 20)
        box = await start(session, small, WITHOUT_AGENT)
        result = await box.run_python("data = b'x' * (400 << 20)")
        assert result.outcome == "killed"
        assert (await box.exec("echo alive")).stdout == "alive\n"

    async def test_a_fork_bomb_stops(self, session, spec):
        box = await session.start(replace(spec, pids=20))
        code = (
            "import os, time\nn = 0\n"
            "try:\n"
            "    while True:\n"
            "        if os.fork() == 0: time.sleep(60)\n"
            "        n += 1\n"
            "except OSError: print(n)"
        )
        result = await box.run_python(code, timeout=20)
        assert 10 < int(result.stdout) <= 20

    @BOTH
    async def test_a_fork_bomb_ends_with_its_time(self, session, spec, main):
        box = await start(session, replace(spec, pids=20), main)
        bomb = (
            "import os, time\nprint('begun', flush=True)\nwhile True:\n"
            "    try: os.fork()\n    except OSError: time.sleep(0.01)"
        )
        result = await box.run_python(bomb, timeout=3)
        assert (result.outcome, result.stdout[:6]) == ("timeout", "begun\n")
        assert (await box.exec("echo alive")).stdout == "alive\n"

    async def test_there_is_no_network(self, box):
        code = (
            "import os, socket\nprint(os.listdir('/sys/class/net'))\n"
            "for host in ('127.0.0.1', '1.1.1.1'):\n"
            "    try: socket.create_connection((host, 53), timeout=2)\n"
            "    except OSError as error: print(type(error).__name__)"
        )
        result = await box.run_python(code)
        assert result.stdout.startswith("['lo']\nConnectionRefusedError\n")
        assert len(result.stdout.splitlines()) == 3

    async def test_only_working_folder_and_tmp_can_be_written(self, box):
        closed = ["/", "/usr", "/etc", "/dev", "/run", "/var/tmp", "/proc/sys/kernel", "/sys"]
        tries = await asyncio.gather(*(box.exec(["touch", f"{at}/x"]) for at in closed))
        assert not any(result.ok for result in tries)
        for folder in ("/work", "/tmp"):
            fill = "for i in 1 2; do head -c 40000000 /dev/zero > $i || exit; done"
            full = await box.exec(fill, cwd=folder, timeout=60)
            assert "No space left" in full.stderr
            await box.exec("rm 1 2", cwd=folder)

    async def test_programs_have_no_rights(self, box):
        status = dict(
            line.split(":\t", 1)
            for line in (await box.exec("cat /proc/self/status")).stdout.splitlines()
            if ":\t" in line
        )
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert int(status["Uid"].split()[0]) >= 20_000
        assert status["Groups"].split() in ([], [status["Uid"].split()[0]])

    async def test_neither_agent_nor_relay_can_be_killed_or_read(self, session, spec):
        box = await session.start(spec)
        await box.exec("kill -9 -1")
        code = (
            "import ctypes, os\n"
            "os.kill(1, 9)\n"
            "others = {p for p in os.listdir('/proc') if p.isdigit()} - {str(os.getpid())}\n"
            "for pid in others:\n"
            "    for name in ('mem', 'environ', 'maps', 'fd/0'):\n"
            "        try: open(f'/proc/{pid}/{name}').read(); print('open', pid, name)\n"
            "        except OSError: pass\n"
            "print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
        )
        assert (await box.run_python(code)).stdout == "-1\n"
        assert (await box.run_python("print('alive')")).stdout == "alive\n"

    async def test_unread_input_holds_up_nobody(self, session, spec):
        box = await session.start(spec)
        deaf = asyncio.ensure_future(box.exec("touch deaf; sleep 1005", stdin=b"x" * 5_000_000))
        assert (await box.exec("until [ -e deaf ]; do sleep 0.01; done", timeout=20)).ok
        data = os.urandom(5_000_000)
        await box.write_file("data", data)
        assert await box.read_file("data") == data
        deaf.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deaf
        assert "1005" not in (await box.exec("cat /proc/[0-9]*/cmdline")).stdout

    async def test_a_program_of_several_megabytes(self, session, spec):
        box = await session.start(spec)
        code = f"text = '{'x' * 5_000_000}'\nprint(len(text))"
        assert (await box.run_python(code)).stdout == "5000000\n"

    async def test_a_cancelled_execution_is_killed(self, box):
        running = asyncio.ensure_future(box.exec("echo > begun; sleep 1001"))
        await box.exec("until [ -e begun ]; do sleep 0.05; done")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert "1001" not in (await box.exec("cat /proc/[0-9]*/cmdline")).stdout

    @BOTH
    async def test_a_container_that_dies_is_gone(self, engine, session, spec, main):
        box = await start(session, replace(spec, tags=("dying",)), main)
        running = asyncio.ensure_future(box.exec("sleep 1001"))
        await box.exec("true")
        await engine.call("kill", box.id)
        for use in (running, box.exec("true"), box.read_file("x")):
            with pytest.raises(SandboxGone) as caught:
                await use
        assert (caught.value.provider, caught.value.sandbox_id) == ("docker", box.id)
        assert await session.list(tags=["dying"], status="running") == []

    async def test_a_sandbox_ends_with_its_lifetime(self, engine, session, spec):
        box = await session.start(replace(spec, lifetime=0.5))
        with pytest.raises(SandboxGone, match="lifetime"):
            await box.exec("sleep 1001")
        await box.stop()
        assert await leftovers(engine, box.id) == []

    @BOTH
    async def test_a_container_ends_by_itself_when_its_host_forgets_it(
        self, engine, session, spec, monkeypatch, main
    ):
        monkeypatch.setattr(_container, "LIFETIME_GRACE", -3599.0)
        box = await start(session, spec, main)
        with pytest.raises(SandboxGone):
            await box.exec("sleep 1001")
        await box.stop()
        assert await leftovers(engine, box.id) == []


async def leftovers(engine, *names):
    """Those of the containers that the engine still knows."""
    found = await engine.containers(["rlpipe"])
    return [one["Name"] for one in found if one["Name"].removeprefix("/") in names]


async def test_the_host_s_environment_is_absent(image, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "sesame")
    monkeypatch.setenv("http_proxy", "http://sesame")
    provider = Docker(image=image, env={"GIVEN": "a b=c"})
    async with provider.open() as session:
        box = await session.start(provider.spec())
        result = await box.exec("env; cat /proc/1/environ")
        assert "sesame" not in result.stdout
        assert "GIVEN=a b=c\n" in result.stdout


async def test_closing_the_session_removes_everything(engine, image, spec):
    async with Docker(image=image).open() as session:
        boxes = [await start(session, spec, main) for main in (AGENT, WITHOUT_AGENT)]
        names = [box.id for box in boxes]
        assert len(await leftovers(engine, *names)) == 2
    assert await leftovers(engine, *names) == []
    for box in boxes:
        with pytest.raises(SandboxGone):
            await box.exec("true")


async def test_a_start_that_is_cancelled_leaves_nothing(engine, image, spec):
    async with Docker(image=image).open() as session:
        await session.list()
        for seconds in (0.0, 0.1, 0.2, 0.4):
            start = asyncio.ensure_future(session.start(replace(spec, tags=("cancelled",))))
            await asyncio.sleep(seconds)
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
    async with Docker(image=image).open() as session:
        assert await session.list(tags=["cancelled"]) == []


async def test_another_session_lists_and_sweeps_by_tag(image, spec):
    async with Docker(image=image).open() as one, Docker(image=image).open() as other:
        tagged = [await one.start(replace(spec, tags=("run:a=b, c", name))) for name in "xy"]
        kept = await one.start(replace(spec, tags=("run:a",)))
        found = await other.list(tags=["run:a=b, c"])
        assert {info.id for info in found} == {box.id for box in tagged}
        (info,) = await other.list(tags=["y"])
        assert (info.status, info.tags) == ("running", ("run:a=b, c", "y"))
        assert 0 <= info.age < 60
        assert await other.sweep(tags=["run:a=b, c"]) == 2
        assert await other.list(tags=["run:a=b, c"]) == []
        for box in tagged:
            with pytest.raises(SandboxGone):
                await box.exec("true")
        assert (await kept.exec("echo here")).stdout == "here\n"


RUNNER = """
import asyncio, sys
from rlpipe.sandboxes import _container
from rlpipe.sandboxes.docker import Docker
_container.MAIN = sys.argv[2]
async def main():
    provider = Docker(image=sys.argv[1])
    async with provider.open() as session:
        box = await session.start(provider.spec())
        await box.exec("sleep 1001 > /dev/null &")
        print(box.id, flush=True)
        await box.exec("sleep 1002", timeout=100)
asyncio.run(main())
"""


@BOTH
async def test_nothing_is_left_when_the_runner_is_killed(engine, image, main):
    command = [sys.executable, "-c", RUNNER, image, main]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        name = runner.stdout.readline().strip()
        assert await leftovers(engine, name)
        os.kill(runner.pid, signal.SIGKILL)
    end = time.monotonic() + 30
    while await leftovers(engine, name):
        assert time.monotonic() < end
        await asyncio.sleep(0.2)


async def test_an_online_check_starts_a_container(image):
    provider = Docker(image=image)
    assert await asyncio.to_thread(provider.check_online) == []
    missing = Docker(image="localhost/rlpipe-no-such-image:1")
    (finding,) = await asyncio.to_thread(missing.check_online)
    assert "no image 'localhost/rlpipe-no-such-image:1' here" in finding.problem


async def test_another_user_and_a_root_that_can_be_written(image):
    provider = Docker(image=image, user=0, read_only=False)
    async with provider.open() as session:
        box = await session.start(provider.spec())
        result = await box.run_python("import os; print(os.getuid()); open('/usr/x', 'w')")
        assert (result.ok, result.stdout) == (True, "0\n")
        effective = await box.exec("grep CapEff /proc/self/status")
        assert int(effective.stdout.split()[1], 16) == 0
        greedy = "import os, time; os.fork(); data = b'x' * (300 << 20); time.sleep(20)"
        assert (await box.run_python(greedy)).outcome == "out_of_memory"
        assert (await box.exec("echo alive")).stdout == "alive\n"
