"""TensorBoard: event files in the run folder, so that `tensorboard --logdir outputs` shows all."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from rlpipe.trackers.base import Ending, Row, TrackedRun, Tracker, Tracking

FOLDER = "tensorboard"


class Tensorboard(Tracker):
    """TensorBoard's event files, in the folder `tensorboard` of the run."""

    extra: ClassVar[str | None] = "tensorboard"
    needs: ClassVar[tuple[str, ...]] = ("tensorboard",)

    kind: Literal["tensorboard"] = "tensorboard"
    flush_every: float = 10.0
    """Seconds after which what was recorded is written to disk."""

    def open(self, run: TrackedRun) -> Tracking:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer = EventFileWriter(str(run.folder / FOLDER), flush_secs=self.flush_every)
        return _Events(writer, run.folder / FOLDER, run.config)


class _Events(Tracking):
    def __init__(self, writer: Any, folder: Path, config: Mapping[str, Any]) -> None:
        self.where = f"tensorboard --logdir {folder}"
        self._writer = writer
        self._text("config", 0, f"```json\n{json.dumps(config, indent=2)}\n```")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=v) for name, v in metrics.items()]
        self._add(step, Summary(value=values))

    def show(self, step: int, phase: str, rows: Sequence[Row]) -> None:
        for number, row in enumerate(rows):
            facts = {name: value for name, value in row.items() if name != "conversation"}
            text = f"`{json.dumps(facts)}`\n\n{_quoted(row['conversation'])}"
            self._text(f"trajectories/{phase}/{number}", step, text)

    def close(self, ending: Ending) -> None:
        self._text("status", 0, " ".join(filter(None, (ending.status, ending.message))))
        self._writer.close()

    def _text(self, tag: str, step: int, text: str) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(step, text_pb(tag, text))

    def _add(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def _quoted(text: str) -> str:
    """As a code block of Markdown, which nothing in the text can end."""
    return "\n".join(f"    {line}" for line in text.splitlines())
