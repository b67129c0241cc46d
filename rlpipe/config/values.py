"""The values of a composed tree, and every one that is missing or cannot be resolved."""

from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

UNSET = "???"


def values_of(cfg: DictConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree as plain data, and by key what is wrong; a wrong value stays `???`."""
    wrong: dict[str, str] = {}
    return _plain(cfg, "", wrong), wrong


def _plain(node: Any, key: str, wrong: dict[str, str]) -> Any:
    if isinstance(node, DictConfig):
        names = {str(name): name for name in node}
        return {text: _value(node, name, _join(key, text), wrong) for text, name in names.items()}
    if isinstance(node, ListConfig):
        return [_value(node, i, _join(key, str(i)), wrong) for i in range(len(node))]
    return node


def _value(node: Any, name: Any, key: str, wrong: dict[str, str]) -> Any:
    """One value; unlike OmegaConf's own conversion, a bad one does not hide the others."""
    try:
        return _plain(node[name], key, wrong)
    except MissingMandatoryValue:
        wrong[key] = f"required; set it in a recipe or as {key}=..."
    except RecursionError:
        wrong[key] = _unresolved(node, name, "it refers to itself")
    except OmegaConfBaseException as error:
        wrong[key] = _unresolved(node, name, str(error).splitlines()[0])
    return UNSET


def _unresolved(node: Any, name: Any, reason: str) -> str:
    raw: Any = OmegaConf.to_container(node, resolve=False)
    text = raw[name]
    return f"{text} does not resolve: {reason}; set a value, or refer to one that there is"


def _join(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name
