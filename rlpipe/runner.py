"""Run an experiment."""

import asyncio
import logging
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rlpipe import checkpoints, interrupts, provenance, resuming
from rlpipe.checkpoints import Checkpoint
from rlpipe.config.schema import Experiment
from rlpipe.console import Console
from rlpipe.errors import ConfigError, Finding, LimitReached, RunError
from rlpipe.evaluation import Evaluation
from rlpipe.execution import Execution, open_execution
from rlpipe.fit import acting, check
from rlpipe.metrics import summarise
from rlpipe.policies.base import Actor
from rlpipe.redaction import RedactingFormatter
from rlpipe.report.live import Report
from rlpipe.store import RunFolder, read_metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """What a run came to."""

    folder: Path
    metrics: dict[int, dict[str, float]]
    """Figures by step; step 0 is before training."""

    evaluations: tuple[Evaluation, ...] = ()
    stopped: str | None = None
    """The limit that ended it before its last step, in words."""

    def course(self, name: str) -> list[float]:
        """The values of a metric, in the order of the steps that have one."""
        return [figures[name] for _, figures in sorted(self.metrics.items()) if name in figures]

    def last(self, name: str) -> float | None:
        """The latest value of a metric, or None where it was never recorded."""
        values = self.course(name)
        return values[-1] if values else None


def run(
    experiment: Experiment,
    folder: Path | None = None,
    overrides: Sequence[str] = (),
    group: str | None = None,
) -> RunResult:
    """Run an experiment to its end and return what it came to.

    Args:
        folder: where to write; null makes a new folder under `experiment.output_root`.
        overrides: what the command line set, for the commands that are offered at the end.
        group: the sweep that the run is a job of.

    Raises:
        ConfigError: the spec is wrong; nothing was started.
        RunError: the run could not go on; its folder says how far it came.
    """
    findings = check(experiment)
    if experiment.dry_run:
        said = "asks for a check, not for a run; leave it out, or call rlpipe.check(experiment)"
        findings.append(Finding("dry_run", said))
    if findings:
        raise ConfigError(findings)
    with RunFolder.create(experiment, folder) as stored:
        facts = provenance.facts(experiment)
        stored.note(**facts, sweep=group, started=_now(), status="running")
        return _carry_out(experiment, stored, overrides, group=group)


def resume(run: Path, experiment: Experiment, *, force: bool = False) -> RunResult:
    """Go on with a run that stopped, from its last checkpoint, in its own folder.

    Args:
        experiment: its spec, perhaps with changes that do not touch what it means.
        force: take changes that do.

    Raises:
        ConfigError: the spec is wrong, or means something else than the run's own.
        RunError: there is no run to go on with, or it could not go on.
    """
    resuming.refuse_unless_training(experiment)
    if findings := check(experiment):
        raise ConfigError(findings)
    with resuming.reopen(run, experiment, force=force) as stored:
        last = checkpoints.latest(stored.path)
        step = last.step if last else -1
        if step >= experiment.train.steps and stored.manifest["status"] == "done":
            raise RunError(f"{run} is done: step {step} of {experiment.train.steps}")
        stored.note(spent=resuming.spent(stored))
        resuming.rewind(stored, step)
        again = {"time": _now(), "step": max(step, 0), "after": stored.manifest["status"]}
        earlier = stored.manifest.get("resumed", [])
        stored.note(**provenance.facts(experiment), status="running", resumed=[*earlier, again])
        group = stored.manifest.get("sweep")
        return _carry_out(experiment, stored, group=group, last=last)


def _carry_out(
    experiment: Experiment,
    folder: RunFolder,
    overrides: Sequence[str] = (),
    *,
    group: str | None,
    last: Checkpoint | None = None,
) -> RunResult:
    """Run from a checkpoint, or from the start, and write down how it ends."""
    console, report = Console(), Report(folder.path)
    with _logged(folder.path / "rlpipe.log"):
        try:
            going_on = f", going on after step {last.step}" if last else ""
            console.say(f"{experiment.name}: {folder.path}{going_on}")
            report.keep(now=True)
            work = _run(experiment, folder, console, report, group, last)
            evaluations, stopped = interrupts.run(work, partial(_give_up, folder))
        except BaseException as error:
            _note_end(folder, error)
            if experiment.mode == "train" and checkpoints.latest(folder.path):
                console.say(f"to go on: rlpipe resume {folder.path}")
            report.keep(now=True)
            raise
        result = RunResult(folder.path, read_metrics(folder.path), evaluations, stopped)
        status = "stopped" if stopped else "done"
        ended = {"ended": _now(), "error": None, "result": _headline(result)}
        folder.note(status=status, stopped=stopped, **ended)
        report.keep(now=True)
    steps = _next_steps(experiment, result.folder, overrides)
    console.closing(result.folder, result.course("val/pass_rate"), steps)
    return result


def _give_up(folder: RunFolder) -> None:
    """The last words of a run that was interrupted twice."""
    folder.note(status="interrupted", ended=_now(), error="interrupted again during clean-up")
    print(
        "rlpipe: interrupted again, so sandboxes may be left behind; this ends them:\n"
        f"rlpipe sandboxes stop --run {folder.id} --root {folder.path.parent}",
        file=sys.stderr,
        flush=True,
    )


def _note_end(folder: RunFolder, error: BaseException) -> None:
    """Write down how a run ended that did not come to its end."""
    stopped = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
    status = "interrupted" if stopped else "failed"
    folder.note(status=status, ended=_now(), error=_brief(error))
    log.error("%s\n%s", status, "".join(traceback.format_exception(error)))


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Keep what rlpipe says, and what its libraries warn of, in the run's own log."""
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root, ours = logging.getLogger(), logging.getLogger("rlpipe")
    ours.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


async def _run(
    experiment: Experiment,
    folder: RunFolder,
    console: Console,
    report: Report,
    group: str | None,
    last: Checkpoint | None,
) -> tuple[tuple[Evaluation, ...], str | None]:
    """The evaluations, and the limit that ended the run."""
    opened = open_execution(experiment, folder, console, report, group=group, resume=last)
    async with opened as execution:
        if experiment.mode == "train":
            with suppress(LimitReached):
                summary = await experiment.backend.train(execution.job())
                folder.note(steps=summary.steps)
            newest = checkpoints.latest(folder.path)
            folder.note(checkpoint=newest and newest.folder)
        else:
            async with _actor(experiment) as actor:
                if experiment.mode == "eval":
                    await execution.evaluate(actor, 0)
                else:
                    await _collect(execution, actor)
        return tuple(execution.evaluations), execution.stopped


def _actor(experiment: Experiment) -> AbstractAsyncContextManager[Actor]:
    """The policy as it is, or the teacher: served by the backend where it is one to train."""
    who = acting(experiment)
    if who.in_training:
        return experiment.backend.serve(who, experiment.seed)
    return who.open()


async def _collect(execution: Execution, actor: Actor) -> None:
    """Roll out and score tasks, and say how many were solved and how fast."""
    settings = execution.experiment.collect
    tasks = getattr(execution.splits, settings.tasks)
    began = time.monotonic()
    groups = await execution.roll_out(
        actor,
        tasks,
        phase="collect",
        file="collect",
        group_size=settings.group_size,
        each=settings.each,
        limited=True,
    )
    if settings.each:
        execution.console.summary(groups)
    figures = summarise(groups, "collect", teacher=settings.who == "teacher")
    execution.log(0, figures)
    execution.console.collected(groups, time.monotonic() - began)


def _next_steps(experiment: Experiment, folder: Path, overrides: Sequence[str]) -> list[str]:
    """What to type next; only files that there are, and commands only after a command."""
    files = sorted(folder.glob("trajectories/*.jsonl"), key=lambda file: file.stat().st_mtime)
    steps = [f"less {files[-1]}"] if files else []
    if experiment.mode != "train" or not overrides:
        return steps
    again = _command(overrides, ("seed=",), f"seed={experiment.seed + 1}")
    steps.insert(0, f"{again}                    the same with other tasks and weights")
    found = (folder / "checkpoints").glob("step_*")
    checkpoint = max(found, key=lambda path: int(path.name[5:]), default=None)
    if checkpoint is not None and checkpoint.is_dir():
        trained = ("mode=eval", "policy=trainable", f"policy.model={checkpoint}")
        steps.append(_command(overrides, ("mode=", "policy=", "policy."), *trained))
    return steps


def _command(overrides: Sequence[str], without: tuple[str, ...], *instead: str) -> str:
    """The command line once more, with some of its settings replaced."""
    typed = (said if said.startswith("+recipe=") else said.lstrip("+") for said in overrides)
    kept = [said for said in typed if not said.startswith(without)]
    return shlex.join(["rlpipe", *kept, *instead])


def _headline(result: RunResult) -> dict[str, float | None]:
    names = ("val/pass_rate", "train/reward", "collect/pass_rate")
    return {name: value for name in names if (value := result.last(name)) is not None}


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
