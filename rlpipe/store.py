"""The run folder: what a run can be explained, repeated and scored again from.

config.yaml         the resolved spec, secrets redacted
manifest.json       versions, seeds, fingerprints, and how it ended
sandboxes.jsonl     every sandbox that came and went
metrics.jsonl       one row per step and source, each with its step
trajectories/       step_N.jsonl, eval_N.jsonl, teacher.jsonl, collect.jsonl
failures.jsonl      every attempt that the machinery failed
scores/             NAME.jsonl: rewards that were taken again
checkpoints/step_N/
report.html         the run explained, in one file
"""

import fcntl
import hashlib
import json
import logging
import math
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from rlpipe import checkpoints
from rlpipe.config.schema import Experiment
from rlpipe.errors import RunError
from rlpipe.redaction import redact
from rlpipe.types import Trajectory

LOCK = ".lock"
"""Locked as long as the run lives; the kernel ends the lock with the process."""

log = logging.getLogger(__name__)


class RunFolder:
    """One run's folder. Rows are appended and files replaced whole: a killed run is readable."""

    def __init__(self, path: Path, manifest: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._manifest = dict(manifest or {})
        self._lock = (path / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise RunError(f"{path} is in use: its run goes on in another process") from None
        except OSError:  # a file system without locks
            log.warning("%s cannot be locked", path)

    @classmethod
    def create(cls, experiment: Experiment, path: Path | None = None) -> "RunFolder":
        """Make the folder and write the spec.

        Raises:
            RunError: the folder holds a run already, or cannot be made.
        """
        path = path or Path(experiment.output_root, experiment.name, _new_name())
        spec = redact(experiment.model_dump(mode="json"))
        try:
            path.mkdir(parents=True, exist_ok=True)
            with (path / "manifest.json").open("x") as claim:  # one of two racing runs gets it
                claim.write("{}\n")
            (path / "config.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
        except FileExistsError as error:
            if error.filename == str(path):
                raise RunError(f"{path} is a file, not a run folder") from None
            raise RunError(f"{path} holds a run already") from None
        except OSError as error:
            raise RunError(f"no run folder can be made at {path}: {error.strerror}") from None
        return cls(path.absolute())

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        """Take up the folder of a run that stopped, and cut off what a kill left by half.

        Raises:
            RunError: there is no run, or it goes on in another process.
        """
        file = path / "manifest.json"
        if not file.is_file():
            raise RunError(f"{path} holds no run: there is no manifest.json")
        folder = cls(path.absolute(), json.loads(file.read_text()))
        for rows in (*path.glob("*.jsonl"), *path.glob("trajectories/*.jsonl")):
            _trim(rows)
        return folder

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self._manifest

    @property
    def id(self) -> str:
        """A name that no other run has, wherever it was made: sandboxes are found by it.

        A folder that rlpipe named has one; that of `hydra.run.dir=out` or of a sweep's job has not.
        """
        name = self.path.name
        if re.fullmatch(r"[\d_-]{19}-[0-9a-f]{6}", name):
            return name
        place = f"{socket.gethostname()}:{self.path}".encode()
        return f"{name}-{hashlib.sha256(place).hexdigest()[:8]}"

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest, atomically."""
        self._manifest |= facts
        text = json.dumps(_finite(redact(self._manifest)), indent=2, default=str)
        aside = self.path / "manifest.json.new"
        aside.write_text(text + "\n")
        aside.replace(self.path / "manifest.json")

    def add_trajectory(self, name: str, trajectory: Trajectory) -> None:
        self._append(f"trajectories/{name}.jsonl", to_row(trajectory))

    def recorded(self, name: str, total: int) -> list[Trajectory] | None:
        """The trajectories that an earlier attempt of the run recorded, if all of them are there.

        They come in the order of their tasks, as they were handed over then.

        Fewer are set aside, since they will be made again.
        """
        file = self.path / "trajectories" / f"{name}.jsonl"
        if not file.exists():
            return None
        found = list(read_trajectories(file))
        if len(found) == total:
            return sorted(found, key=_place)
        self.set_aside(file)
        return None

    def add_failure(self, trajectory: Trajectory) -> None:
        """Record a failed attempt, whether or not another one follows."""
        row = trajectory.model_dump(
            mode="json",
            include={
                "rollout_id",
                "task_id",
                "step",
                "attempt",
                "policy",
                "sandbox",
                "stop_reason",
            },
        )
        failure = trajectory.failure.model_dump(mode="json") if trajectory.failure else {}
        self._append("failures.jsonl", row | failure)

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record figures; one that is not finite becomes null, as JSON has no other word for it."""
        self._append("metrics.jsonl", {"step": step, **_finite(metrics)})

    def checkpoint(self, step: int) -> AbstractContextManager[Path]:
        """The folder to fill with a checkpoint; see `checkpoints.saving`."""
        return checkpoints.saving(self.path, step)

    def change_spec(self, spec: Mapping[str, Any], changed: Mapping[str, str]) -> None:
        """Write a new spec; the old one is set aside, and the changes noted."""
        self.set_aside(self.path / "config.yaml")
        (self.path / "config.yaml").write_text(yaml.safe_dump(dict(spec), sort_keys=False))
        self.note(changed=[*self._manifest.get("changed", []), dict(changed)])

    def set_aside(self, file: Path) -> None:
        """Move a file that will be written anew into `superseded/N/`."""
        file.rename(self._superseded(file))

    def split(self, file: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Keep the rows of a file that `keep` wants, and set the others aside."""
        if not file.exists():
            return
        rows = list(_rows(file))
        surplus = [row for row in rows if not keep(row)]
        if not surplus:
            return
        self._superseded(file).write_bytes(_lines(surplus))
        aside = file.with_name(f"{file.name}.new")
        aside.write_bytes(_lines([row for row in rows if keep(row)]))
        aside.replace(file)

    def _superseded(self, file: Path) -> Path:
        """A new place for a file or for rows of it."""
        name = file.relative_to(self.path)
        places = (self.path / "superseded" / str(number) / name for number in count(1))
        place = next(place for place in places if not place.exists())
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        file = self.path / name
        file.parent.mkdir(exist_ok=True)
        with file.open("ab") as out:
            out.write(_lines([row]))


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    # A lone surrogate, which a model can say, is written as JSON's own escape of it.
    text = "".join(json.dumps(redact(row), ensure_ascii=False) + "\n" for row in rows)
    return text.encode("utf-8", "backslashreplace")


def _place(trajectory: Trajectory) -> list[int]:
    """Where a trajectory stands among those of its step: its group's number, and its own there."""
    return [int(number) for number in trajectory.rollout_id.split("-")[-2:]]


def _trim(file: Path) -> None:
    """Cut off a last line that has no end."""
    data = file.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(file, whole)


def _new_name() -> str:
    """Two launches in one second get two folders."""
    return f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{secrets.token_hex(3)}"


def to_row(trajectory: Trajectory) -> dict[str, Any]:
    """One flat JSON object: the score's fields stand beside the others, `reward` may be null."""
    row = trajectory.model_dump(mode="json")
    score = row.pop("score") or {}
    return row | {
        "reward": trajectory.reward,
        "reward_parts": score.get("parts", {}),
        "passed": score.get("passed"),
        "tests": score.get("tests", []),
        "outcome": score.get("outcome"),
        "note": score.get("note"),
        "usage": trajectory.usage.model_dump(),
    }


def from_row(row: Mapping[str, Any]) -> Trajectory:
    """The inverse of `to_row`."""
    fields = {name: value for name, value in row.items() if name in Trajectory.model_fields}
    if row["reward"] is not None:
        fields["score"] = {
            "value": row["reward"],
            "parts": row["reward_parts"],
            "passed": row["passed"],
            "tests": row["tests"],
            "outcome": row["outcome"],
            "note": row["note"],
        }
    return Trajectory.model_validate(fields)


def read_trajectories(file: Path) -> Iterator[Trajectory]:
    """The trajectories of one file, in the order in which they ended."""
    yield from map(from_row, _rows(file))


def read_spec(folder: Path) -> dict[str, Any]:
    """The resolved spec of a run.

    Raises:
        RunError: the folder holds no run.
    """
    file = folder / "config.yaml"
    if not file.is_file():
        raise RunError(f"{folder} holds no run: there is no config.yaml")
    spec: dict[str, Any] = yaml.safe_load(file.read_text())
    return spec


def read_run(folder: Path) -> Iterator[tuple[str, Trajectory]]:
    """Every trajectory of a run, with the name of its file."""
    for file in sorted((folder / "trajectories").glob("*.jsonl")):
        for trajectory in read_trajectories(file):
            yield file.stem, trajectory


def add_scores(folder: Path, name: str, scores: Sequence[tuple[str, Trajectory]]) -> Path:
    """Write a new score set; one that is there already is left alone, and this numbered."""
    kept = ("rollout_id", "task_id", "reward", "passed", "reward_parts", "tests", "outcome", "note")
    rows = [
        {"file": file} | {key: row[key] for key in (*kept, "failure")}
        for file, trajectory in scores
        for row in [to_row(trajectory)]
    ]
    path = folder / "scores" / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    numbers = count(2)
    while path.exists():
        path = path.with_name(f"{name}-{next(numbers)}.jsonl")
    lines = (redact(json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def read_metrics(folder: Path) -> dict[int, dict[str, float]]:
    """Figures by step; rows of one step are joined, and null is NaN."""
    steps: dict[int, dict[str, float]] = {}
    file = folder / "metrics.jsonl"
    if file.exists():
        for row in _rows(file):
            step = row.pop("step")
            figures = {name: math.nan if v is None else v for name, v in row.items()}
            steps.setdefault(step, {}).update(figures)
    return steps


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a run noted about itself; nothing where it came to no first note."""
    file = folder / "manifest.json"
    try:
        facts = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def find_runs(root: Path, depth: int = 4) -> list[Path]:
    """The run folders at or below a folder, at most `depth` levels down, sorted by path.

    A sweep's job that was never started is one of them. Folders that may not be read are not.
    """
    if (root / "manifest.json").is_file():
        return [root]
    if depth == 0 or not root.is_dir() or not os.access(root, os.R_OK | os.X_OK):
        return []
    below = sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    return [run for path in below for run in find_runs(path, depth - 1)]


class RowTail:
    """The rows of a file that grows: each reading goes on where the last one ended."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.broken = 0
        """Lines that hold no row, such as one that a kill cut short and that was written on."""

        self._end = 0
        self._inode: int | None = None

    @property
    def replaced(self) -> bool:
        """Whether what was read is no longer what the file holds: a run went back before it."""
        if self._inode is None:
            return False
        try:
            now = self.file.stat()
        except FileNotFoundError:
            return True
        return now.st_ino != self._inode or now.st_size < self._end

    def read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows that were added, each with the byte at which its line begins."""
        if not self.file.exists():
            return
        with self.file.open("rb") as lines:
            self._inode = os.fstat(lines.fileno()).st_ino
            lines.seek(self._end)
            for line in lines:
                if not line.endswith(b"\n"):
                    return  # still being written
                start, self._end = self._end, self._end + len(line)
                row = _row(line)
                if row is None:
                    self.broken += 1
                else:
                    yield start, row


def read_row(file: Path, start: int) -> dict[str, Any] | None:
    """The row whose line begins at byte `start`; None where there is none."""
    with file.open("rb") as lines:
        lines.seek(start)
        return _row(lines.readline())


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, without a last one that a kill has cut short.

    Raises:
        RunError: another line is broken.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return
                raise RunError(f"{file}, line {number}: not valid JSON: {error}") from None
            yield row


def _finite(tree: Any) -> Any:
    """Replace NaN and infinities by None."""
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else None
    if isinstance(tree, Mapping):
        return {key: _finite(value) for key, value in tree.items()}
    return tree
