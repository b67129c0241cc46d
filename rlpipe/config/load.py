"""Turn a composed tree into a typed `Experiment`, or say everything that is wrong with it."""

from collections.abc import Mapping

from omegaconf import DictConfig
from pydantic import ValidationError

from rlpipe.config.problems import Origin, findings_of
from rlpipe.config.schema import Experiment
from rlpipe.config.values import values_of
from rlpipe.errors import ConfigError, Finding


def load(cfg: DictConfig, origin: Origin = lambda key: "") -> Experiment:
    """Judge a composed tree.

    Raises:
        ConfigError: with one finding for every problem.
    """
    tree, wrong = values_of(cfg)
    unset = [Finding(key, wrong[key], origin(key)) for key in sorted(wrong)]
    try:
        experiment = Experiment.model_validate(tree)
    except ValidationError as error:
        found = findings_of(error.errors(), tree, origin)
        raise ConfigError(unset + [f for f in found if not _follows(f.key, wrong)]) from None
    if unset:
        raise ConfigError(unset)
    return experiment


def _follows(key: str, wrong: Mapping[str, str]) -> bool:
    """Whether a problem is only that a value, or the kind that judges it, is not there."""
    return key in wrong or f"{key}.kind" in wrong
