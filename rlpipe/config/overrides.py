"""What the user typed: made lenient before Hydra reads it, explained where Hydra refuses it.

Hydra stops at the first unknown key. Values are therefore handed over as forced ones, and the
schema, which knows every option, names all wrong keys at once.
"""

import re
from collections.abc import Sequence
from typing import Any

from rlpipe.config.paths import choices, groups
from rlpipe.errors import did_you_mean

_VALUE = re.compile(r"[A-Za-z_][\w.]*=")
_ADDED = ("recipe", "sweep")
"""Groups that no default stands for, so that Hydra wants a `+`; people forget it."""


def lenient(args: Sequence[str]) -> list[str]:
    """`train.steps=3` becomes `++train.steps=3`, `recipe=x` becomes `+recipe=x`.

    What follows `--shell-completion` are no values but Hydra's own words.
    """
    if {"--shell-completion", "-sc"} & set(args):
        return list(args)
    return [_lenient(arg) for arg in args]


def _lenient(arg: str) -> str:
    key = arg.split("=", 1)[0]
    if not _VALUE.match(arg) or key.startswith("hydra.") or key in groups():
        return f"+{arg}" if key in _ADDED and "=" in arg else arg
    return f"+{arg}" if key in _ADDED else f"++{arg}"


def explain(error: Exception) -> str:
    """One line for what Hydra refused."""
    from hydra.errors import MissingConfigException

    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        known = list(error.options or choices(group))
        return f"no {group} named {name!r} (known: {', '.join(known)}){did_you_mean(name, known)}"
    cause: Any = error.__cause__
    text = str(error).strip().splitlines()
    detail = str(cause).strip().splitlines()[0] if cause else ""
    return f"{text[0] if text else type(error).__name__}{': ' + detail if detail else ''}"
