"""Going on with a run that stopped: its folder is taken up as it was after the last checkpoint.

What the run did after that checkpoint will be done again. It is moved into `superseded/N/`, so that
the folder holds every step once and nothing is lost.
"""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlpipe.config.schema import Experiment
from rlpipe.errors import ConfigError, Finding, RunError
from rlpipe.redaction import REDACTED, redact
from rlpipe.spending import TOTALS
from rlpipe.store import RunFolder, read_metrics, read_spec

HARMLESS = (
    *("dry_run", "resume", "output_root", "objective", "tracker*", "limits*"),
    *("train.steps", "train.save_every", "train.eval_every", "evaluate.*"),
    *("rollout.concurrency", "rollout.max_attempts"),
    *("*.base_url", "*.timeout", "*.max_retries", "backend.generation_*", "backend.threads"),
    *("sandbox.warm", "sandbox.max_live", "sandbox.max_starting", "sandbox.max_starts_per_second"),
)
"""Keys that may change: they do not decide what is learned, or only from here on."""


def reopen(run: Path, experiment: Experiment, *, force: bool = False) -> RunFolder:
    """Take up a run's folder with a spec that means what the run's own does.

    Raises:
        RunError: there is no run, it goes on in another process, or it is done.
        ConfigError: the spec differs in what the run means, and `force` is not set.
    """
    before, now = read_spec(run), experiment.model_dump(mode="json")
    hidden = [key for key, value in _flat(now) if REDACTED in str(value)]
    if hidden:
        said = "is a secret, which no run keeps; set it again"
        raise ConfigError([Finding(key, said) for key in hidden])
    now = redact(now)
    changed = dict(_differences(before, now))
    meaning = {key: said for key, said in changed.items() if not _harmless(key)}
    if meaning and not force:
        how = "leave it, or type force=true to go on with it"
        findings = [
            Finding(key, f"changes what the run is about: {said}; {how}")
            for key, said in meaning.items()
        ]
        raise ConfigError(findings)
    folder = RunFolder.reopen(run)
    if changed:
        folder.change_spec(now, changed)
    return folder


def rewind(folder: RunFolder, step: int) -> None:
    """Set aside what was recorded after a step; -1 stands for everything that will be made again.

    Evaluations after `step` itself stay: a checkpoint is written after them.
    """
    for file in sorted((folder.path / "trajectories").glob("*_*.jsonl")):
        number = file.stem.rpartition("_")[2]
        if number.isdigit() and int(number) > step:
            folder.set_aside(file)
    for name in ("metrics.jsonl", "failures.jsonl"):
        folder.split(folder.path / name, lambda row: row["step"] <= step)


def spent(folder: RunFolder) -> dict[str, float]:
    """The last totals of tokens and costs that the run recorded, whatever is set aside of it."""
    totals: dict[str, float] = {}
    for _, figures in sorted(read_metrics(folder.path).items()):
        totals |= {name: n for name, n in figures.items() if name.startswith((TOTALS, "costs/"))}
    return totals


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    old, new = dict(_flat(before)), dict(_flat(now))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield key, f"{_said(old, key)} -> {_said(new, key)}"


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def _said(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "not set"


def _harmless(key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in HARMLESS)


def refuse_unless_training(experiment: Experiment) -> None:
    """Only what makes checkpoints can go on from one.

    Raises:
        RunError: the run does not train.
    """
    if experiment.mode != "train":
        raise RunError(f"mode={experiment.mode} has no checkpoints to go on from; start it again")
