"""The harness's own time, out of the candidate's reach.

Runs inside a sandbox, so it needs no more than Python 3.9 and its standard library.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # like `_socket`: the public half is slow
import os
import time

from rlpipe.grading.wire import Gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


MARGIN = 1.0
"""Seconds of processor time beyond the whole job's budget that the harness may take."""


class OutOfTime(Gone):
    """The budget of a test, or of the whole job, is used up."""


class Clock:
    """Bounds what tests take.

    Time that the candidate or the harness waited for a busy processor does not count: how loaded
    a machine is must not decide a reward. By the wall clock, each budget may be used up
    `patience` times over.
    """

    def __init__(self, total: float, wall: float, patience: float, candidate: int) -> None:
        """`total` and `wall` are the job's budgets, without and with waits, in seconds."""
        self.total = total
        self.last = wall
        self.patience = patience
        self.began = time.monotonic()
        self.queues = [_queue(os.getpid()), _queue(candidate)]
        self.waited = sum(map(_seconds, self.queues))
        self.seconds = total
        self.deadline = self.last_moment = 0.0
        _signal.signal(_signal.SIGALRM, self._ring)
        # Ends this process where it computes without ever coming to a handler of signals, as in
        # making a set of numbers whose hashes are all the same.
        _signal.setitimer(_signal.ITIMER_PROF, total + MARGIN)

    def spent(self) -> float:
        """Seconds since the job began, less those of waiting for a processor."""
        return self.wall() - sum(map(_seconds, self.queues)) + self.waited

    def wall(self) -> float:
        """Seconds since the job began."""
        return time.monotonic() - self.began

    def over(self) -> bool:
        return self.spent() >= self.total or self.wall() >= self.last

    def limit(self, seconds: float) -> Clock:
        """As a context, raise `OutOfTime` after `seconds`, or earlier at the end of the job."""
        self.seconds = seconds
        return self

    def __enter__(self) -> None:
        spent, wall = self.spent(), self.wall()
        if spent >= self.total or wall >= self.last:
            raise OutOfTime("the time of the whole job is used up")
        self.deadline = min(spent + self.seconds, self.total)
        self.last_moment = min(wall + self.seconds * self.patience, self.last)
        # Rings again and again, since a test's bare `except:` may swallow one.
        _signal.setitimer(_signal.ITIMER_REAL, max(self.deadline - spent, 0.001), 0.05)

    def __exit__(self, *_: object) -> None:
        _signal.setitimer(_signal.ITIMER_REAL, 0)

    def _ring(self, *_: Any) -> None:
        if self.spent() >= self.deadline or self.wall() >= self.last_moment:
            raise OutOfTime("time is up")


def _queue(process: int) -> int:
    """Where Linux says how long a process was ready to run and had no processor, or -1."""
    try:
        return os.open(f"/proc/{process}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _seconds(queue: int) -> float:
    try:
        return int(os.pread(queue, 100, 0).split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
