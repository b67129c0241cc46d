"""Compose a spec without the command line."""

from collections.abc import Mapping, Sequence
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


def load_experiment(recipe: str | None = None, *overrides: str) -> Experiment:
    """Compose and judge an experiment, as the command line does.

    Example: `load_experiment("quickstart", "train.steps=5", "backend=trl")`.

    Raises:
        ConfigError: with one finding for every problem.
    """
    return load(*compose_spec(*([f"+recipe={recipe}"] if recipe else []), *overrides))


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
        raise ConfigError(missing + _beside(missing, cfg, origin))
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


def _beside(missing: Sequence[Finding], cfg: DictConfig, origin: Origin) -> list[Finding]:
    """What is wrong besides the groups of which no choice is known."""
    try:
        load(cfg, origin)
    except ConfigError as error:
        unknown = {finding.key for finding in missing}
        return [f for f in error.findings if f.key.partition(".")[0] not in unknown]
    return []


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
