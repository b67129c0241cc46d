"""What a run folder holds, read once: later readings take only what was added.

Rows are taken as they lie there. A folder of another version may lack a key, a run that was killed
may end in half a line, and neither is a reason to show nothing.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rlpipe.errors import RunError
from rlpipe.store import RowTail, read_manifest, read_spec

Row = Mapping[str, Any]


class Brief(NamedTuple):
    """What is kept of a trajectory in memory."""

    file: str
    """Of its trajectory, such as `step_3`."""

    place: int
    """Byte of the file at which its line begins."""

    rollout_id: str
    group_id: str
    task_id: str
    phase: str
    step: int
    reward: float | None
    passed: bool
    outcome: str
    stop_reason: str
    failure: str
    """`boundary/type`, or nothing."""

    turns: int
    tool_calls: Mapping[str, int]
    malformed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seconds: Mapping[str, float]
    """By `total`, `sampling`, `tools` and `grading`."""

    @property
    def scored(self) -> bool:
        return self.reward is not None and not self.failure


class RunData:
    """A run folder in memory. `refresh` takes what was added since the last time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._forget()

    def _forget(self) -> None:
        self.manifest: dict[str, Any] = {}
        self.spec: dict[str, Any] = {}
        self.metrics: dict[int, dict[str, float]] = {}
        """By step; NaN where a figure was not finite."""

        self.trajectories: list[Brief] = []
        self.failures: list[dict[str, Any]] = []
        """Every failed attempt, whether or not another one followed."""

        self._tails: dict[Path, RowTail] = {}
        self._spec_changed: int | None = None

    @property
    def broken(self) -> int:
        """Lines that could not be read."""
        return sum(tail.broken for tail in self._tails.values())

    @property
    def stamp(self) -> str:
        """The same for as long as nothing in the folder changes that the report shows."""
        names = ("manifest.json", "metrics.jsonl", "failures.jsonl", "config.yaml")
        files = [self.folder / name for name in names] + self._trajectory_files()
        stats = [file.stat() for file in files if file.exists()]
        newest = max((stat.st_mtime_ns for stat in stats), default=0)
        return f"{sum(stat.st_size for stat in stats):x}-{newest:x}-{len(stats)}"

    def refresh(self) -> list[tuple[Brief, Row]]:
        """Read what was added; return the trajectories among it.

        All of them are new again where a run was taken up and has gone back to a checkpoint.
        """
        self.refresh_figures()
        added: list[tuple[Brief, Row]] = [
            (brief(file.stem, start, row), row)
            for file in self._trajectory_files()
            for start, row in self._new(file)
        ]
        self.trajectories += [item for item, _ in added]
        return added

    def refresh_figures(self) -> None:
        """Read what was added, trajectories left aside."""
        if any(tail.replaced for tail in self._tails.values()):
            self._forget()
        self.manifest = read_manifest(self.folder)
        self._read_spec()
        for _, row in self._new(self.folder / "metrics.jsonl"):
            self._add_metrics(row)
        self.failures += [row for _, row in self._new(self.folder / "failures.jsonl")]

    def series(self, name: str) -> list[tuple[int, float]]:
        """A metric by step, where it was recorded and is finite."""
        return [
            (step, figures[name])
            for step, figures in sorted(self.metrics.items())
            if math.isfinite(figures.get(name, math.nan))
        ]

    def last_written(self) -> float | None:
        """When the run last wrote something, in seconds since the epoch."""
        files = [self.folder / "manifest.json", *self._tails]
        return max((file.stat().st_mtime for file in files if file.exists()), default=None)

    def _read_spec(self) -> None:
        """Read the spec if it is another one than before, as it may be of a run taken up again."""
        file = self.folder / "config.yaml"
        changed = file.stat().st_mtime_ns if file.exists() else None
        if changed != self._spec_changed:
            self._spec_changed = changed
            with suppress(RunError, yaml.YAMLError):
                self.spec = read_spec(self.folder)

    def _new(self, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        return self._tails.setdefault(file, RowTail(file)).read()

    def _trajectory_files(self) -> list[Path]:
        """The teacher's and the collected ones first, then evaluations and steps as they came."""
        return sorted((self.folder / "trajectories").glob("*.jsonl"), key=_place)

    def _add_metrics(self, row: dict[str, Any]) -> None:
        figures = {
            name: math.nan if value is None else float(value)
            for name, value in row.items()
            if name != "step" and (value is None or isinstance(value, int | float))
        }
        self.metrics.setdefault(int(row.get("step") or 0), {}).update(figures)


def _place(file: Path) -> tuple[int, str]:
    name, _, step = file.stem.rpartition("_")
    return (int(step), name) if step.isdecimal() else (-1, file.stem)


def brief(file: str, start: int, row: Row) -> Brief:
    """What is kept of a row; what it lacks is nothing, zero or the rollout's own name."""
    failure, usage = row.get("failure") or {}, row.get("usage") or {}
    rollout = str(row.get("rollout_id", ""))
    return Brief(
        file=file,
        place=start,
        rollout_id=rollout,
        group_id=str(row.get("group_id") or rollout),
        task_id=str(row.get("task_id", "")),
        phase=str(row.get("phase") or file.partition("_")[0].replace("step", "train")),
        step=int(row.get("step") or 0),
        reward=None if failure else row.get("reward"),
        passed=bool(row.get("passed")) and not failure,
        outcome=str(row.get("outcome") or ""),
        stop_reason=str(row.get("stop_reason") or ""),
        failure=f"{failure.get('boundary', '?')}/{failure.get('type', '?')}" if failure else "",
        turns=len(row.get("turns") or ()),
        tool_calls=row.get("tool_calls") or {},
        malformed=row.get("malformed") or 0,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=usage.get("cached_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        seconds=row.get("timing") or {},
    )


def body(row: Row) -> dict[str, Any]:
    """What a reader sees of a trajectory: the row, each turn with the tokens that it brought.

    The prompt of a turn that goes on from the one before it is cut to what is new in it.
    """
    kept = {name: value for name, value in row.items() if name != "turns"}
    so_far: list[int] = []
    turns = []
    for turn in row.get("turns") or ():
        prompt, sampled = turn.get("prompt_ids"), turn.get("completion_ids")
        shown = {name: turn[name] for name in turn if not name.endswith("_ids")}
        if prompt is not None and sampled is not None:
            goes_on = bool(so_far) and prompt[: len(so_far)] == so_far
            shown |= {
                "given": prompt[len(so_far) :] if goes_on else prompt,
                "goes_on": goes_on,
                "sampled": sampled,
                "logprobs": [round(value, 4) for value in turn.get("logprobs") or ()],
            }
            so_far = prompt + sampled
        turns.append(shown)
    return kept | {"turns": turns}
