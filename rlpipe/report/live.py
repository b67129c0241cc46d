"""`report.html` of a run that goes on: written anew as the run comes on, each time from what is
new in its folder."""

import logging
import time
from pathlib import Path
from typing import NamedTuple

from rlpipe.report.data import Brief, Row, RunData, body
from rlpipe.report.figures import figures, index
from rlpipe.report.page import compress, render
from rlpipe.report.spec import run_before
from rlpipe.report.tokens import pieces, tokenizer_file

log = logging.getLogger(__name__)

NAME = "report.html"

EVERY = 30.0
"""Seconds between two reports that nothing in particular calls for."""

SHARE = 0.02
"""Of a run's time, at most, goes into such reports: those of a large run are further apart."""

MOST = 24 << 20
"""Characters of trajectories in one file. A larger run leaves out the teacher's, then its oldest
steps; `rlpipe view` shows all."""

CHUNK = 128
"""Trajectories that are compressed together, and inflated together when one of them is read."""

CHUNK_BYTES = 512_000
"""How far the lines of a chunk may reach before it is closed."""


class Chunk(NamedTuple):
    """Trajectories of one file, compressed."""

    rank: tuple[bool, int]
    """Which goes first where not all can stay: the teacher's, then the oldest."""

    rows: range
    """Which trajectories of the run."""

    text: str


class Report:
    """The report of one run folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = RunData(folder)
        self._chunks: list[Chunk] = []
        self._ids: set[int] = set()
        self._against: Path | None = run_before(folder)
        self._due = time.monotonic() + EVERY

    def keep(self, *, now: bool = False) -> None:
        """Write the report if it is time, or `now`. What goes wrong is logged: a run goes on."""
        began = time.monotonic()
        if not now and began < self._due:
            return
        try:
            self.write()
        except Exception:
            log.exception("the report could not be written; the run goes on")
        ended = time.monotonic()
        self._due = ended + max(EVERY, (ended - began) / SHARE)

    def write(self) -> Path:
        """Write `report.html`, whole or not at all."""
        self._take(self._data.refresh())
        data = self._data
        shown = figures(data, against=self._against)
        blocks = [("index", compress(self._index())), ("tokens", compress(self._pieces()))]
        blocks += [(f"chunk-{n}", chunk.text) for n, chunk in enumerate(self._chunks)]
        aside = self._folder / f"{NAME}.new"
        title = f"{shown['run']['name']} {self._folder.name}"
        with aside.open("w", encoding="utf-8") as out:
            out.writelines(render("run", title, data=shown, blocks=blocks))
        return aside.replace(self._folder / NAME)

    def _take(self, added: list[tuple[Brief, Row]]) -> None:
        """Compress what was added, the trajectories of a file some at a time."""
        first, start = len(self._data.trajectories) - len(added), 0
        if first == 0:
            self._chunks.clear()  # nothing of before is left
        while start < len(added):
            end = _end_of_chunk([item for item, _ in added[start : start + CHUNK]])
            bodies = [body(row) for _, row in added[start : start + end]]
            for turn in (turn for shown in bodies for turn in shown["turns"]):
                self._ids.update(turn.get("given", ()), turn.get("sampled", ()))
            item, place = added[start][0], first + start
            rank = (item.phase != "teacher", item.step)
            self._chunks.append(Chunk(rank, range(place, place + end), compress(bodies)))
            start += end
        self._drop()

    def _drop(self) -> None:
        """Let go of what is too much for one file."""
        self._chunks.sort(key=lambda chunk: chunk.rank)
        surplus = sum(len(chunk.text) for chunk in self._chunks) - MOST
        while surplus > 0 and len(self._chunks) > 1:
            surplus -= len(self._chunks.pop(0).text)

    def _index(self) -> dict[str, object]:
        places = [(-1, item.place) for item in self._data.trajectories]
        for number, chunk in enumerate(self._chunks):
            for place, row in enumerate(chunk.rows):
                places[row] = (number, place)
        return index(self._data.trajectories, places)

    def _pieces(self) -> dict[int, str]:
        file = tokenizer_file(self._folder, self._data.spec)
        return pieces(file, sorted(self._ids)) if file else {}


def _end_of_chunk(items: list[Brief]) -> int:
    """How many of these lie in the file of the first, and near it."""
    first = items[0]
    for number, item in enumerate(items):
        if item.file != first.file or item.place - first.place > CHUNK_BYTES:
            return number
    return len(items)
