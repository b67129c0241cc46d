"""Runs beside each other: a row for each, and the settings in which they differ."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlpipe.provenance import NOT_MEANING
from rlpipe.report import summary
from rlpipe.report.data import RunData
from rlpipe.report.spec import ABSENT, flatten, shown
from rlpipe.store import find_runs

MOST_RUNS = 500
"""Runs that are listed: the newest."""

CURVES = ("val/pass_rate", "train/reward", "train/pass_rate", "val/reward")
"""Metrics that are drawn over each other."""


class Runs:
    """The runs below a folder, each read again only when it has changed."""

    def __init__(self, root: Path, depth: int = 4) -> None:
        self.root = root
        self._depth = depth
        self._read: dict[Path, tuple[str, RunData]] = {}

    def folders(self) -> dict[str, Path]:
        """Run folders by their path below the root."""
        found = find_runs(self.root, self._depth)
        newest = sorted(found, key=lambda run: run.stat().st_mtime, reverse=True)[:MOST_RUNS]
        return {str(run.relative_to(self.root)): run for run in sorted(newest)}

    def table(self) -> dict[str, Any]:
        """What the page of runs shows."""
        data = {id: self._data(folder) for id, folder in self.folders().items()}
        now = time.time()
        return {
            "root": str(self.root),
            "runs": [row(id, run, now) for id, run in data.items()],
            "settings": settings(list(data.values())),
        }

    def _data(self, folder: Path) -> RunData:
        known = self._read.get(folder)
        stamp = known[1].stamp if known else ""
        if known and known[0] == stamp:
            return known[1]
        data = known[1] if known else RunData(folder)
        with suppress(FileNotFoundError):  # it was removed meanwhile
            data.refresh_figures()
        self._read[folder] = (data.stamp, data)
        return data


def row(id: str, data: RunData, now: float) -> dict[str, Any]:
    """One run in the table."""
    facts, rates = data.manifest, summary.evaluations(data)
    return {
        "id": id,
        "name": facts.get("name") or data.folder.parent.name,
        "mode": facts.get("mode", ""),
        "status": facts.get("status", "unknown"),
        "error": facts.get("error", ""),
        "started": facts.get("started"),
        "seconds": summary.wall_seconds(data, now),
        "step": max(data.metrics, default=0),
        "steps": (data.spec.get("train") or {}).get("steps"),
        "before": rates[0] if len(rates) > 1 else None,
        "after": rates[-1] if rates else None,
        "reward": _last(data, "train/reward", "collect/reward", "val/reward"),
        "failed": len(data.failures),
        "results": {name: _last(data, name) for name in RESULTS if data.series(name)},
        "curves": {name: data.series(name) for name in CURVES if data.series(name)},
    }


RESULTS = (
    *("val/pass_rate", "val/pass@1", "val/reward", "train/reward", "train/pass_rate"),
    *("collect/pass_rate", "collect/reward", "rollout/turns", "rollout/tool_calls"),
    *("rollout/infra_failure_rate", "completions/clipped_ratio", "time/step"),
)
"""Metrics that an axis may show; the last value of each."""


def settings(runs: Sequence[RunData]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs that have a spec; null where one has none."""
    flat = [flatten(run.spec) for run in runs]
    keys = dict.fromkeys(key for spec in flat for key in spec if key not in NOT_MEANING)
    columns = {key: [spec.get(key, ABSENT) if spec else None for spec in flat] for key in keys}
    return {
        key: [value if _plain(value) else shown(value) for value in values]
        for key, values in columns.items()
        if len({shown(value) for value, spec in zip(values, flat, strict=True) if spec}) > 1
    }


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _last(data: RunData, *names: str) -> float | None:
    for name in names:
        if series := data.series(name):
            return series[-1][1]
    return None
