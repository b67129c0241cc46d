"""The run folder: what a run can be explained, repeated and scored again from.

config.yaml         the resolved spec, secrets redacted
manifest.json       versions, seeds, fingerprints, and how it ended
sandboxes.jsonl     every sandbox that came and went
metrics.jsonl       one row per step and source, each with its step
trajectories/       step_N.jsonl, eval_N.jsonl, teacher.jsonl, collect.jsonl
failures.jsonl      every attempt that the machinery failed
scores/             NAME.jsonl: rewards that were taken again
checkpoints/step_N/
"""

import hashlib
import json
import math
import re
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from rlpipe.config.schema import Experiment
from rlpipe.errors import RunError
from rlpipe.redaction import redact
from rlpipe.types import Trajectory


class RunFolder:
    """One run's folder. Rows are appended and files replaced whole: a killed run is readable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifest: dict[str, Any] = {}

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

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step_{step}"

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        file = self.path / name
        file.parent.mkdir(exist_ok=True)
        # A lone surrogate, which a model can say, is written as JSON's own escape of it.
        with file.open("a", encoding="utf-8", errors="backslashreplace") as out:
            out.write(json.dumps(redact(row), ensure_ascii=False) + "\n")


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
