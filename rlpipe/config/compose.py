"""Compose a spec without the command line."""

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf, open_dict

from rlpipe.config import plugins, recipes, resolvers
from rlpipe.config.load import load
from rlpipe.config.origins import origin_of
from rlpipe.config.overrides import lenient
from rlpipe.config.paths import CONF
from rlpipe.config.schema import Experiment
from rlpipe.errors import ConfigError


def load_experiment(recipe: str | None = None, *overrides: str) -> Experiment:
    """Compose and judge an experiment, as the command line does.

    Example: `load_experiment("quickstart", "train.steps=5", "backend=trl")`.

    Raises:
        ConfigError: with one finding for every problem.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from rlpipe.config.overrides import explain

    resolvers.install()
    recipes.install()
    plugins.install()
    chosen = [f"+recipe={recipe}"] if recipe else []
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            args = lenient([*chosen, *overrides])
            cfg = compose("config", args, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from None
    origin = origin_of(args, cfg.hydra.runtime.choices)
    name = cfg.name  # names the run after the recipe, which only Hydra's part of the tree knows
    OmegaConf.set_readonly(cfg, False)
    with open_dict(cfg):
        cfg.name = name
        del cfg["hydra"]
    return load(cfg, origin)
