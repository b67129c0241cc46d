"""The command line's way into Hydra: compose, judge, then check or run."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from rlpipe.config import plugins, recipes, resolvers
from rlpipe.config.compose import compose_spec
from rlpipe.config.load import load
from rlpipe.config.origins import origin_of
from rlpipe.config.overrides import check_choices, explain, lenient
from rlpipe.config.paths import CONF
from rlpipe.config.problems import Origin
from rlpipe.config.schema import Experiment
from rlpipe.errors import ConfigError, RlpipeError


def launch(args: Sequence[str]) -> None:
    """Run one job, or every job of a sweep.

    Raises:
        ConfigError: the spec is wrong.
        RunError: a run could not go on.
    """
    if _is_single_dry_run(args):
        cfg, origin = compose_spec(*args)
        with _located(origin):
            dry_run(load(cfg, origin))
        return
    failed: list[RlpipeError] = []

    @hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
    def rlpipe(cfg: DictConfig) -> float | None:
        try:
            return _job(cfg)
        except RlpipeError as error:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise  # the sweep goes on with its other jobs and fails at its end
            failed.append(error)  # else Hydra would print its own words around ours
            return None

    check_choices(args)
    resolvers.install()
    recipes.install()
    plugins.install()
    sys.argv[1:] = _multirun_first(lenient(args))
    try:
        rlpipe()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from None
    if failed:
        raise failed[0]


def _is_single_dry_run(args: Sequence[str]) -> bool:
    """Whether Hydra's job machinery, which composes every spec twice, can be left out."""
    flagged = any(arg.startswith("-") or arg.lstrip("+").startswith("sweep=") for arg in args)
    return not flagged and any(arg in ("dry_run=true", "dry_run=online") for arg in args)


def _multirun_first(args: Sequence[str]) -> list[str]:
    """Argparse takes no override after a flag that stands between overrides."""
    flags = [arg for arg in args if arg in ("-m", "--multirun")]
    return flags + [arg for arg in args if arg not in flags]


def _job(cfg: DictConfig) -> float | None:
    settings = HydraConfig.get()
    origin = origin_of(list(settings.overrides.task), settings.runtime.choices)
    experiment = load(cfg, origin)
    with _located(origin):
        if experiment.dry_run:
            dry_run(experiment)
            return None
        from rlpipe.runner import run

        result = run(experiment, Path(settings.runtime.output_dir))
    return result.last(experiment.objective)


@contextmanager
def _located(origin: Origin) -> Iterator[None]:
    """Say of each problem that was found after loading where its value came from."""
    try:
        yield
    except ConfigError as error:
        findings = [replace(f, origin=f.origin or origin(f.key)) for f in error.findings]
        raise ConfigError(findings) from None


def dry_run(experiment: Experiment) -> None:
    """Say what would run, or everything that is wrong.

    Raises:
        ConfigError: something is.
    """
    from rlpipe.fit import check, check_online, plan

    findings = check(experiment)
    if experiment.dry_run == "online" and not findings:
        findings = check_online(experiment)
    if findings:
        raise ConfigError(findings)
    chosen = ", ".join(f"{key}={part.kind}" for key, part in experiment.components().items())
    print(f"{experiment.name}: valid (mode={experiment.mode}; {chosen})")
    for line in plan(experiment).lines():
        print(f"  {line}")
