"""Turn a composed tree into a typed `Experiment`, or say everything that is wrong with it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlpipe.config.schema import Experiment
from rlpipe.errors import ConfigError, Finding, did_you_mean

ELSEWHERE = {
    "num_generations": "train.group_size",
    "trajectories_per_problem": "train.group_size",
    "trajectories_per_group": "train.group_size",
    "rollouts_per_example": "train.group_size",
    "groups_per_step": "train.groups_per_batch",
    "batch_size": "train.groups_per_batch",
    "num_steps": "train.steps",
    "max_steps": "train.steps",
    "num_train_steps": "train.steps",
    "lr": "train.learning_rate",
    "kl_coef": "train.beta",
    "kl_penalty_coef": "train.beta",
    "clip_range": "train.epsilon",
    "loss_type": "train.loss_fn",
    "lora_r": "train.lora_rank",
    "max_completion_length": "rollout.max_tokens",
    "max_new_tokens": "rollout.max_tokens",
    "max_response_length": "rollout.max_tokens",
    "max_tool_calling_iterations": "rollout.max_tool_calls",
    "max_concurrent": "rollout.concurrency",
    "num_problems": "dataset.limit",
    "container_image": "sandbox.image",
    "model_name_or_path": "policy.model",
    "base_model": "policy.model",
}
"""Names that other tools use, and what they are called here."""

Origin = Callable[[str], str]
"""Tells where the value of a key came from; empty where that is unknown."""


def load(cfg: DictConfig, origin: Origin = lambda key: "") -> Experiment:
    """Judge a composed tree.

    Raises:
        ConfigError: with one finding for every problem.
    """
    missing = [
        Finding(key, f"required; set it in a recipe or as {key}=...", origin(key))
        for key in sorted(OmegaConf.missing_keys(cfg))
    ]
    tree = _resolve(cfg)
    unset = {finding.key for finding in missing}
    try:
        experiment = Experiment.model_validate(tree)
    except ValidationError as error:
        found = [_finding(item, tree, origin) for item in _once(error.errors())]
        raise ConfigError(missing + [f for f in found if f.key not in unset]) from None
    if missing:
        raise ConfigError(missing)
    return experiment


def _resolve(cfg: DictConfig) -> dict[str, Any]:
    try:
        tree: Any = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", "") or "")
        reason = str(error).splitlines()[0]
        raise ConfigError([Finding(key, reason)]) from None
    return {str(key): value for key, value in tree.items()}


def _once(items: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out what follows from a component without a kind: that none of its options is known."""
    kindless = {item["loc"][:-1] for item in items if _lacks_kind(item)}
    return [item for item in items if _lacks_kind(item) or item["loc"][:-1] not in kindless]


def _lacks_kind(item: ErrorDetails) -> bool:
    return item["type"] == "missing" and item["loc"][-1] == "kind" and len(item["loc"]) > 1


def _finding(item: ErrorDetails, tree: Mapping[str, Any], origin: Origin) -> Finding:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return Finding(key, _unknown(item["loc"], tree), origin(key))
    if item["type"] == "missing":
        owner = ".".join(str(part) for part in item["loc"][:-1])
        if _lacks_kind(item):
            return Finding(owner, _unchosen(owner), origin(owner))
        return Finding(key, f"required; set it in a recipe or as {key}=...", origin(owner))
    message = item["msg"].removeprefix("Value error, ")
    if isinstance(item["input"], Mapping | Sequence) and not isinstance(item["input"], str):
        return Finding(key, message, origin(key))
    return Finding(key, f"{message} (got {item['input']!r})", origin(key))


def _unknown(loc: tuple[int | str, ...], tree: Mapping[str, Any]) -> str:
    """The sentence for a key that nothing takes, with the nearest right name."""
    *parents, word = (str(part) for part in loc)
    section = _section(tree, parents)
    kind = section.get("kind")
    owner = f"no such option of {parents[0]} {kind!r}" if parents and kind else "no such option"
    if word in ELSEWHERE:
        return f"{owner}; here it is called {ELSEWHERE[word]}"
    known = _options(parents, kind) or [key for key in section if key != word]
    hint = did_you_mean(word, known)
    return owner + (hint or (f" (it has: {', '.join(sorted(known))})" if known else ""))


def _unchosen(owner: str) -> str:
    """The sentence for options of a component that no file was chosen for."""
    group, _, name = owner.partition(".")
    choice = f"{group}=[...,{name}]" if name else f"{group}=..."
    return f"options are set, but it is not chosen; choose it with {choice}"


def _section(tree: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    section: Any = tree
    for part in path:
        section = section.get(part) if isinstance(section, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _options(parents: Sequence[str], kind: Any) -> list[str]:
    from rlpipe.component import kinds, lookup
    from rlpipe.config.schema import PACKAGES

    if not parents:
        return list(Experiment.model_fields)
    package = PACKAGES.get(parents[0])
    if package is None or kind not in kinds(package):
        return []
    return list(lookup(package, kind).model_fields)
