"""Specs beside each other: which settings differ, and between which runs it is worth asking."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlpipe.provenance import NOT_MEANING
from rlpipe.store import find_runs, read_manifest


def flatten(tree: Any, path: str = "") -> dict[str, Any]:
    """Every value by its key path; an empty mapping is a value, and so is a list."""
    if not isinstance(tree, Mapping) or not tree:
        return {path: tree} if path else {}
    joined: dict[str, Any] = {}
    for key, value in tree.items():
        joined |= flatten(value, f"{path}.{key}" if path else str(key))
    return joined


def shown(value: Any) -> str:
    """A setting as YAML has it on one line; `absent` where a spec has no such key."""
    return "absent" if value is ABSENT else json.dumps(value, ensure_ascii=False, default=str)


ABSENT = object()
"""Stands for the value of a key that a spec does not have."""


def differences(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The settings that are not the same in all specs: the values by key path, in their order."""
    flat = [flatten(spec) for spec in specs.values()]
    keys = dict.fromkeys(key for spec in flat for key in spec)
    rows = {key: [shown(spec.get(key, ABSENT)) for spec in flat] for key in keys}
    return {
        key: values
        for key, values in rows.items()
        if len(set(values)) > 1 and key not in NOT_MEANING
    }


def run_before(folder: Path) -> Path | None:
    """The run of the same folder that started last before this one."""
    began = read_manifest(folder).get("started") or ""
    starts = [
        (str(read_manifest(run).get("started") or ""), run)
        for run in find_runs(folder.parent, depth=1)
        if run != folder
    ]
    earlier = [(start, run) for start, run in starts if start and start <= began]
    return max(earlier)[1] if earlier else None
