"""Trackio: a local database with a dashboard, or a Space of the Hugging Face hub."""

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, ClassVar, Literal

from rlpipe.trackers.base import COLUMNS, Ending, Row, TrackedRun, Tracker, Tracking

log = logging.getLogger(__name__)


class Trackio(Tracker):
    """Trackio; `trackio show` opens its dashboard."""

    extra: ClassVar[str | None] = "trackio"
    needs: ClassVar[tuple[str, ...]] = ("trackio",)

    kind: Literal["trackio"] = "trackio"
    project: str = "rlpipe"
    space_id: str | None = None
    """A Space of the hub to write to, such as `me/runs`; null writes to this machine."""

    def open(self, run: TrackedRun) -> Tracking:
        import trackio

        with _said():
            opened = trackio.init(
                project=self.project,
                name=run.recall(self.kind) or run.id,
                group=run.group,
                space_id=self.space_id,
                config=dict(run.config),
                resume="allow",
                embed=False,
            )
        run.keep(self.kind, opened.name)
        return _Run(opened, f"trackio show --project {self.project}")


@contextmanager
def _said() -> Iterator[None]:
    """Put what Trackio prints into the log."""
    with redirect_stdout(io.StringIO()) as out:
        yield
    for line in out.getvalue().splitlines():
        log.info("%s", line)


class _Run(Tracking):
    def __init__(self, run: Any, where: str) -> None:
        self.where = where
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def show(self, step: int, phase: str, rows: Sequence[Row]) -> None:
        import trackio

        data = [[row[name] for name in COLUMNS] for row in rows]
        table = trackio.Table(columns=list(COLUMNS), data=data)
        self._run.log({f"trajectories/{phase}": table}, step=step)

    def close(self, ending: Ending) -> None:
        import trackio

        if ending.exit_code:
            title = f"{ending.status} with exit status {ending.exit_code}"
            self._run.alert(title, ending.message, level=trackio.AlertLevel.ERROR)
        with _said():
            trackio.finish()
