"""What code tries that is confined by Landlock alone. Its docstring says what it may succeed in."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import rlpipe
from rlpipe.sandboxes._agent import confine
from rlpipe.sandboxes.local import Local

pytestmark = pytest.mark.skipif(not confine.available(), reason="this kernel has no Landlock")
SPEC = replace(Local().spec(), memory=300 << 20, disk=32 << 20, pids=48)


@pytest.fixture
async def session():
    async with Local(isolation="landlock").open() as session:
        yield session


@pytest.fixture
async def box(session):
    async with await session.start(SPEC) as box:
        yield box


async def test_files_of_the_host_cannot_be_read(box, tmp_path):
    tmp_path.chmod(0o755)
    secret = tmp_path / "secret"
    secret.write_text("x")
    for path in ("/etc/passwd", "/etc/hostname", str(secret), "/proc/1/cmdline", "/proc/version"):
        assert "denied" in (await box.exec(["cat", path])).stderr, path
    for path in ("/", "/etc", "/home", "/tmp", "/proc", "/sys", "/var", "/dev"):
        assert "denied" in (await box.exec(["ls", path])).stderr, path


async def test_only_its_own_folder_is_writable(box):
    for folder in ("/", "/usr", "/etc", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/opt"):
        assert not (await box.exec(["touch", f"{folder}/rlpipe-x"])).ok, folder
        assert not Path(f"{folder}/rlpipe-x").exists()
    made = await box.run_python("import tempfile; print(tempfile.mkdtemp())")
    assert made.stdout.startswith(box.spec.workdir)


async def test_a_folder_is_its_sandboxes_alone(session, box):
    async with await session.start(SPEC) as other:
        await other.write_file("secret", "x")
        path = f"{other.spec.workdir}/secret"
        assert "denied" in (await box.exec(["cat", path])).stderr
        assert "denied" in (await box.exec(["rm", path])).stderr


async def test_environment_of_the_host_is_hidden(session, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush-hush")
    async with await session.start(SPEC) as box:
        result = await box.exec("env; cat /proc/self/environ /proc/$PPID/environ")
        assert "hush" not in result.stdout
        names = {line.partition("=")[0] for line in result.stdout.replace("\0", "\n").split("\n")}
        assert names - {"", "_", "SHLVL", "PWD", "OLDPWD", "HOME", "LANG", "PATH", "TMPDIR"} == {
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONHASHSEED",
        }


async def test_there_are_no_sockets(box):
    code = (
        "import socket\n"
        "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):\n"
        "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):\n"
        "        try: socket.socket(family, kind); print('open', family, kind)\n"
        "        except PermissionError: pass\n"
        "one, other = socket.socketpair()\n"
        "one.send(b'pair'); print(other.recv(9))"
    )
    assert (await box.run_python(code)).stdout == "b'pair'\n"


async def test_there_are_no_privileges(box):
    status = await box.exec("cat /proc/self/status")
    values = dict(line.split(":\t", 1) for line in status.stdout.splitlines() if ":\t" in line)
    assert values["CapEff"] == values["CapPrm"] == "0" * 16
    assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
    for command in (
        "mount -t tmpfs x $HOME",
        "mknod sda b 8 0",
        "unshare -Ur true",
        "chroot /usr",
        "echo 1 > /proc/sys/vm/panic_on_oom",
        "setpriv --reuid 0 true",
        "su -c true",
    ):
        assert not (await box.exec(command)).ok, command


async def test_other_processes_are_out_of_reach(box):
    """Those of the host, the agent's, and the runner's own."""
    code = (
        "import ctypes, os\n"
        f"for pid in ({os.getpid()}, {box.process}, os.getppid()):\n"
        "    try: os.kill(pid, 9); print('killed', pid)\n"
        "    except PermissionError: pass\n"
        "    for name in ('mem', 'environ', 'cmdline', 'fd'):\n"
        "        try: open(f'/proc/{pid}/{name}'); print('open', pid, name)\n"
        "        except (PermissionError, IsADirectoryError): pass\n"
        "    print(ctypes.CDLL(None).ptrace(16, pid, 0, 0))"
    )
    assert (await box.run_python(code)).stdout == "-1\n-1\n-1\n"
    assert (await box.exec("kill -9 -1; echo survived")).stdout == "survived\n"
    assert (await box.run_python("print('alive')")).stdout == "alive\n"


async def test_a_fork_bomb_stops_and_the_next_call_works(box):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert (await box.run_python(bomb, timeout=2)).outcome in ("timeout", "killed")
    assert (await box.run_python("print(1)")).stdout == "1\n"


async def test_memory_of_one_process_and_over_processes(box):
    result = await box.run_python("x = bytearray(400 << 20)")
    assert result.stderr.endswith("MemoryError\n")
    assert "MemoryError" in (await box.exec(["python3", "-c", "bytearray(400 << 20)"])).stderr
    code = (
        "import os, time\n"
        "for _ in range(6):\n"
        "    if not os.fork():\n"
        "        x = b'x' * (100 << 20); time.sleep(1001)\n"
        "time.sleep(1001)"
    )
    assert (await box.run_python(code)).outcome == "out_of_memory"
    assert (await box.run_python("print(1)")).stdout == "1\n"


async def test_size_of_one_file(box):
    result = await box.run_python("open('x', 'wb').write(b'x' * (33 << 20))")
    assert "File too large" in result.stderr


async def test_a_daemon_dies_with_its_timeout_or_its_sandbox(box):
    daemon = "setsid -f sleep 1001; (setsid setsid sleep 1002 &); sleep 1003"
    assert (await box.exec(daemon, timeout=0.3)).outcome == "timeout"
    assert below(box.process, "sleep") == []
    await box.exec("setsid -f sleep 1004 >/dev/null 2>&1")
    async with asyncio.timeout(10):
        while below(box.process, "sleep") == []:
            await box.exec("true")
    await box.stop()
    assert below(box.process, "sleep") == []
    assert not Path(box.spec.workdir).exists()


def below(agent, name):
    listed = subprocess.run(["ps", "-o", "comm=", "--ppid", str(agent)], capture_output=True)
    return [word for word in listed.stdout.decode().split() if word == name]


async def test_several_programs_at_once_and_a_missing_one(box):
    results = await asyncio.gather(*(box.exec(f"echo {n}") for n in range(12)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(12)]
    missing = await box.exec(["no-such-program"])
    assert (missing.exit_code, "No such file" in missing.stderr) == (127, True)


def test_the_manifest_says_that_the_isolation_is_weaker(tmp_path):
    pytest.importorskip("hydra", reason="runs are tested where rlpipe is installed whole")
    command = [sys.executable, "-m", "rlpipe", "mode=collect", "policy=reference", "tools=[]"]
    command += ["dataset=arithmetic", "dataset.tasks=2", "dataset.held_out=1"]
    command += ["reward=expected_output", "sandbox.isolation=landlock", "hydra.run.dir=out"]
    root = str(Path(rlpipe.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "warning: isolation: landlock bounds neither" in done.stdout
    manifest = (tmp_path / "out" / "manifest.json").read_text()
    assert '"isolation": "landlock"' in manifest
    assert "warning" in manifest
