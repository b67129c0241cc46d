"""Tell where the value of a key came from: the command line, the recipe, or a file of a choice."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from rlpipe.config.paths import CONF
from rlpipe.config.problems import Origin
from rlpipe.config.recipe_file import bases, file_of, shown


def origin_of(overrides: Sequence[str], choices: Mapping[str, Any]) -> Origin:
    """Build the look-up for one composed spec.

    `overrides` are the command line's, `choices` Hydra's map from group to chosen file.
    """
    named = [override.lstrip("+~").split("=", 1)[0] for override in overrides]
    given = [name for name in named if name not in choices]

    def origin(key: str) -> str:
        if any(_covers(name, key) or _covers(key, name) for name in given):
            return "command line"
        for label, tree in _files(choices):
            if _holds(tree, key):
                return label
        return ""

    return origin


def _covers(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}.")


def _files(choices: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    recipe = choices.get("recipe")
    if recipe:
        yield from _recipe_chain(str(recipe))
    for group, choice in choices.items():
        names = choice if OmegaConf.is_list(choice) else [choice]
        for name in names:
            file = CONF / str(group) / f"{name}.yaml"
            if "/" in str(group) or not file.is_file():
                continue
            tree = OmegaConf.load(file)
            yield f"conf/{group}/{name}.yaml", {str(group): tree}
    yield "conf/config.yaml", OmegaConf.load(CONF / "config.yaml")


def _recipe_chain(name: str) -> Iterator[tuple[str, Any]]:
    """The recipe's file, then those that it extends."""
    file = file_of(name)
    if file is None:
        return
    tree = OmegaConf.load(file)
    yield shown(file), tree
    for base in bases(tree):
        yield from _recipe_chain(base)


def _holds(tree: Any, key: str) -> bool:
    node = OmegaConf.to_container(tree) if OmegaConf.is_config(tree) else tree
    for part in key.split("."):
        node = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True
