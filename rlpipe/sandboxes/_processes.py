"""Processes of this machine that another process may have to end."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from rlpipe.sandboxes._agent.system import Process, descendants, kill, status_words

Identity = tuple[int, str]
"""Process id, and boot and clock tick of its start: the id alone may be another's by now."""

START_TIME = 19


def identity(pid: int) -> Identity | None:
    """None for a process that has ended."""
    words = status_words(pid)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return (pid, f"{boot} {int(words[START_TIME])}") if words else None


def end(process: Identity) -> bool:
    """Kill a process and all that it started; whether it was there."""
    pid = process[0]
    try:
        watched = os.pidfd_open(pid)  # from here on the id cannot become another's
    except OSError:
        return False
    try:
        if identity(pid) != process:
            return False

        def below(found: dict[int, Process]) -> set[int]:
            return descendants(found, {pid}) - {pid}

        # Children first, as without their parent they could not be told from others; and not while
        # it can report their end as something that they did.
        signal.pidfd_send_signal(watched, signal.SIGSTOP)
        kill(below)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(watched, signal.SIGKILL)
    finally:
        os.close(watched)
    return True
