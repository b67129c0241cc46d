"""Where tasks come from, in which order, and which are held out."""

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from rlpipe.component import Component
from rlpipe.errors import ConfigError, Finding
from rlpipe.types import Task


@dataclass(frozen=True, slots=True)
class Splits:
    """The tasks of a run."""

    train: tuple[Task, ...]
    """In training order."""

    held_out: tuple[Task, ...]
    """In evaluation order; none of them is trained on."""

    all: tuple[Task, ...]
    """Every task of the data set, in its own order."""


class Dataset(Component):
    """A source of tasks."""

    gives: ClassVar[frozenset[str] | None] = None
    """Optional fields of `Task` that every task has; None where that depends on the rows."""

    limit: int | None = Field(None, ge=1)
    """Tasks to train on; null takes all."""

    held_out: int = Field(64, ge=0)
    """Tasks to evaluate on."""

    shuffle: bool = True
    """Put the training tasks into a seeded random order; false keeps the data set's own."""

    @abstractmethod
    def load(self, seed: int) -> Sequence[Task]:
        """Read or make every task, each with its `split`.

        Raises:
            ConfigError: the source is missing or malformed; the message says where.
        """

    def count(self) -> int | None:
        """Number of tasks, where that is known without reading anything; for the dry run."""
        return None

    def splits(self, seed: int) -> Splits:
        """Load the tasks and divide them; the same seed gives the same order everywhere.

        A data set that publishes no held-out split has it drawn, seeded, from its tasks.
        """
        tasks = tuple(self.load(seed))
        _refuse_duplicates(tasks)
        train = [task for task in tasks if task.split == "train"]
        held_out = [task for task in tasks if task.split == "held_out"]
        if not held_out and self.held_out:
            random.Random(f"held_out {seed}").shuffle(train)
            held_out, train = train[: self.held_out], train[self.held_out :]
        chosen = {task.id for task in held_out}
        train = [task for task in tasks if task.split == "train" and task.id not in chosen]
        if self.shuffle:
            random.Random(f"order {seed}").shuffle(train)
        return Splits(tuple(train[: self.limit]), tuple(held_out[: self.held_out]), tasks)


def _refuse_duplicates(tasks: Sequence[Task]) -> None:
    twice = [name for name, times in Counter(task.id for task in tasks).items() if times > 1]
    if twice:
        raise ConfigError([Finding("dataset", f"task id {twice[0]!r} occurs more than once")])
