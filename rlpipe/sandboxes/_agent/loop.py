"""The loop of the agent: it gathers what programs write and enforces their limits."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # like _socket: the public halves cost 20 ms
import _socket
import errno
import os
import select
import sys
import time

from .job import NEVER, Job, Output, message
from .launch import Launcher, refusal
from .program import CHUNK, descriptors, preload, prepare
from .system import (
    Process,
    Settings,
    descendants,
    inode_memory,
    kill,
    memory_of,
    processes,
    queue_seconds,
)
from .wire import (
    CANCEL,
    EXITED,
    KILLED,
    OUT_OF_MEMORY,
    OUTPUT_LIMIT,
    PATIENCE,
    PRELOAD,
    READ,
    REQUEST,
    TIMEOUT,
    WRITE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

SCAN_SECONDS, SCAN_SHARE = 0.05, 20
END_SECONDS = 4.0  # less than the host waits before it kills the agent
DEADLINE_SECONDS = 0.01  # between two looks at a program whose time is up
ROOM = _socket.CMSG_SPACE(64)  # for the descriptors that come with requests


class Agent:
    """The loop that starts programs, gathers their output and enforces their limits."""

    def __init__(
        self, control: _socket.socket, settings: Settings, host: int, companion: int
    ) -> None:
        self.control = control
        self.host = host
        self.companion = companion
        self.settings = settings
        self.launcher = Launcher(settings)
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.files: list[int] = []
        self.jobs: dict[int, Job] = {}
        self.readers: dict[int, Job | None] = {}
        self.next_scan = NEVER
        self.wakeup, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
        _signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        control.setblocking(False)
        self.poll = select.poll()
        self.poll.register(self.wakeup, select.POLLIN)
        self.poll.register(control, select.POLLIN)
        # The control socket may stay open in a fork of the host that outlives it.
        if host >= 0:
            self.poll.register(host, select.POLLIN)

    def run(self) -> NoReturn:
        while True:
            events = self.poll.poll(self.patience())
            for fd, _ in events:
                if fd in self.readers:
                    self.collect(fd)
                elif fd == self.wakeup:
                    os.read(fd, CHUNK)
                elif fd == self.control.fileno():
                    self.exchange()
                elif fd == self.host:
                    self.end()
            self.reap()
            self.enforce()
            if self.launcher.wants_spare and not events:
                self.launcher.prefork()

    def patience(self) -> float | None:
        """Milliseconds until something has to be done unasked."""
        due = min([self.next_scan, *(job.deadline for job in self.jobs.values())])
        if self.launcher.wants_spare:
            return 0
        return None if due == NEVER else max(0.0, due - time.monotonic()) * 1000 + 1

    def exchange(self) -> None:
        """Receive and send what the control socket takes now; end when the host is gone."""
        try:
            data, ancillary, _, _ = self.control.recvmsg(CHUNK, ROOM, _socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:  # there is only room to send
            pass
        except OSError:
            self.end()
        else:
            if not data:
                self.end()
            self.incoming += data
            self.files += descriptors(ancillary)
        while (size := self.complete()) is not None:
            _, operation, number, seconds, limit, has_file = REQUEST.unpack_from(self.incoming)
            data = bytes(self.incoming[REQUEST.size : REQUEST.size + size])
            del self.incoming[: REQUEST.size + size]
            file = self.files.pop(0) if has_file else -1
            self.serve(Job(number, limit), operation, data, seconds, file)
        self.send(b"")

    def complete(self) -> int | None:
        """The size of the data of the first request, when all of it has come."""
        if len(self.incoming) < REQUEST.size:
            return None
        size = int.from_bytes(self.incoming[:4], "big")
        return size if len(self.incoming) >= REQUEST.size + size else None

    def send(self, data: bytes) -> None:
        blocked = bool(self.outgoing)
        self.outgoing += data
        try:
            while self.outgoing:
                del self.outgoing[: self.control.send(self.outgoing)]
        except BlockingIOError:
            self.poll.modify(self.control, select.POLLIN | select.POLLOUT)
        except OSError:
            self.end()
        else:
            if blocked:
                self.poll.modify(self.control, select.POLLIN)

    def end(self) -> NoReturn:
        """Take everything along, which the kernel does in namespaces of the agent's own."""
        if not self.settings.alone:
            self.end_children()
            import shutil

            os.chdir("/")
            shutil.rmtree(self.settings.home, ignore_errors=True)
        os._exit(0)

    def end_children(self) -> None:
        """Kill until there is no child: orphans become the agent's own, so none is overlooked."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            kill(lambda found: descendants(found, {os.getpid()}) - {os.getpid()})
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return

    def serve(self, job: Job, operation: int, data: bytes, seconds: float, file: int) -> None:
        if operation == CANCEL:
            for running in [one for one in self.jobs.values() if one.number == job.number]:
                self.stop(running, KILLED)
            return
        if operation == PRELOAD:
            self.send(message(job.number, *preload(data)))
            self.launcher.drop_spare()
            return
        try:
            self.start(job, operation, data, file)
        except (OSError, ValueError, IndexError, MemoryError) as error:
            lost = getattr(error, "errno", None) or errno.EIO
            answer = (lost, "") if operation in (READ, WRITE) else refusal(error)
            self.send(message(job.number, *answer))
        else:
            job.seconds, job.queued = seconds, queue_seconds(job.pid)
            job.deadline = job.begun + seconds
            self.next_scan = min(self.next_scan, job.begun + SCAN_SECONDS)
        finally:
            if file >= 0:
                os.close(file)

    def start(self, job: Job, operation: int, data: bytes, file: int) -> None:
        job.pid, pipes = self.launcher.launch(operation, data, job.output.limit, file)
        self.jobs[job.pid] = job
        ends = pipes.output, pipes.error
        job.output = Output(job.output.limit, *ends)
        for fd in ends:
            self.readers[fd] = job
            self.poll.register(fd, select.POLLIN)

    def collect(self, fd: int) -> bool:
        """Read what a program wrote; whether there was anything."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        job = self.readers[fd]
        if not data:
            self.forget(fd)
        elif job:
            job.output.take(fd, data)
            if job.output.floods and job.outcome == EXITED:
                self.stop(job, OUTPUT_LIMIT)
        return bool(data)

    def forget(self, fd: int) -> None:
        del self.readers[fd]
        self.poll.unregister(fd)
        os.close(fd)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.jobs:
                self.finish(self.jobs.pop(pid), os.waitstatus_to_exitcode(status))
            else:
                self.launcher.lose(pid)

    def finish(self, job: Job, status: int) -> None:
        for fd in job.output.streams:
            while self.readers.get(fd) is job and not job.output.floods and self.collect(fd):
                pass
            # The number may be another job's by now, when this one closed its output early.
            if self.readers.get(fd) is job:
                # A process that outlives the program keeps its output open; it is thrown away.
                self.readers[fd] = None
        self.send(job.reply(status))

    def stop(self, job: Job, outcome: int) -> None:
        """Kill everything that the program started."""
        job.outcome = outcome
        alone = list(self.jobs.values()) == [job]

        def belong(found: dict[int, Process]) -> set[int]:
            orphans = {
                pid
                for pid in self.inside(found)
                if alone and found[pid].parent == os.getpid() and found[pid].started >= job.ticks
            }
            session = {pid for pid, process in found.items() if process.session == job.pid}
            return descendants(found, orphans | session) & found.keys()

        kill(belong)

    def inside(self, found: dict[int, Process]) -> set[int]:
        """The processes that came from programs."""
        agent, spare = os.getpid(), self.launcher.spare
        own = {agent, self.companion, spare.pid if spare else agent}
        return descendants(found, {agent}) - own

    def enforce(self) -> None:
        now = time.monotonic()
        for job in list(self.jobs.values()):
            if now >= job.deadline and job.outcome == EXITED:
                self.expire(job, now)
        if now >= self.next_scan:
            busy = self.watch()
            pause = max(SCAN_SECONDS, SCAN_SHARE * (time.monotonic() - now))
            self.next_scan = time.monotonic() + pause if busy or self.jobs else NEVER

    def expire(self, job: Job, now: float) -> None:
        """Stop a program, or give it the time back that it waited for a busy processor."""
        members = [pid for pid, process in processes().items() if process.session == job.pid]
        queued = max(map(queue_seconds, members), default=0.0) - job.queued
        due = job.begun + min(job.seconds + queued, job.seconds * PATIENCE)
        if now >= due:
            self.stop(job, TIMEOUT)
        job.deadline = NEVER if now >= due else max(due, now + DEADLINE_SECONDS)

    def watch(self) -> bool:
        """Kill everything when its sum is over a limit; whether there is anything."""
        inside = self.inside(processes())
        used = sum(map(memory_of, inside))
        if self.settings.alone:
            used += inode_memory((self.settings.home, b"/tmp", b"/dev/shm"))
        if len(inside) > self.settings.processes:  # where the kernel does not count them
            self.end_all(KILLED)
        elif used > self.settings.memory:
            self.end_all(OUT_OF_MEMORY)
        return bool(inside)

    def end_all(self, outcome: int) -> None:
        for job in self.jobs.values():
            job.outcome = outcome
        kill(self.inside)


def receive_settings(control: _socket.socket) -> Settings:
    data = b""
    while len(data) < REQUEST.size or len(data) < REQUEST.size + int.from_bytes(data[:4], "big"):
        chunk = control.recv(CHUNK)
        if not chunk:
            sys.exit(0)
        data += chunk
    return Settings(data[REQUEST.size :])


def main(control_end: int, host: int = -1, companion: int = 0) -> NoReturn:
    """Be the agent of whoever holds the other end of a socket.

    `host` is a descriptor of that process, where it can be told by one whether it lives;
    `companion` is a process that the agent brought along and that is not a program's.
    """
    control = _socket.socket(fileno=control_end)
    for descriptor in (control_end, host):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    settings = receive_settings(control)
    settings.apply()
    os.chdir(settings.home)
    agent = Agent(control, settings, host, companion)
    prepare()
    agent.send(message(0, 0, ""))
    try:
        agent.run()
    except BaseException as error:
        control.setblocking(True)
        control.sendall(bytes(agent.outgoing) + message(0, 1, f"{type(error).__name__}: {error}"))
        raise
