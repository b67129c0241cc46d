"""Processor time of a command and of everything that it starts, whoever reaps it.

`getrusage` misses processes that their parent never waits for, as a sandbox's are, so the command
runs in a control group of its own.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOTS = ((Path("/sys/fs/cgroup/cpuacct"), "cpuacct.usage"), (Path("/sys/fs/cgroup"), "cpu.stat"))


def run(command: Sequence[str | Path], text: str) -> tuple[str, float | None]:
    """What a command prints when it is given `text`, and its seconds of processor time.

    The time is None where no control group can be made.
    """
    group = _group()

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=1800,
            preexec_fn=enter,
        )
        return done.stdout, None if group is None else _seconds(group)
    finally:
        if group is not None:
            group.rmdir()


def _group() -> Path | None:
    for root, counter in ROOTS:
        group = root / f"rlpipe-benchmark-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / counter).exists() and os.access(group / "cgroup.procs", os.W_OK):
            return group
        group.rmdir()
    return None


def _seconds(group: Path) -> float:
    usage = group / "cpuacct.usage"
    if usage.exists():
        return int(usage.read_text()) / 1e9
    words = (group / "cpu.stat").read_text().split()
    return int(words[words.index("usage_usec") + 1]) / 1e6
