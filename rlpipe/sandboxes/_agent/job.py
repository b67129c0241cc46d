"""One program that runs, and what it wrote, up to a limit."""

from __future__ import annotations

import os
import time

from .system import SIGKILL
from .wire import EXITED, KILLED, REPLY

STDOUT, STDERR = 1, 2
FLOOD_FACTOR, FLOOD_BYTES = 8, 1 << 20
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
NEVER = float("inf")


class Output:
    """What a program wrote into its streams; kept up to a limit for all of them together."""

    def __init__(self, limit: int, *streams: int) -> None:
        self.limit = limit
        self.produced = 0
        self.streams = {stream: bytearray() for stream in streams}

    def take(self, stream: int, data: bytes) -> None:
        self.produced += len(data)
        room = self.limit - self.kept
        self.streams[stream] += data[: max(0, room)]

    @property
    def kept(self) -> int:
        return sum(map(len, self.streams.values()))

    @property
    def truncated(self) -> bool:
        return self.produced > self.kept

    @property
    def floods(self) -> bool:
        """Whether it goes so far beyond the limit that the program has to be stopped."""
        return self.produced > max(self.limit * FLOOD_FACTOR, FLOOD_BYTES)


class Job:
    """One program that runs."""

    def __init__(self, number: int, limit: int) -> None:
        self.number = number
        self.pid = 0
        self.begun = time.monotonic()
        self.seconds = 0.0
        self.queued = 0.0
        self.ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND)
        self.deadline = NEVER
        self.outcome = EXITED
        self.output = Output(limit)

    def reply(self, status: int) -> bytes:
        if self.outcome == EXITED and status == -SIGKILL:
            self.outcome = KILLED
        output, error = self.output.streams.values()
        seconds = time.monotonic() - self.begun
        counts = self.output.truncated, self.output.produced, seconds, len(output), len(error)
        return REPLY.pack(self.number, self.outcome, status, *counts) + output + error


def message(number: int, status: int, text: str) -> bytes:
    """The answer in place of a program that did not start."""
    data = text.encode("utf-8", "backslashreplace")
    return REPLY.pack(number, EXITED, status, 0, len(data), 0.0, 0, len(data)) + data
