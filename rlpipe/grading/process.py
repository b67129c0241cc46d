"""The candidate's process from its parent's side: it is forked, and ended with all that it left.

Runs inside a sandbox, so it needs no more than Python 3.9 and its standard library.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # like `_socket`: the public half is slow
import _socket
import os
import sys
import time

from rlpipe.grading.candidate import run_candidate
from rlpipe.grading.libc import prctl
from rlpipe.grading.remote import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_DUMPABLE = 4
PR_GET_DUMPABLE = 3
PR_SET_CHILD_SUBREAPER = 36


def shut() -> None:
    """Keep every other process out of this one's memory and descriptors; adopt all orphans."""
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit("this process cannot be closed to others")


def start() -> Link:
    """Fork the candidate's process.

    Raises:
        OSError: there is no room for one.
    """
    mine, theirs = _socket.socketpair()
    process = os.fork()
    if process == 0:
        run_candidate(theirs)
    theirs.close()
    return Link(mine, process)


def end(link: Link, seconds: float = 1.0) -> None:
    """Kill a candidate's process and every process that it left behind."""
    link.wire.connection.close()
    _kill(os.killpg, link.process)
    _kill(os.kill, link.process)
    os.waitpid(link.process, 0)
    # Orphans come to the harness, their subreaper, once their parent is dead. They may fork on.
    stop = time.monotonic() + seconds
    while time.monotonic() < stop and (orphans := _children()):
        for orphan in orphans:
            _kill(os.kill, orphan)
            os.waitpid(orphan, 0)


def _kill(how: Callable[[int, int], None], process: int) -> None:
    try:
        how(process, _signal.SIGKILL)
    except OSError:  # it is gone
        return


def _children() -> list[int]:
    try:
        listing = os.open("/proc/thread-self/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return [int(child) for child in os.read(listing, 1 << 16).split()]
    finally:
        os.close(listing)
