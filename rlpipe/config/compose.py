"""Compose a spec without the command line."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from rlpipe.config import plugins, recipes, resolvers
from rlpipe.config.load import load
from rlpipe.config.origins import origin_of
from rlpipe.config.overrides import check_choices, explain, group_of, lenient
from rlpipe.config.paths import CONF
from rlpipe.config.problems import Origin
from rlpipe.config.schema import PACKAGES, Experiment
from rlpipe.errors import ConfigError, Finding
from rlpipe.fit import check


def load_experiment(recipe: str | None = None, *overrides: str) -> Experiment:
    """Compose and judge an experiment, as the command line does.

    Example: `load_experiment("quickstart", "train.steps=5", "backend=trl")`.

    Raises:
        ConfigError: with one finding for every problem.
    """
    return judge(*compose_spec(*([f"+recipe={recipe}"] if recipe else []), *overrides))


def compose_spec(*overrides: str) -> tuple[DictConfig, Origin]:
    """Compose a spec, and tell where each of its values comes from.

    Raises:
        ConfigError: Hydra cannot compose it.
    """
    resolvers.install()
    recipes.install()
    plugins.install()
    check_choices(overrides)
    args, missing = lenient(overrides), list[Finding]()
    while (cfg := _composed(args, missing)) is None:
        args = [arg for arg in args if group_of(arg) != missing[-1].key]
    origin = origin_of(args, cfg.hydra.runtime.choices)
    OmegaConf.set_readonly(cfg, False)
    with open_dict(cfg):
        cfg.hydra.runtime.output_dir = "${hydra.run.dir}"
        HydraConfig.instance().set_config(cfg)  # what `${hydra:...}` and a run's name refer to
        del cfg["hydra"]
    if missing:
        raise ConfigError(missing + _elsewhere(missing, _problems(cfg, origin)))
    return cfg, origin


def _composed(args: Sequence[str], missing: list[Finding]) -> DictConfig | None:
    """The tree, or none where a choice on the command line is missing, which then is noted."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", list(args), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        finding = explain(error)
        if finding.key in ("", "recipe") or finding.key not in map(group_of, args):
            raise ConfigError([*missing, finding]) from None
        missing.append(finding)
    return None


def judge(cfg: DictConfig, origin: Origin) -> Experiment:
    """Turn a composed tree into an experiment.

    Raises:
        ConfigError: with the findings of the schema, and those of the parts that it has nothing
            against: whether they are complete and fit each other.
    """
    try:
        return load(cfg, origin)
    except ConfigError:
        raise ConfigError(_problems(cfg, origin)) from None


def _problems(cfg: DictConfig, origin: Origin) -> list[Finding]:
    """What the schema refuses, and what is wrong in the groups that it has nothing against."""
    try:
        return _located(check(load(cfg, origin)), origin)
    except ConfigError as error:
        refused = list(error.findings)
    rest = deepcopy(cfg)
    for finding in refused:
        _drop(rest, finding.key)
    try:
        found = check(load(rest, origin))
    except ConfigError:  # what is required and not given stays so
        found = []
    return refused + _located(_elsewhere(refused, found), origin)


def _elsewhere(known: Sequence[Finding], found: Sequence[Finding]) -> list[Finding]:
    """The findings about groups of which nothing is known to be wrong."""
    groups = {finding.key.partition(".")[0] for finding in known}
    return [finding for finding in found if finding.key.partition(".")[0] not in groups]


def _located(findings: Sequence[Finding], origin: Origin) -> list[Finding]:
    return [replace(found, origin=found.origin or origin(found.key)) for found in findings]


def _drop(tree: DictConfig, key: str) -> None:
    owner, _, name = key.rpartition(".")
    node = OmegaConf.select(tree, owner, throw_on_resolution_failure=False) if owner else tree
    if isinstance(node, DictConfig) and name in node.keys():  # noqa: SIM118 - `in` leaves out what does not resolve
        with open_dict(node):
            del node[name]


def load_again(spec: Mapping[str, Any], overrides: Sequence[str]) -> Experiment:
    """Judge the spec of a run that was made, with parts of it chosen or set anew.

    Example: `load_again(spec, ["reward=tests_fraction", "reward.timeout=60"])`.

    Raises:
        ConfigError: with one finding for every problem.
    """
    tree = OmegaConf.create(dict(spec))
    chosen = {key for key, _, _ in (arg.partition("=") for arg in overrides) if key in PACKAGES}
    anew = [arg for arg in overrides if arg.partition("=")[0].partition(".")[0] in chosen]
    if anew:
        composed = load_experiment(None, *anew).model_dump(mode="json")
        for group in chosen:
            tree[group] = composed[group]
    try:
        settings = OmegaConf.from_dotlist([arg for arg in overrides if arg not in anew])
    except OmegaConfBaseException as error:
        raise ConfigError(str(error)) from None
    return load(DictConfig(OmegaConf.merge(tree, settings)))
