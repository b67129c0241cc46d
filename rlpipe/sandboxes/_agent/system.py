"""What the agent is allowed, and what /proc says about the processes under it."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # like _socket: the public halves cost 20 ms
import os
import resource
import sys
import time

from .wire import SETTINGS, unpack

TYPE_CHECKING = False  # importing `typing` and `collections` would take 10 ms
if TYPE_CHECKING:
    from collections.abc import Callable

OWN_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
INODE_BYTES = 1024  # of kernel memory, for a file in a memory file system
KILL_SECONDS, KILL_PAUSE = 2.0, 0.001
SIGKILL = 9
OPEN_FILES = 1024
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36


class Settings:
    """What the host tells the agent first."""

    def __init__(self, data: bytes) -> None:
        numbers, self.home, self.environment, self.packages, readable, self.filter = unpack(data)
        self.readable = unpack(readable)
        """What programs may read where Landlock confines them; without any, it does not."""

        self.user, self.memory, self.disk, self.processes, alone = SETTINGS.unpack(numbers)
        self.alone = bool(alone)
        """Whether the agent has a pid namespace of its own."""

    def apply(self) -> None:
        """Give up what the agent was started with. Not the memory limit: that is its programs'."""
        if self.readable:
            from . import confine  # noqa: F401  # while the agent can still read its own folder
        # Python handles it, and a signal that is handled reaches the first process of a namespace.
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        set_limit(resource.RLIMIT_FSIZE, self.disk)
        set_limit(resource.RLIMIT_NOFILE, OPEN_FILES)
        set_limit(resource.RLIMIT_CORE, 0)
        if self.alone or self.user:
            # Of a user that nobody else is; elsewhere it would count the host's processes.
            set_limit(resource.RLIMIT_NPROC, self.processes)
        if self.user:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)  # makes the agent unreadable, too
        else:
            prctl(PR_SET_DUMPABLE, 0)
        if not self.alone:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            os.mkdir(self.home, 0o700)
        os.umask(0o022)
        os.environb.clear()
        os.environb.update(variables(self.environment))
        sys.path[:1] = [os.fsdecode(self.packages)] if self.packages else []
        sys.argv = ["-c"]


def variables(data: bytes) -> dict[bytes, bytes]:
    return {name: value for name, _, value in (item.partition(b"=") for item in unpack(data))}


def set_limit(kind: int, value: int) -> None:
    value = within(resource.getrlimit(kind)[1], value)
    resource.setrlimit(kind, (value, value))


def within(hard: int, value: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def prctl(option: int, value: int) -> None:
    import ctypes

    if ctypes.CDLL(None).prctl(option, value, 0, 0, 0):
        raise OSError(f"prctl {option} failed")


class Process:
    def __init__(self, parent: int, session: int, started: int) -> None:
        self.parent = parent
        self.session = session
        self.started = started
        """Clock ticks since boot."""


def processes() -> dict[int, Process]:
    """Every live process that /proc shows."""
    found = {}
    for name in os.listdir("/proc"):
        words = status_words(name) if name.isdigit() else []
        if words and words[0] not in b"ZX":
            found[int(name)] = Process(int(words[1]), int(words[3]), int(words[19]))
    return found


def told(pid: int | str, name: str) -> bytes:
    """What the kernel says of a process in the file of that name; nothing when it is gone."""
    try:
        file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, 1 << 14)
    except OSError:
        return b""
    finally:
        os.close(file)


def status_words(pid: int | str) -> list[bytes]:
    """What the kernel says of a process after its name; nothing when it is gone."""
    # The name in parentheses is the process's own choice, so cut at the last one.
    return told(pid, "stat").rpartition(b")")[2].split()


def state_of(pid: int) -> bytes:
    return (status_words(pid) or [b"X"])[0]


def queue_seconds(pid: int) -> float:
    """Seconds that a process was ready to run and had no processor; 0 where Linux does not say."""
    words = told(pid, "schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


def memory_of(pid: int) -> int:
    """Bytes that are the process's own: pages of files could be dropped, so they do not count."""
    words = [line.split() for line in told(pid, "status").splitlines()]
    return sum(int(line[1]) << 10 for line in words if line and line[0] in OWN_MEMORY)


def descendants(found: dict[int, Process], roots: set[int]) -> set[int]:
    members, grown = set(roots), True
    while grown:
        more = {pid for pid, process in found.items() if process.parent in members} - members
        members |= more
        grown = bool(more)
    return members


def kill(victims: Callable[[dict[int, Process]], set[int]]) -> None:
    """Kill until there are no victims among the processes that live."""
    killed: set[int] = set()
    empty, given_up = 0, time.monotonic() + KILL_SECONDS
    while time.monotonic() < given_up:  # what was forked meanwhile is found the next time
        pids = victims(processes())
        for pid in pids:
            try:
                os.kill(pid, SIGKILL)
            except OSError:
                continue
        # Once is not enough: a child whose parent ended during the look at /proc is nobody's.
        empty = 0 if pids else empty + 1
        if empty == 2:
            return
        if pids and pids <= killed:
            time.sleep(KILL_PAUSE)  # on a busy machine they wait for a processor to end
        killed |= pids


def inode_memory(folders: tuple[bytes, ...]) -> int:
    """Bytes of kernel memory that files cost beside the size of their memory file systems."""
    disks = [os.statvfs(folder) for folder in folders]
    return sum(disk.f_files - disk.f_ffree for disk in disks) * INODE_BYTES
