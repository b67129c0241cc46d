"""Generated one-line programs about two numbers: small enough for a model that fits on a CPU."""

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rlpipe.datasets.base import Dataset
from rlpipe.errors import ConfigError, Finding
from rlpipe.types import Task


@dataclass(frozen=True, slots=True)
class Operation:
    """What a task asks for, as words, as code and as a function."""

    words: str
    code: str
    function: Callable[[int, int], int]


OPERATIONS = {
    "sum": Operation("the sum of {a} and {b}", "{a} + {b}", operator.add),
    "product": Operation("the product of {a} and {b}", "{a} * {b}", operator.mul),
    "difference": Operation("the difference of {a} and {b}", "{a} - {b}", operator.sub),
    "larger": Operation("the larger of {a} and {b}", "max({a}, {b})", max),
}

OperationName = Literal["sum", "product", "difference", "larger"]
Number = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]


class Arithmetic(Dataset):
    """Tasks such as 'Write Python that prints the product of 17 and 25.'"""

    gives: ClassVar[frozenset[str]] = frozenset({"expected_output", "reference"})

    kind: Literal["arithmetic"] = "arithmetic"
    tasks: int = Field(1000, ge=1)
    """Tasks to make, those that are held out included."""

    low: Number = 10
    """Smallest number in a task."""

    high: Number = 99
    """Largest number in a task."""

    operations: tuple[OperationName, ...] = Field(
        ("sum", "product", "difference", "larger"), min_length=1
    )
    """What is asked for, each equally often."""

    @field_validator("operations")
    @classmethod
    def _no_operation_twice(cls, names: tuple[OperationName, ...]) -> tuple[OperationName, ...]:
        if len(set(names)) < len(names):
            raise ValueError("an operation is named twice")
        return names

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> "Arithmetic":
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self

    def check(self) -> list[Finding]:
        too_many = [Finding("tasks", self._too_many())] if self.tasks > self._possible else []
        return super().check() + too_many

    def count(self) -> int | None:
        return self.tasks

    def load(self, seed: int) -> Sequence[Task]:
        if self.tasks > self._possible:
            raise ConfigError([Finding("dataset.tasks", self._too_many())])
        # Drawn without repetition from the numbers of all possible tasks, none of which is built.
        drawn = random.Random(f"arithmetic {seed}").sample(range(self._possible), self.tasks)
        return [self._task(number) for number in drawn]

    @property
    def _span(self) -> int:
        return self.high - self.low + 1

    @property
    def _possible(self) -> int:
        return len(self.operations) * self._span**2

    def _too_many(self) -> str:
        return (
            f"{self.tasks} tasks are asked for, but there are only {self._possible} with numbers "
            f"from {self.low} to {self.high}; ask for fewer or widen low and high"
        )

    def _task(self, number: int) -> Task:
        pair, which = divmod(number, len(self.operations))
        a, b = (self.low + offset for offset in divmod(pair, self._span))
        name = self.operations[which]
        operation = OPERATIONS[name]
        expected = operation.function(a, b)
        question = f"Write Python that prints {operation.words.format(a=a, b=b)}."
        return Task(
            id=f"{name}-{a}-{b}",
            messages=({"role": "user", "content": question},),
            expected_output=str(expected),
            reference=f"print({operation.code.format(a=a, b=b)})",
            mistake=f"print({a} + {b})" if a + b != expected else None,
        )
