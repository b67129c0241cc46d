"""MBPP: 974 short Python problems with tests, and the 427 of them that people verified."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from rlpipe import hub
from rlpipe.datasets.base import Dataset
from rlpipe.errors import ConfigError, Finding
from rlpipe.grading.names import classes_defined, imports_of, names_defined
from rlpipe.types import PythonTests, Task

Published = Literal["train", "validation", "test", "prompt"]

PROMPT = """\
Write Python code for this task: {text}

Your code should pass these tests:

{tests}

Give the complete code as your final answer: submit it with a tool if you have one for that, \
otherwise write it between <answer> and </answer>."""

SIZES = {"mbpp.jsonl": 974, "sanitized-mbpp.json": 427}

FILES = {
    "full": ("mbpp.jsonl", "data/mbpp.jsonl", "full/*.parquet", "full/*.json*", "*.parquet"),
    "sanitized": (
        "sanitized-mbpp.json",
        "data/sanitized-mbpp.json",
        "sanitized/*.parquet",
        "sanitized/*.json*",
        "*.parquet",
    ),
}
"""Where a folder may keep each subset; the first pattern that finds something wins."""


class Row(BaseModel):
    """A problem as published. The full and the sanitized form are one but for a few names."""

    model_config = ConfigDict(frozen=True)

    task_id: int = Field(ge=1, le=974)
    text: str = Field(validation_alias=AliasChoices("text", "prompt"))
    code: str
    test_list: tuple[str, ...] = Field(min_length=1)
    test_imports: tuple[str, ...] = ()
    test_setup_code: str = ""
    challenge_test_list: tuple[str, ...] = ()

    @property
    def published_split(self) -> Published:
        if self.task_id <= 10:
            return "prompt"
        if self.task_id <= 510:
            return "test"
        return "validation" if self.task_id <= 600 else "train"


class Mbpp(Dataset):
    """Mostly Basic Python Problems, from a local file or from the Hugging Face hub."""

    gives: ClassVar[frozenset[str]] = frozenset({"tests", "reference"})

    kind: Literal["mbpp"] = "mbpp"
    path: str | None = None
    """A file, such as `mbpp.jsonl` or `sanitized-mbpp.json`, or a folder that holds it or is a copy
    of the hub's repository; null downloads from the hub."""

    subset: Literal["full", "sanitized"] = "full"
    """Which problems to take from a folder or the hub; a single file tells by what it holds."""

    repo: str = "google-research-datasets/mbpp"
    """Repository on the hub."""

    revision: str = "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
    """Commit of that repository."""

    train_split: Published = "train"
    """Published split to train on."""

    held_out_split: Published = "test"
    """Published split to evaluate on."""

    visible_tests: int | None = Field(None, ge=1)
    """Tests that the prompt shows, the others being hidden; null shows all of them. Challenge tests
    are always hidden."""

    prompt: str = PROMPT
    """What the user's message says: `{text}` becomes the problem, `{tests}` its visible tests."""

    @field_validator("prompt")
    @classmethod
    def _prompt_can_be_filled(cls, prompt: str) -> str:
        try:
            filled = prompt.format(text="<text>", tests="<tests>")
        except (LookupError, ValueError, AttributeError) as error:
            raise ValueError(
                "only {text} and {tests} can be filled in; write {{ and }} for braces"
            ) from error
        if "<text>" not in filled:
            raise ValueError("{text} is missing, so the model would not see the problem")
        return prompt

    @model_validator(mode="after")
    def _splits_differ(self) -> "Mbpp":
        if self.train_split == self.held_out_split:
            raise ValueError(
                f"train_split and held_out_split are both {self.train_split!r}; "
                "evaluating on what was trained on says nothing, so choose another for one of them"
            )
        return self

    def check(self) -> list[Finding]:
        found = super().check()
        if self.path is None:
            if find_spec("datasets") is None:
                found.append(Finding("path", _needs_hub("the hub")))
        elif not self._files(self.path):
            found.append(Finding("path", self._nothing_at(self.path)))
        return found

    def count(self) -> int | None:
        if self.path is None or Path(self.path).is_dir():
            return SIZES[FILES[self.subset][0]]
        return SIZES.get(Path(self.path).name)

    def check_online(self) -> list[Finding]:
        if self.path is not None:
            return []
        said = hub.problem("dataset", self.repo, self.revision)
        return [Finding("revision", said)] if said else []

    def load(self, seed: int) -> Sequence[Task]:
        rows = self._hub_rows() if self.path is None else self._local_rows(self.path)
        tasks = [self._task(where, row) for where, row in rows]
        if not tasks:
            raise _error(f"{self.path or self.repo} holds no problem")
        return tasks

    def _task(self, where: str, raw: object) -> Task:
        row = _row(where, raw)
        code = row.code.replace("\r", "")
        shown = row.test_list[: self.visible_tests]
        tests = PythonTests(
            visible=shown,
            hidden=row.test_list[len(shown) :] + row.challenge_test_list,
            imports=tuple(dict.fromkeys((*row.test_imports, *imports_of(code)))),
            setup=row.test_setup_code.replace("\r", ""),
            entry_points=names_defined(code),
            classes=classes_defined(code),
        )
        content = self.prompt.format(text=row.text, tests="\n".join(shown))
        return Task(
            id=f"mbpp/{row.task_id}",
            messages=({"role": "user", "content": content},),
            split=self._split(row.published_split),
            tests=tests,
            reference=code,
        )

    def _split(self, published: Published) -> str:
        if published == self.train_split:
            return "train"
        if published == self.held_out_split:
            return "held_out"
        # Where another split was chosen for training, the published one must not be taken for it.
        return "published_train" if published == "train" else published

    def _files(self, path: str) -> list[Path]:
        place = Path(path)
        if place.is_file():
            return [place]
        matches = (sorted(place.glob(pattern)) for pattern in FILES[self.subset])
        return next(filter(None, matches), [])

    def _nothing_at(self, path: str) -> str:
        if not Path(path).exists():
            return f"there is no {path!r}; give a file or a folder, or null to download"
        return f"the folder {path!r} holds none of: {', '.join(FILES[self.subset])}"

    def _local_rows(self, path: str) -> Iterator[tuple[str, object]]:
        files = self._files(path)
        if not files:
            raise _error(self._nothing_at(path))
        for file in files:
            try:
                yield from _parquet_rows(file) if file.suffix == ".parquet" else _json_rows(file)
            except OSError as error:
                raise _error(f"{file}: {error.strerror or error}") from error

    def _hub_rows(self) -> Iterator[tuple[str, object]]:
        try:
            import datasets
        except ImportError as error:
            raise _error(_needs_hub("the hub")) from error
        try:
            splits = datasets.load_dataset(self.repo, self.subset, revision=self.revision)
        except Exception as error:  # its own errors and those of several HTTP libraries
            raise _error(
                f"{self.repo} cannot be loaded from the hub; give dataset.path, a local copy of "
                f"the data, to do without ({type(error).__name__}: {error})"
            ) from error
        for name, rows in splits.items():
            for number, row in enumerate(rows, 1):
                yield f"{self.repo}, {self.subset}, {name} row {number}", row


def _row(where: str, raw: object) -> Row:
    try:
        return Row.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
        keys = ", ".join(sorted(raw)) if isinstance(raw, Mapping) else f"no keys: {raw!r:.40}"
        raise _error(f"{where}: not an MBPP problem: {problem} (found {keys})") from error


def _json_rows(file: Path) -> Iterator[tuple[str, object]]:
    """Rows of a JSON array, or of one JSON object a line, with the place of each."""
    content = file.read_bytes().removeprefix(codecs.BOM_UTF8)
    if content.lstrip().startswith(b"["):
        for number, row in enumerate(_parse(str(file), content), 1):
            yield f"{file}: row {number}", row
        return
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            yield f"{file}:{number}", _parse(f"{file}:{number}", line)


def _parse(where: str, content: bytes) -> Any:
    try:
        return from_json(content)
    except ValueError as error:
        raise _error(f"{where}: not valid JSON: {error}") from error


def _parquet_rows(file: Path) -> Iterator[tuple[str, object]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise _error(_needs_hub(str(file))) from error
    try:
        rows = parquet.read_table(file).to_pylist()
    except ArrowException as error:
        raise _error(f"{file}: not valid parquet: {error}") from error
    for number, row in enumerate(rows, 1):
        yield f"{file}: row {number}", row


def _needs_hub(source: str) -> str:
    return f"reading {source} needs: pip install 'rlpipe[hub]'"


def _error(problem: str) -> ConfigError:
    return ConfigError([Finding("dataset.path", problem)])
