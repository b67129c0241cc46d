"""Which sandboxes a run has, written into its folder as they come and go.

The file is locked as long as its run lives, and the kernel ends the lock with the process: whoever
can lock a ledger that was never closed has found a run that was killed.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlpipe.sandboxes import _processes
from rlpipe.sandboxes.base import Status

NAME = "sandboxes.jsonl"
DEPTHS = ("", "*/", "*/*/", "*/*/*/")
"""Where runs lie below an output root: `<experiment>/<run>`, or `<experiment>/<sweep>/<job>`."""


class Ledger:
    """The ledger of the run that is going on in this process."""

    def __init__(self, file: Path, *, run: str, provider: str, tags: tuple[str, ...]) -> None:
        self._told = {"provider": provider, "tags": tags}
        self._file = file.open("ab", buffering=0)
        with suppress(OSError):  # a file system without locks: no other process takes it for dead
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.record("opened", run=run, host=socket.gethostname(), **self._told)

    def record(self, event: str, **facts: Any) -> None:
        """Add a line. Without buffering, so that a killed run has written what it did."""
        if event == "started":
            process = facts.get("process")
            facts |= self._told | {"process": process and _processes.identity(process)}
        row = {"event": event, "time": time.time(), **facts}
        self._file.write(json.dumps(row).encode() + b"\n")

    def close(self) -> None:
        """Say that nothing is left."""
        self.record("closed")
        self._file.close()


@dataclass(frozen=True, slots=True)
class Entry:
    """One sandbox, as its run last wrote of it."""

    id: str
    """Empty while it is being started."""

    status: Status
    began: float
    """Seconds since the epoch."""

    tags: tuple[str, ...] = ()
    process: _processes.Identity | None = None


@dataclass(slots=True)
class Account:
    """What a ledger says, read by another process."""

    file: Path
    run: str = ""
    provider: str = ""
    host: str = ""
    tags: tuple[str, ...] = ()
    settled: bool = False
    """Whether the run, or the sweep after it, saw to it that nothing was left."""

    entries: dict[Any, Entry] = field(default_factory=dict)
    """By id, or by the number of a start that is not yet done; without those that ended."""

    @property
    def alive(self) -> bool:
        """Whether the run goes on; taken for granted where that cannot be known."""
        with self.file.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        # Killed before its first line, a run had started nothing, wherever it was.
        return self.host not in ("", socket.gethostname())

    def settle(self, **facts: Any) -> None:
        """Write down that nothing is left of a run that was killed."""
        row = {"event": "swept", "time": time.time(), **facts}
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _take(self, row: dict[str, Any]) -> None:
        event = row["event"]
        if event == "opened":
            self.run, self.provider, self.host = row["run"], row["provider"], row["host"]
            self.tags, self.settled = tuple(row["tags"]), False
            self.entries.clear()
        elif event == "asked":
            self.entries[row["number"]] = Entry("", "pending", row["time"], self.tags)
        elif event == "started":
            entry = self.entries.pop(row["number"])
            process = row["process"] and tuple(row["process"])
            self.entries[row["id"]] = replace(
                entry, id=row["id"], status="running", process=process
            )
        elif event == "claimed" and row["id"] in self.entries:
            entry = self.entries[row["id"]]
            self.entries[row["id"]] = replace(entry, tags=(*self.tags, *row["tags"]))
        elif event in ("failed", "stopped"):
            self.entries.pop(row["number"] if event == "failed" else row["id"], None)
        else:
            self.settled = True
            self.entries.clear()


def read(file: Path) -> Account:
    """Take a ledger's lines; what a killed run wrote by half is left out."""
    account = Account(file)
    for line in file.read_bytes().splitlines():
        with suppress(json.JSONDecodeError):
            account._take(json.loads(line))
    return account


def unsettled(root: Path) -> Iterator[Account]:
    """The ledgers below `root` of runs that go on or were killed."""
    for depth in DEPTHS:
        for file in sorted(root.glob(f"{depth}{NAME}")):
            if not _ends_settled(file):
                yield read(file)


def _ends_settled(file: Path) -> bool:
    """Whether the last line says so, without reading the others."""
    with file.open("rb") as ledger:
        size = ledger.seek(0, os.SEEK_END)
        ledger.seek(max(0, size - 4096))
        lines = ledger.read().splitlines()
    last = lines[-1] if lines else b""
    return last.startswith((b'{"event": "closed"', b'{"event": "swept"'))
