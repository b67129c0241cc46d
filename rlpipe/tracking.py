"""The open trackers of a run. One that fails in the middle never ends it, and is never hushed up.

Each works in a thread of its own, in the order in which things were recorded: a service that is
slow or away holds up neither the run nor another tracker.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from rlpipe import interrupts
from rlpipe.config.schema import Experiment
from rlpipe.console import Console
from rlpipe.errors import ConfigError, RunError
from rlpipe.redaction import redact
from rlpipe.store import RunFolder
from rlpipe.trackers.base import Ending, TrackedRun, Tracker, Tracking, excerpt, sample
from rlpipe.types import TrajectoryGroup

log = logging.getLogger(__name__)

PATIENCE = 120.0
"""Seconds that a run waits at its end for a tracker to send what is left."""

PATIENCE_INTERRUPTED = 10.0
"""The same where a person waits."""


class _Line:
    """One tracker and its thread."""

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun) -> None:
        self.name = name
        self.tracker = tracker
        self.opened: Future[Tracking] = Future()
        self.failures = 0
        self.error: Exception | None = None
        """The latest that was raised."""

        self._run = run
        self._work: queue.SimpleQueue[Callable[[Tracking], None] | None] = queue.SimpleQueue()
        # A daemon: a call that never comes back must not keep the process.
        self._thread = threading.Thread(target=self._live, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[Tracking], None]) -> None:
        self._work.put(work)

    async def close(self, ending: Ending, patience: float) -> bool:
        """Whether all was sent within `patience` seconds."""
        self.do(lambda tracking: tracking.close(ending))
        self._work.put(None)
        await asyncio.to_thread(self._thread.join, patience)
        return not self._thread.is_alive()

    def _live(self) -> None:
        try:
            tracking = self.tracker.open(self._run)
        except BaseException as error:
            self.opened.set_exception(error)
            return
        self.opened.set_result(tracking)
        while work := self._work.get():
            try:
                work(tracking)
            except Exception as error:
                self.failures += 1
                if self.error is None:
                    log.exception("tracker %s failed; the run goes on", self.name)
                self.error = error


class Trackings:
    """What a run records beyond its own folder."""

    def __init__(self, folder: RunFolder, console: Console) -> None:
        self.ending = Ending("done")
        """How the run will have ended where nothing is raised."""

        self._folder = folder
        self._console = console
        self._lines: list[_Line] = []
        self._told: dict[str, int] = {}
        """Failures by tracker that the console and the manifest know of."""

    async def open(self, trackers: Mapping[str, Tracker], run: TrackedRun) -> None:
        """Open all that do not rest.

        Raises:
            RunError: one cannot be opened.
        """
        for name, tracker in trackers.items():
            if tracker.resting():
                continue
            line = _Line(name, tracker, run)
            try:
                tracking = await asyncio.wrap_future(line.opened)
            except Exception as error:
                raise RunError(f"tracker {name} cannot be opened: {_brief(error)}") from error
            self._lines.append(line)
            self._console.say(f"tracker {name}: {tracking.where}")
        self._note()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        kept = dict(metrics)
        self._do(lambda tracking: tracking.log(step, kept))

    def show(self, step: int, phase: str, groups: Sequence[TrajectoryGroup]) -> None:
        """Record a few trajectories of a step."""
        for line in self._lines:
            chosen = sample(groups, line.tracker.trajectories)
            if chosen:
                rows = [redact(excerpt(trajectory)) for trajectory in chosen]
                line.do(_shows(step, phase, rows))

    async def close(self, ending: Ending) -> None:
        """Say how the run ended, and wait for what is not sent yet."""
        interrupted = ending.status == "interrupted"
        patience = PATIENCE_INTERRUPTED if interrupted else PATIENCE
        sent = await asyncio.gather(*(line.close(ending, patience) for line in self._lines))
        late = [line.name for line, done in zip(self._lines, sent, strict=True) if not done]
        for name in late:
            said = f"not all was sent within {patience:g} s; the run folder has it all"
            self._console.say(f"warning: tracker {name}: {said}")
            log.warning("tracker %s: %s", name, said)
        self._tell()
        self._note(late)

    def _do(self, work: Callable[[Tracking], None]) -> None:
        for line in self._lines:
            line.do(work)
        self._tell()

    def _tell(self) -> None:
        """Say of every tracker once that it fails, and count on in the manifest."""
        before = dict(self._told)
        for line in self._lines:
            if line.failures and line.name not in before:
                said = "it failed, the run goes on (rlpipe.log has the traceback)"
                error = _brief(line.error) if line.error else ""
                self._console.say(f"warning: tracker {line.name}: {said}: {error}")
            if line.failures:
                self._told[line.name] = line.failures
        if self._told != before:
            self._note()

    def _note(self, late: Sequence[str] = ()) -> None:
        noted: dict[str, dict[str, Any]] = {}
        for line in self._lines:
            noted[line.name] = {"where": line.opened.result().where, "failures": line.failures}
            if line.error is not None:
                noted[line.name]["error"] = _brief(line.error)
            if line.name in late:
                noted[line.name]["unsent"] = True
        if noted:
            self._folder.note(trackers=noted)


def _brief(error: BaseException) -> str:
    return str(redact(f"{type(error).__name__}: {error}"))


def _shows(step: int, phase: str, rows: Sequence[Any]) -> Callable[[Tracking], None]:
    return lambda tracking: tracking.show(step, phase, rows)


@asynccontextmanager
async def open_trackings(
    experiment: Experiment, folder: RunFolder, console: Console, group: str | None
) -> AsyncIterator[Trackings]:
    """The trackers of a run, told at the end how it ended.

    Raises:
        RunError: one cannot be opened.
    """
    run = TrackedRun(
        name=str(redact(experiment.name)),
        id=folder.id,
        folder=folder.path,
        config=redact(experiment.model_dump(mode="json")),
        group=group,
    )
    trackings = Trackings(folder, console)
    try:
        await trackings.open(experiment.tracker, run)
        yield trackings
    except BaseException as error:
        await trackings.close(_ending(error))
        raise
    await trackings.close(trackings.ending)


def _ending(error: BaseException) -> Ending:
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return Ending("interrupted", interrupts.EXIT_STATUS)
    return Ending("failed", 2 if isinstance(error, ConfigError) else 1, _brief(error))
