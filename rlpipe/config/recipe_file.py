"""Read a recipe's file, or say in one line what is wrong with it and where."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlpipe.config.paths import recipe_folders
from rlpipe.errors import ConfigError, Finding


def read(file: Path) -> DictConfig:
    """A recipe that Hydra can compose.

    Raises:
        ConfigError: it is no mapping of options, or it extends itself.
    """
    tree = _parsed(file)
    if not isinstance(tree, DictConfig) or not tree:
        found = "it is empty" if not tree else "it is a list"
        raise _wrong(file, f"{found}; a recipe holds options, such as train: {{steps: 5}}")
    problems = list(_wrong_defaults(tree))
    if problems:
        raise ConfigError([Finding("defaults", said, shown(file)) for said in problems])
    _refuse_circle(file.stem, ())
    return tree


def _parsed(file: Path) -> Any:
    try:
        return OmegaConf.load(file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = error.problem or error.context or "it is no YAML"
        raise _wrong(file, said.strip(), mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise _wrong(file, str(error).splitlines()[0]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _wrong(file, "it is not in UTF-8; save it so", line) from None
    except OSError as error:  # also OmegaConf's word for a file that is only a number
        reason = error.strerror or "it holds no options, such as train: {steps: 5}"
        raise _wrong(file, reason) from None


def _wrong_defaults(tree: DictConfig) -> Iterator[str]:
    """What Hydra would trip over in the list of what a recipe builds on."""
    plain: Any = OmegaConf.to_container(tree)
    if "defaults" not in plain:
        return
    entries = plain["defaults"]
    if not isinstance(entries, list):
        yield f"takes a list, such as [quickstart, _self_] (got {entries!r})"
        return
    for entry in entries:
        if isinstance(entry, Mapping) and len(entry) == 1:
            (choice,) = entry.values()
            names = choice if isinstance(choice, list) else [choice]
            if choice is None or all(isinstance(name, str) for name in names):
                continue
        elif isinstance(entry, str):
            continue
        yield f"an entry is a recipe's name or `override /group: choice` (got {entry!r})"


def _refuse_circle(name: str, below: tuple[str, ...]) -> None:
    """Hydra would follow recipes that extend each other for ever."""
    file = file_of(name)
    if file is None:
        return
    if name in below:
        chain = " -> ".join([*below[below.index(name) :], name])
        raise _wrong(file, f"recipes extend each other in a circle: {chain}")
    for base in bases(_parsed(file)):
        _refuse_circle(base, (*below, name))


def file_of(name: str) -> Path | None:
    """Where a recipe lies."""
    files = (folder / f"{name}.yaml" for folder in recipe_folders())
    return next((file for file in files if file.is_file()), None)


def bases(tree: Any) -> Iterator[str]:
    """The recipes that a recipe extends."""
    entries = tree.get("defaults") if isinstance(tree, DictConfig) else None
    for entry in entries if isinstance(entries, ListConfig) else []:
        if isinstance(entry, str) and entry != "_self_":
            yield entry.removeprefix("/").removeprefix("recipe/")
        elif isinstance(entry, DictConfig):
            names = (entry[key] for key in entry if str(key).split()[-1].strip("/") == "recipe")
            yield from (str(name) for name in names)


def _wrong(file: Path, said: str, line: int | None = None) -> ConfigError:
    place = f"{shown(file)}, line {line}" if line else shown(file)
    return ConfigError([Finding("", f"{place}: {said}")])


def shown(file: Path) -> str:
    """A recipe's file, as messages name it."""
    return f"recipes/{file.name}"
