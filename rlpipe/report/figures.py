"""What the page of a run draws, as plain data: figures first, trajectories by their columns."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rlpipe.report import summary
from rlpipe.report.data import Brief, RunData
from rlpipe.report.spec import differences

MOST_VALUES = 8
"""Distinct rewards that are told apart in a distribution; more are put into this many bins."""


def figures(
    data: RunData, *, against: Path | None = None, now: float | None = None
) -> dict[str, Any]:
    """Everything but the trajectories; `against` is the run whose spec is laid beside."""
    now = time.time() if now is None else now
    return {
        "run": _run(data),
        "answers": summary.answers(data, now),
        "metrics": _metrics(data),
        "rewards": distribution([i for i in data.trajectories if i.phase == "train"]),
        "spec": yaml.safe_dump(data.spec, sort_keys=False, allow_unicode=True, width=100),
        "against": compared(data, against) if against else None,
        "written": now,
    }


def _run(data: RunData) -> dict[str, Any]:
    facts = data.manifest
    return {
        "name": facts.get("name") or data.folder.parent.name,
        "folder": str(data.folder),
        "id": data.folder.name,
        "mode": facts.get("mode", "train"),
        "status": facts.get("status", "unknown"),
        "last_written": data.last_written(),
        "broken": data.broken,
        "steps": (data.spec.get("train") or {}).get("steps"),
        "kinds": _kinds(data.spec),
        "manifest": facts,
    }


def _kinds(spec: dict[str, Any]) -> dict[str, str]:
    parts = ("dataset", "policy", "teacher", "sandbox", "reward", "train", "backend")
    kinds = {part: (spec.get(part) or {}).get("kind") for part in parts}
    kinds["tools"] = ", ".join(spec.get("tools") or ()) or None
    return {part: str(kind) for part, kind in kinds.items() if kind}


def _metrics(data: RunData) -> dict[str, Any]:
    """Every metric as a column over all steps; null where it is missing or not finite."""
    steps = sorted(data.metrics)
    names = sorted({name for row in data.metrics.values() for name in row})
    rows = [data.metrics[step] for step in steps]
    columns = {name: [_finite(row.get(name, math.nan)) for row in rows] for name in names}
    return {"steps": steps, "columns": columns}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def distribution(items: Sequence[Brief]) -> dict[str, Any]:
    """How many rollouts of each step have which reward; those that were masked stand last."""
    rewards = sorted({item.reward for item in items if item.reward is not None})
    edges = rewards if len(rewards) <= MOST_VALUES else _edges(rewards[0], rewards[-1])
    labels = [f"{edge:g}" for edge in rewards]
    if edges is not rewards:
        bounds = [*edges, rewards[-1]]
        labels = [f"{low:.3g} to {high:.3g}" for low, high in zip(edges, bounds[1:], strict=True)]
    steps = sorted({item.step for item in items})
    counted = Counter((item.step, _bin(item.reward, edges)) for item in items)
    counts = [[counted[step, n] for step in steps] for n in range(len(edges))]
    masked = [counted[step, None] for step in steps]
    return {"steps": steps, "labels": labels, "counts": counts, "masked": masked}


def _edges(low: float, high: float) -> list[float]:
    return [low + (high - low) * n / MOST_VALUES for n in range(MOST_VALUES)]


def _bin(reward: float | None, edges: Sequence[float]) -> int | None:
    if reward is None:
        return None
    return sum(edge <= reward for edge in edges) - 1


def compared(data: RunData, other: Path) -> dict[str, Any]:
    """What another run has set otherwise, and what it came to."""
    theirs = RunData(other)
    theirs.refresh_figures()
    return {
        "id": other.name,
        "result": theirs.manifest.get("result") or {},
        "evaluations": summary.evaluations(theirs),
        "settings": differences({"other": theirs.spec, "this": data.spec}),
    }


COLUMNS = ("file", "rollout", "group", "task", "phase", "step", "reward", "passed", "outcome",
           "stop", "failure", "turns", "calls", "tokens", "seconds", "first", "second")  # fmt: skip
"""Of the index. `first` and `second` say where the rest of a trajectory lies."""


def index(items: Sequence[Brief], places: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The trajectories by columns; a column of few different words is coded.

    Args:
        places: for each, where its body lies: a chunk of the file and its place in it, or -1 and
            the byte of its line.
    """
    rows = [
        (
            item.file,
            item.rollout_id,
            item.group_id,
            item.task_id,
            item.phase,
            item.step,
            item.reward,
            int(item.passed),
            item.outcome,
            item.stop_reason,
            item.failure,
            item.turns,
            sum(item.tool_calls.values()),
            item.completion_tokens,
            round(item.seconds.get("total", 0.0), 2),
            *place,
        )
        for item, place in zip(items, places, strict=True)
    ]
    columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
    named = dict(zip(COLUMNS, columns, strict=True))
    coded = {"file", "group", "task", "phase", "outcome", "stop", "failure"}
    return {name: _coded(column) if name in coded else column for name, column in named.items()}


def _coded(column: Sequence[str]) -> dict[str, Any]:
    words = {word: code for code, word in enumerate(dict.fromkeys(column))}
    return {"words": list(words), "codes": [words[word] for word in column]}
