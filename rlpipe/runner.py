"""Run an experiment."""

import asyncio
import logging
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rlpipe import interrupts, provenance
from rlpipe.config.schema import Experiment
from rlpipe.console import Console
from rlpipe.errors import ConfigError, Finding
from rlpipe.evaluation import Evaluation
from rlpipe.execution import Execution, open_execution
from rlpipe.fit import acting, check
from rlpipe.metrics import summarise
from rlpipe.policies.base import Actor
from rlpipe.store import RedactingFormatter, RunFolder, read_metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """What a run came to."""

    folder: Path
    metrics: dict[int, dict[str, float]]
    """Figures by step; step 0 is before training."""

    evaluations: tuple[Evaluation, ...] = ()

    def last(self, name: str) -> float | None:
        """The latest value of a metric, or None where it was never recorded."""
        values = [figures[name] for _, figures in sorted(self.metrics.items()) if name in figures]
        return values[-1] if values else None


def run(
    experiment: Experiment, folder: Path | None = None, overrides: Sequence[str] = ()
) -> RunResult:
    """Run an experiment to its end and return what it came to.

    Args:
        folder: where to write; null makes a new folder under `experiment.output_root`.
        overrides: what the command line set, for the commands that are offered at the end.

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
    stored = RunFolder.create(experiment, folder)
    stored.note(**provenance.facts(experiment), started=_now(), status="running")
    console = Console()
    with _logged(stored.path / "rlpipe.log"):
        try:
            console.say(f"{experiment.name}: {stored.path}")
            work = _run(experiment, stored, console)
            evaluations = interrupts.run(work, partial(_give_up, stored))
        except BaseException as error:
            _note_end(stored, error)
            raise
    result = RunResult(stored.path, read_metrics(stored.path), evaluations)
    stored.note(status="done", ended=_now(), result=_headline(result))
    console.closing(result.folder, evaluations, _next_steps(experiment, result.folder, overrides))
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
    experiment: Experiment, folder: RunFolder, console: Console
) -> tuple[Evaluation, ...]:
    async with open_execution(experiment, folder, console) as execution:
        if experiment.mode == "train":
            summary = await experiment.backend.train(execution.job())
            folder.note(steps=summary.steps, checkpoint=summary.checkpoint)
        else:
            async with _actor(experiment) as actor:
                if experiment.mode == "eval":
                    await execution.evaluate(actor, 0)
                else:
                    await _collect(execution, actor)
        return tuple(execution.evaluations)


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
    checkpoint = folder / "checkpoints" / f"step_{experiment.train.steps}"
    if checkpoint.is_dir():
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
