"""The host's end of the socket to an agent, which is treated as hostile."""

import asyncio
import math
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rlpipe.errors import SandboxGone
from rlpipe.sandboxes._agent import wire

CHUNK = 1 << 18
GRACE_SECONDS = 30.0
"""How long after the latest end of its program an answer may come before the agent counts as dead.
"""

MESSAGE_BYTES = 1 << 16
"""What an answer may hold beyond the output that was asked for: the agent's own words."""

LAST_WORDS = 0
"""The number of the first request, under which an agent that crashes says why."""


@dataclass(frozen=True, slots=True)
class Reply:
    outcome: int
    status: int
    truncated: bool
    produced: int
    seconds: float
    output: bytes
    error: bytes


@dataclass(slots=True)
class _Pending:
    answer: asyncio.Future[Reply]
    allowed: int
    alarm: asyncio.TimerHandle


class Channel:
    """Requests to one agent, answered in any order."""

    def __init__(self, connection: socket.socket, on_failure: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._on_failure = on_failure
        self._pending: dict[int, _Pending] = {}
        self._number = -1
        self._incoming = bytearray()
        self._outgoing: deque[tuple[memoryview, int | None]] = deque()
        self._failure: str | None = None
        connection.setblocking(False)
        self._loop.add_reader(connection, self._receive)

    def request(
        self,
        operation: int,
        data: bytes,
        *,
        seconds: float,
        limit: int = 0,
        file: int | None = None,
    ) -> tuple[int, asyncio.Future[Reply]]:
        """Send a request; return its number and the answer to come, which may be `SandboxGone`.

        `file` is passed on and closed.
        """
        self._number += 1
        answer: asyncio.Future[Reply] = self._loop.create_future()
        if self._failure is not None:
            if file is not None:
                os.close(file)
            answer.set_exception(SandboxGone(self._failure, provider="local"))
            return self._number, answer
        alarm = self._loop.call_later(
            seconds * wire.PATIENCE + GRACE_SECONDS, self.fail, "the sandbox does not answer"
        )
        allowed = MESSAGE_BYTES if operation in (wire.READ, wire.WRITE) else limit + MESSAGE_BYTES
        self._pending[self._number] = _Pending(answer, allowed, alarm)
        self._post(operation, self._number, seconds, limit, data, file)
        return self._number, answer

    def cancel(self, number: int) -> None:
        """Have the program of that request killed."""
        if number in self._pending and self._failure is None:
            self._post(wire.CANCEL, number, 0.0, 0, b"", None)

    def fail(self, reason: str) -> None:
        """Answer everything, now and later, with `SandboxGone`."""
        if self._failure is not None:
            return
        self._failure = reason
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, file in self._outgoing:
            if file is not None:
                os.close(file)
        self._outgoing.clear()
        for pending in self._pending.values():
            pending.alarm.cancel()
            if not pending.answer.done():
                pending.answer.set_exception(SandboxGone(reason, provider="local"))
        self._pending.clear()
        self._on_failure(reason)

    def _post(
        self, operation: int, number: int, seconds: float, limit: int, data: bytes, file: int | None
    ) -> None:
        has_file = file is not None
        header = wire.REQUEST.pack(len(data), operation, number, seconds, limit, has_file)
        self._outgoing.append((memoryview(header + data), file))
        if len(self._outgoing) == 1:
            self._send()

    def _send(self) -> None:
        try:
            while self._outgoing:
                data, file = self._outgoing[0]
                files = [] if file is None else [file]
                sent = socket.send_fds(self._socket, [data], files)
                if file is not None:
                    os.close(file)
                if sent < len(data):
                    self._outgoing[0] = (data[sent:], None)
                else:
                    self._outgoing.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._send)
        except OSError:
            self.fail("the sandbox died")
        else:
            self._loop.remove_writer(self._socket)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.fail("the sandbox died")
            return
        self._incoming += data
        while len(self._incoming) >= wire.REPLY.size and self._failure is None:
            if not self._take():
                break

    def _take(self) -> bool:
        """Take one answer from what came; whether there was a whole one."""
        number, outcome, status, truncated, produced, seconds, *sizes = wire.REPLY.unpack_from(
            self._incoming
        )
        pending = self._pending.get(number)
        if number == LAST_WORDS and pending is None:
            self.fail(f"the sandbox died: {bytes(self._incoming[wire.REPLY.size :])[:500]!r}")
            return False
        if pending is None or sum(sizes) > pending.allowed or outcome > wire.KILLED:
            self.fail("the sandbox broke its protocol")
            return False
        middle = wire.REPLY.size + sizes[0]
        end = middle + sizes[1]
        if len(self._incoming) < end:
            return False
        output = bytes(self._incoming[wire.REPLY.size : middle])
        error = bytes(self._incoming[middle:end])
        del self._incoming[:end]
        seconds = seconds if math.isfinite(seconds) and seconds >= 0 else 0.0
        pending.alarm.cancel()
        del self._pending[number]
        if not pending.answer.done():
            pending.answer.set_result(
                Reply(outcome, status, bool(truncated), produced, seconds, output, error)
            )
        return True
