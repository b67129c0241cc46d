"""Carries a control socket, and the pipes passed over it, across two plain byte streams.

Descriptors do not reach into a container, but its standard input and output do. One relay stands
at either end, so that host and agent still talk over a socket and pass pipes to each other. The
inner one is a process of its own: no program descends from what has held other programs' input.
"""

from __future__ import annotations

import _socket
import os
import select
import struct
import time

from .loop import main as run_agent
from .program import descriptors
from .system import PR_SET_DUMPABLE, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import NoReturn

FRAME = struct.Struct(">BII")  # kind, number of the pipe, length of the rest
TALK, READER, WRITER, BYTES, END = range(5)  # READER: a pipe that the inner side reads from
CHUNK = 1 << 18
BACKLOG = 1 << 25  # bytes held for those who do not take them, before nothing more is accepted
ACCESS = {os.O_RDONLY: READER, os.O_WRONLY: WRITER}


class Outlet:
    """A descriptor, and what is still to be written to it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.left = bytearray()
        self.ended = False
        os.set_blocking(fd, False)

    def flush(self) -> None:
        try:
            while self.left:
                del self.left[: os.write(self.fd, self.left)]
        except BlockingIOError:
            return


class Relay:
    """One end; `source` and `sink` lead to the other, which is trusted only by the inner one."""

    def __init__(self, control: _socket.socket, source: int, sink: int, *, inner: bool) -> None:
        self.control = control
        self.source = source
        self.sink = Outlet(sink)
        self.inner = inner
        self.incoming = bytearray()
        self.talk = bytearray()
        self.passed: list[int] = []
        self.inlets: dict[int, int] = {}
        """The number of each pipe that is read here."""

        self.outlets: dict[int, Outlet] = {}
        """The pipes that are written here, by number."""

        self.last = 0
        control.setblocking(False)
        os.set_blocking(source, False)

    def interests(self) -> dict[int, int]:
        """The events of `poll` that matter now, by descriptor."""
        wanted = {outlet.fd: select.POLLOUT for outlet in self.outlets.values() if outlet.left}
        held = len(self.talk) + sum(len(outlet.left) for outlet in self.outlets.values())
        if held < BACKLOG:
            wanted[self.source] = select.POLLIN
        if self.sink.left:
            wanted[self.sink.fd] = select.POLLOUT
        if len(self.sink.left) < CHUNK:
            wanted.update(dict.fromkeys([*self.inlets, self.control.fileno()], select.POLLIN))
        if self.may_talk():
            control = self.control.fileno()
            wanted[control] = wanted.get(control, 0) | select.POLLOUT
        return wanted

    def may_talk(self) -> bool:
        """Whether there is something to say that may be said.

        On the host a file's bytes have to arrive before the answer that says they are complete.
        In the sandbox a program that does not read its input must not hold up the others.
        """
        ahead = not self.inner and any(outlet.left for outlet in self.outlets.values())
        return bool(self.talk) and not ahead

    def serve(self, ready: Collection[int]) -> None:
        """Read what is ready, and write all that can be written.

        Raises:
            EOFError: one side is gone.
            ValueError: the other relay broke the protocol.
            OSError: likewise gone.
        """
        listens = self.control.fileno() in ready
        # What a program wrote before its end is in the pipe when the agent says that it ended.
        for fd in list(self.inlets) if listens else self.inlets.keys() & ready:
            self.collect(fd)
        if listens:
            self.listen()
        if self.source in ready:
            self.receive()
        self.flush()

    def collect(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        self.post(BYTES if data else END, self.inlets[fd], data)
        if not data:
            del self.inlets[fd]
            self.release(fd)

    def listen(self) -> None:
        try:
            room, flags = _socket.CMSG_SPACE(64), _socket.MSG_CMSG_CLOEXEC
            data, ancillary, _, _ = self.control.recvmsg(CHUNK, room, flags)
        except BlockingIOError:
            return
        for fd in descriptors(ancillary):
            self.announce(fd)
        if not data:
            raise EOFError
        self.post(TALK, 0, data)

    def announce(self, fd: int) -> None:
        """Have the other side make a pipe that this one continues."""
        import fcntl  # by the outer side only, which is passed descriptors

        self.last += 1
        kind = ACCESS[fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE]
        if kind == READER:
            os.set_blocking(fd, False)
            self.inlets[fd] = self.last
        else:
            self.outlets[self.last] = Outlet(fd)
        self.post(kind, self.last, b"")

    def post(self, kind: int, number: int, data: bytes) -> None:
        self.sink.left += FRAME.pack(kind, number, len(data)) + data

    def receive(self) -> None:
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return
        if not data:
            raise EOFError
        self.incoming += data
        while len(self.incoming) >= FRAME.size:
            kind, number, size = FRAME.unpack_from(self.incoming)
            if size > CHUNK:
                raise ValueError("a frame is too long")
            if len(self.incoming) < FRAME.size + size:
                break
            self.accept(kind, number, self.incoming[FRAME.size : FRAME.size + size])
            del self.incoming[: FRAME.size + size]

    def accept(self, kind: int, number: int, data: bytearray) -> None:
        if kind == TALK:
            self.talk += data
        elif kind in (READER, WRITER) and self.inner:
            self.make(kind, number)
        elif kind not in (BYTES, END):
            raise ValueError("a frame is of no known kind")
        elif number in self.outlets:  # else its reader is gone
            self.outlets[number].left += data
            self.outlets[number].ended |= kind == END

    def make(self, kind: int, number: int) -> None:
        read_end, write_end = os.pipe()
        os.fchmod(read_end, 0o666)  # a program of another user opens it again as /dev/stdin
        if kind == READER:
            self.outlets[number] = Outlet(write_end)
            self.passed.append(read_end)
        else:
            os.set_blocking(read_end, False)
            self.inlets[read_end] = number
            self.passed.append(write_end)

    def flush(self) -> None:
        for number, outlet in list(self.outlets.items()):
            try:
                outlet.flush()
            except OSError:  # its reader is gone
                outlet.left.clear()
                outlet.ended = True
            if outlet.ended and not outlet.left:
                del self.outlets[number]
                self.release(outlet.fd)
        if self.may_talk():
            self.speak()
        self.sink.flush()

    def speak(self) -> None:
        files = struct.pack(f"{len(self.passed)}i", *self.passed)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)] if files else []
        try:
            del self.talk[: self.control.sendmsg([self.talk], rights)]
        except BlockingIOError:
            return
        while self.passed:
            os.close(self.passed.pop())

    def release(self, fd: int) -> None:
        """Close a pipe that may be waited for."""
        os.close(fd)


def main(user: int, lifetime: float) -> NoReturn:
    """Become the agent of the host at the other end of standard input and output."""
    ours, theirs = _socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            theirs.close()
            carry(ours, user, lifetime)
        finally:
            os._exit(0)
    ours.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    os.close(nothing)
    run_agent(theirs.detach(), companion=pid)


def carry(control: _socket.socket, user: int, lifetime: float) -> None:
    """Be the inner relay until a side is gone or the lifetime is over; the agent then ends."""
    if user:  # another one than the programs', which could kill it otherwise
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    else:
        prctl(PR_SET_DUMPABLE, 0)
    relay = Relay(control, 0, 1, inner=True)
    deadline = time.monotonic() + lifetime
    try:
        while (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            for fd, events in relay.interests().items():
                poll.register(fd, events)
            found = poll.poll(min(left, 3600) * 1000 + 1)
            relay.serve([fd for fd, events in found if events & ~select.POLLOUT])
    except (EOFError, OSError):
        return
