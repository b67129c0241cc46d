"""What the user typed: made lenient before Hydra reads it, explained where Hydra refuses it.

Hydra stops at the first unknown key. Values are therefore handed over as forced ones, and the
schema, which knows every option, names all wrong keys at once.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

from rlpipe.config.paths import choices, groups
from rlpipe.config.problems import renamed
from rlpipe.config.schema import Experiment
from rlpipe.errors import ConfigError, Finding, did_you_mean

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


def flags_first(args: Sequence[str]) -> list[str]:
    """Put Hydra's flags before the overrides: argparse takes none between them.

    Raises:
        ConfigError: there is no such flag, or its value is wrong.
    """
    if not any(arg.startswith("-") for arg in args):
        return list(args)
    from hydra._internal.utils import get_args_parser

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; rlpipe --hydra-help shows every flag")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    flags: list[str] = []
    others: list[str] = []
    left = deque(args)
    while left:
        arg = left.popleft()
        if not arg.startswith("-"):
            others.append(arg)
            continue
        action = parser._option_string_actions.get(arg)
        _refuse_foreign(arg)
        if action and action.nargs == "?":  # its value may be left out
            given = left and left[0] in (action.choices or ())
            arg = f"{action.option_strings[0]}={left.popleft() if given else action.const}"
        flags.append(arg)
        if action and action.nargs is None and left:
            flags.append(left.popleft())
    parser.parse_args([*flags, *others])
    return flags + others


def _refuse_foreign(flag: str) -> None:
    """Scripts take their options as flags: say which key it is here.

    Raises:
        ConfigError: it is one that has a key.
    """
    dashed = flag.partition("=")[0]
    word = dashed.lstrip("-").replace("-", "_")
    ours = renamed(word) or (word if word in (*groups(), *Experiment.model_fields) else None)
    if ours and dashed.startswith("--"):
        raise ConfigError(f"{dashed}: options are keys here, and this one is called {ours}")


def check_choices(args: Sequence[str]) -> None:
    """Refuse what Hydra would trip over: a choice that is no name, a value without a key.

    Raises:
        ConfigError: with one finding for every such argument.
    """
    findings = [Finding("", f"{arg!r} has no key before its =") for arg in args if arg[:1] == "="]
    for arg in args:
        group, sign, value = arg.lstrip("+").partition("=")
        if sign and group in (*_ADDED, *groups()) and not _names(arg):
            hint = f"; {group}=[] chooses none" if group in ("tools", "tracker") else ""
            known = ", ".join(choices(group))
            said = f"takes the name of a choice, not {value} (known: {known}){hint}"
            findings.append(Finding(group, said, "command line"))
    if findings:
        raise ConfigError(findings)


def _names(arg: str) -> bool:
    """Whether a choice is a name or a list of names, for each job of a sweep."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ChoiceSweep, Glob, QuotedString
    from hydra.errors import OverrideParseException

    def is_name(value: Any) -> bool:
        return isinstance(value, str | QuotedString | Glob)

    try:
        value = OverridesParser.create().parse_override(arg).value()
    except OverrideParseException:
        return True  # Hydra says what is wrong with it
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    return all(all(map(is_name, v)) if isinstance(v, list) else is_name(v) for v in values)


def group_of(arg: str) -> str:
    """What an argument chooses or sets: the `backend` of `backend=trl`, the key of a value."""
    return arg.lstrip("+").partition("=")[0]


def explain(error: Exception) -> Finding:
    """What Hydra refused, in one line."""
    from hydra.errors import MissingConfigException

    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        known = list(error.options or choices(group))
        hint = did_you_mean(name, known)
        return Finding(group, f"no choice {name!r} (known: {', '.join(known)}){hint}")
    cause: Any = error.__cause__
    text = str(error).strip().splitlines()
    detail = str(cause).strip().splitlines()[0] if cause else ""
    said = text[0] if text else type(error).__name__
    return Finding("", f"{said}{': ' + detail if detail else ''}")
