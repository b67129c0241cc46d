"""The command line's way into Hydra: compose, judge, then check or run."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from rlpipe.config import plugins, recipes, resolvers, sweep
from rlpipe.config.compose import compose_spec, judge
from rlpipe.config.load import load
from rlpipe.config.origins import origin_of
from rlpipe.config.overrides import check_choices, explain, flags_first, lenient
from rlpipe.config.paths import CONF
from rlpipe.config.problems import Origin
from rlpipe.config.schema import Experiment
from rlpipe.errors import ConfigError, Finding, RlpipeError, RunError


def launch(args: Sequence[str]) -> None:
    """Run one job, or every job of a sweep.

    Raises:
        ConfigError: the spec is wrong.
        RunError: a run could not go on.
    """
    check_choices(args)
    args = flags_first(args)
    try:
        if not (_is_single(args) and _settled(args)):
            _hand_over(args)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([explain(error)]) from None


def _is_single(args: Sequence[str]) -> bool:
    """Whether the arguments are those of one job, which can be judged before Hydra starts it."""
    elsewhere = ("-", "sweep=", "hydra.mode=")
    return not any(arg.lstrip("+").startswith(elsewhere) for arg in args)


def _settled(args: Sequence[str]) -> bool:
    """Judge a job while nothing is written yet; whether that is all that was asked for.

    Hydra makes a job's folder before it calls the job, and would write into that of another run.
    """
    from rlpipe.fit import check

    cfg, origin = compose_spec(*args)
    experiment = judge(cfg, origin)
    with _located(origin):
        if experiment.dry_run:
            dry_run(experiment)
            return True
        if findings := check(experiment):
            raise ConfigError(findings)
    settings = HydraConfig.get()
    going_on = experiment.resume == "auto" or settings.mode == RunMode.MULTIRUN
    if not going_on and _holds_run(Path(settings.run.dir)):
        said = f"{settings.run.dir} holds a run already; name a folder that does not exist, go on "
        said += f"with rlpipe resume {settings.run.dir}, or add resume=auto"
        raise ConfigError([Finding("hydra.run.dir", said, "command line")])
    return False


def _holds_run(folder: Path) -> bool:
    return (folder / "manifest.json").exists()


def _hand_over(args: Sequence[str]) -> None:
    """Let Hydra start the job or jobs. It would print its own words around an error of ours."""
    failed: list[tuple[list[str], RlpipeError]] = []

    @hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
    def rlpipe(cfg: DictConfig) -> float | None:
        try:
            return _job(cfg)
        except RlpipeError as error:
            settings = HydraConfig.get()
            swept = settings.mode == RunMode.MULTIRUN
            if isinstance(error, ConfigError) and swept:
                sweep.note_invalid(Path(settings.runtime.output_dir), error)
            if not _returns_here(settings):
                raise
            failed.append((list(settings.overrides.task) if swept else [], error))
            return None

    resolvers.install()
    recipes.install()
    plugins.install()
    given = lenient(args)
    sys.argv[:] = ["rlpipe", *given]
    rlpipe()
    if (failed and {"-m", "--multirun"} & set(args)) or len(failed) > 1:
        raise _of_jobs(failed, given)
    if failed:
        raise _of_jobs(failed, given) if failed[0][0] else failed[0][1]


def _returns_here(settings: HydraConf) -> bool:
    """Whether a job may tell of its error by leaving it in this process.

    Other launchers run it in another one, and other sweepers want to know of the error.
    """
    plain = (settings.sweeper.get("_target_"), settings.launcher.get("_target_"))
    return settings.mode != RunMode.MULTIRUN or all("core_plugins" in str(name) for name in plain)


def _of_jobs(failed: Sequence[tuple[list[str], RlpipeError]], given: Sequence[str]) -> RlpipeError:
    """The errors of a sweep's jobs, each below what was set for that job alone."""
    lines: list[str] = []
    common = {override.lower() for override in given}  # Hydra writes `true` as `True`
    for overrides, error in failed:
        own = [override.lstrip("+") for override in overrides if override.lower() not in common]
        lines += [f"{' '.join(own)}:", *(f"  {line}" for line in str(error).splitlines())]
    wrong = all(isinstance(error, ConfigError) for _, error in failed)
    return (ConfigError if wrong else RunError)("\n".join(lines))


def _job(cfg: DictConfig) -> float | None:
    settings = HydraConfig.get()
    overrides = list(settings.overrides.task)
    origin = origin_of(overrides, settings.runtime.choices)
    experiment = load(cfg, origin)
    with _located(origin):
        if experiment.dry_run:
            dry_run(experiment)
            return None
        from rlpipe.runner import resume, run

        folder = Path(settings.runtime.output_dir)
        swept = settings.mode == RunMode.MULTIRUN
        group = Path(settings.sweep.dir).name if swept else None
        if experiment.resume == "auto" and _holds_run(folder):
            result = resume(folder, experiment)
        else:
            result = run(experiment, folder, overrides, group)
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
    """Say what would run and what this machine lacks for it, or everything that is wrong.

    Raises:
        ConfigError: something is; asked `online`, a missing key too.
    """
    from rlpipe.budget import lines
    from rlpipe.fit import check, check_online, plan

    findings = check(experiment)
    online = experiment.dry_run == "online"
    lacking = [] if online else [found for found in findings if found.lacking]
    wrong = [found for found in findings if found not in lacking]
    if online and not wrong:
        wrong = check_online(experiment)
    if wrong:
        raise ConfigError([*wrong, *lacking])
    chosen = ", ".join(f"{key}={part.kind}" for key, part in experiment.components().items())
    print(f"{experiment.name}: valid (mode={experiment.mode}; {chosen})")
    planned = plan(experiment)
    for line in (*planned.lines(), *lines(experiment, planned)):
        print(f"  {line}")
    for found in lacking:
        print(f"  before it can run here: {found.problem} ({found.key})")
