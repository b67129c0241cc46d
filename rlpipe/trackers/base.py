"""Where a run's figures go besides its own folder, whose `metrics.jsonl` is always written."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rlpipe.component import Component
from rlpipe.types import Message, Trajectory, TrajectoryGroup

IDS = "trackers.json"
"""In the run folder: what the run is called in each tracker, so that it can be gone on with."""

LONGEST = 20_000
"""Characters of a conversation that is shown; what is longer loses its middle."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told of a run. No secret of the environment stands in it."""

    name: str
    """Of the experiment."""

    id: str
    """A name that no other run has."""

    folder: Path
    config: Mapping[str, Any]
    """The resolved spec."""

    group: str | None = None
    """The sweep that it is a job of."""

    def recall(self, tracker: str) -> str | None:
        """What the run was called there before, or None where it is new."""
        file = self.folder / IDS
        known = json.loads(file.read_text()) if file.exists() else {}
        found = known.get(tracker)
        return found if isinstance(found, str) else None

    def keep(self, tracker: str, id: str) -> None:
        """Remember what the run is called there."""
        file = self.folder / IDS
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(known | {tracker: id}, indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    status: Literal["done", "stopped", "failed", "interrupted"]
    """`stopped` by one of its limits, as the spec wants it."""

    exit_code: int = 0
    message: str = ""
    """One line on why it was not done."""


Row = Mapping[str, Any]
"""One trajectory as `excerpt` gives it, or None in the place of a value that there is not."""


class Tracking(ABC):
    """An open tracker. All calls come from one thread; what they raise is counted, and goes on."""

    where: str = ""
    """Where a person finds the run: an address, a file, a command."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record figures of a step; a later call may add to an earlier step."""

    @abstractmethod
    def show(self, step: int, phase: str, rows: Sequence[Row]) -> None:
        """Record a few trajectories of a step; their columns are `COLUMNS`."""

    @abstractmethod
    def close(self, ending: Ending) -> None:
        """Send what is left, and say how the run ended."""


class Tracker(Component):
    """Declares a tracker."""

    trajectories: int = Field(8, ge=0)
    """How many trajectories of every step and evaluation are shown."""

    def resting(self) -> str | None:
        """Why it records nothing here, or None where it does."""
        return None

    def open(self, run: TrackedRun) -> Tracking:
        """Open it for one run, which may have been opened here before.

        Whatever it raises ends the run before it has cost anything.
        """
        raise NotImplementedError


COLUMNS = (
    *("step", "phase", "task", "reward", "passed", "stop_reason", "failure"),
    *("turns", "tool_calls", "conversation"),
)


def sample(groups: Sequence[TrajectoryGroup], most: int) -> list[Trajectory]:
    """The first trajectory of every group, then the second of each, and so on: up to `most`."""
    ranks = zip_longest(*(group.trajectories for group in groups))
    return list(islice((t for rank in ranks for t in rank if t is not None), most))


def excerpt(trajectory: Trajectory) -> dict[str, Any]:
    """What a table shows of a trajectory."""
    failure = trajectory.failure
    values = (
        trajectory.step,
        trajectory.phase,
        trajectory.task_id,
        trajectory.reward,
        trajectory.score.passed if trajectory.score and trajectory.valid else None,
        trajectory.stop_reason.value,
        f"{failure.boundary}: {failure.type}" if failure else None,
        len(trajectory.turns),
        sum(trajectory.tool_calls.values()),
        conversation(trajectory.messages),
    )
    return dict(zip(COLUMNS, values, strict=True))


def conversation(messages: Iterable[Message]) -> str:
    """The messages as text, each below who said it."""
    text = "\n\n".join(f"[{message['role']}]\n{_said(message)}" for message in messages)
    if len(text) <= LONGEST:
        return text
    half, left_out = LONGEST // 2, len(text) - LONGEST
    return f"{text[:half]}\n... {left_out} characters left out ...\n{text[-half:]}"


def _said(message: Message) -> str:
    calls = (call["function"] for call in message.get("tool_calls") or ())
    lines = [f"{function['name']}({function['arguments']})" for function in calls]
    content = message.get("content") or ""
    return "\n".join([str(content), *lines] if content else lines)
