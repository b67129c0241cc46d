"""Checkpoints of a run: each is there whole or not at all, and says which step it belongs to."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = "checkpoints"
INDEX = "checkpoint.json"
"""Written last: a folder without it was never finished."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run after a step."""

    step: int
    folder: Path


@contextmanager
def saving(run: Path, step: int) -> Iterator[Path]:
    """Yield a folder to fill; it becomes the checkpoint of `step` when all of it is on the disk."""
    folder = run / FOLDER / f"step_{step}"
    aside = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    yield aside
    (aside / INDEX).write_text(json.dumps({"step": step}) + "\n")
    for path in [*aside.rglob("*"), aside]:
        _flush(path)
    if folder.exists():
        shutil.rmtree(folder)
    aside.rename(folder)
    _flush(folder.parent)


def every(run: Path) -> list[Checkpoint]:
    """The whole checkpoints in order; what a kill left by half is skipped."""
    found = [
        Checkpoint(int(match[1]), folder)
        for folder in (run / FOLDER).glob("step_*")
        if (match := re.fullmatch(r"step_(\d+)", folder.name)) and (folder / INDEX).is_file()
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def latest(run: Path) -> Checkpoint | None:
    return max(every(run), key=lambda checkpoint: checkpoint.step, default=None)


def find(run: Path, step: int) -> Checkpoint | None:
    """The checkpoint of one step."""
    return next((found for found in every(run) if found.step == step), None)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
