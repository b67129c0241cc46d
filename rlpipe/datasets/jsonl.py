"""A user's own tasks: a text file with one JSON object on each line."""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from rlpipe.datasets.base import Dataset
from rlpipe.errors import ConfigError, Finding
from rlpipe.grading.names import classes_defined, names_defined
from rlpipe.types import Message, PythonTests, Task

LONGEST_LINE = 10_000_000
MOST_PROBLEMS = 5
ROLES = ("system", "user", "assistant", "tool")
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def _check_message(message: Message) -> Message:
    if message.get("role") not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}")
    if not isinstance(message.get("content"), str) and not message.get("tool_calls"):
        raise ValueError("content must be a string")
    return message


class Row(BaseModel):
    """One line of the file. Keys that are not named here become metadata."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: StrictStr | StrictInt | None = None
    prompt: str | None = Field(None, min_length=1)
    messages: tuple[Annotated[Message, AfterValidator(_check_message)], ...] = ()
    tests: tuple[str, ...] = ()
    hidden_tests: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    setup: str = ""
    expected_output: str | None = None
    test_command: str | None = None
    test_files: dict[str, str] = {}
    reference: str | None = None
    files: dict[str, str] = {}
    split: Literal["train", "held_out"] = "train"
    metadata: dict[str, Any] = {}

    @model_validator(mode="after")
    def _asks_something(self) -> "Row":
        if (self.prompt is None) == (not self.messages):
            raise ValueError("give either a prompt or messages")
        return self


class Jsonl(Dataset):
    """Tasks from a file of JSON lines.

    Example of a line:
        {"id": "double", "prompt": "Write f that doubles.", "tests": ["assert f(2) == 4"]}
    """

    kind: Literal["jsonl"] = "jsonl"
    path: str
    """The file. Keys of a line: `prompt` or `messages`, and where they apply `id`, `tests` (that
    the prompt may show), `hidden_tests`, `imports`, `setup`, `expected_output`, `test_command`,
    `test_files`, `reference`, `files` and `split` (`train` or `held_out`); every other key is kept
    as metadata."""

    system: str | None = None
    """System message that opens each task which brings none of its own."""

    def check(self) -> list[Finding]:
        found = super().check()
        return found if Path(self.path).is_file() else [*found, Finding("path", self._no_file())]

    def load(self, seed: int) -> Sequence[Task]:
        if not Path(self.path).is_file():
            raise ConfigError([Finding("dataset.path", self._no_file())])
        try:
            with open(self.path, "rb") as file:
                return self._tasks(file)
        except OSError as error:
            problem = f"{self.path} cannot be read: {error.strerror or error}"
            raise ConfigError([Finding("dataset.path", problem)]) from error

    def _no_file(self) -> str:
        return f"there is no file {self.path!r}"

    def _tasks(self, file: BinaryIO) -> list[Task]:
        tasks: list[Task] = []
        problems: list[Finding] = []
        line_of: dict[str, int] = {}
        for number, line in _lines(file):
            try:
                task = self._task(number, line)
                if task.id in line_of:
                    raise ValueError(f"the id {task.id!r} is that of line {line_of[task.id]}")
            except ValueError as error:
                place = f"{self.path}:{number}"
                problems.append(Finding("dataset.path", f"{place}: {_explain(error)}"))
                if len(problems) == MOST_PROBLEMS:
                    break
            else:
                line_of[task.id] = number
                tasks.append(task)
        if not tasks and not problems:
            problems.append(Finding("dataset.path", f"{self.path} holds no task"))
        if problems:
            raise ConfigError(problems)
        return tasks

    def _task(self, number: int, line: bytes | None) -> Task:
        row = _row(line)
        return Task(
            id=str(number if row.id is None else row.id),
            messages=self._opening(row),
            split=row.split,
            tests=_tests(row),
            expected_output=row.expected_output,
            test_command=row.test_command,
            test_files=row.test_files,
            reference=row.reference,
            files=row.files,
            metadata={**row.metadata, **(row.model_extra or {})},
        )

    def _opening(self, row: Row) -> tuple[Message, ...]:
        messages = row.messages or ({"role": "user", "content": row.prompt},)
        if self.system is None or messages[0]["role"] == "system":
            return messages
        return ({"role": "system", "content": self.system}, *messages)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Number and content of each line that is not blank; None for one that is too long to hold."""
    for number in count(1):
        line = file.readline(LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > LONGEST_LINE:
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            yield number, None
            continue
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield number, line


def _row(line: bytes | None) -> Row:
    """Raises ValueError where the line is no task; its message is meant for the user."""
    if line is None:
        raise ValueError(f"the line is longer than {LONGEST_LINE:,} bytes")
    line.decode()  # the JSON parser says less clearly that a line is no UTF-8
    value = from_json(line, allow_inf_nan=False)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is expected, not {type(value).__name__}")
    # What cannot be run (a NUL) or written back (1e999) would fail later, far from its line.
    if ESCAPED_NUL.search(line):
        raise ValueError("a NUL character is in it")
    json.dumps(value, allow_nan=False)
    return Row.model_validate(value)


def _tests(row: Row) -> PythonTests | None:
    if not row.tests and not row.hidden_tests:
        return None
    return PythonTests(
        visible=row.tests,
        hidden=row.hidden_tests,
        imports=row.imports,
        setup=row.setup,
        entry_points=names_defined(row.reference or ""),
        classes=classes_defined(row.reference or ""),
    )


def _explain(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason} at byte {error.start}"
    if not isinstance(error, ValidationError):
        return str(error)
    problems = (
        f"{'.'.join(map(str, found['loc']))}: {found['msg']}".removeprefix(": ")
        for found in error.errors(include_url=False, include_input=False)
    )
    return "; ".join(problems).replace("Value error, ", "")
