"""JSON lines: what a row may hold, and that no file whatever ends in a traceback."""

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlpipe.datasets import jsonl
from rlpipe.datasets.jsonl import Jsonl
from rlpipe.errors import ConfigError
from rlpipe.types import PythonTests, Task


def load(folder: Path, content: bytes | str, **options: object) -> list[Task]:
    path = folder / "tasks.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(Jsonl(path=str(path), **options).load(0))


def problems(folder: Path, content: bytes | str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, content)
    assert {found.key for found in caught.value.findings} == {"dataset.path"}
    return [found.problem for found in caught.value.findings]


def test_a_row_with_everything(tmp_path):
    row = {
        "id": "double",
        "prompt": "Write f that doubles.",
        "tests": ["assert f(2) == 4"],
        "hidden_tests": ["assert f(0) == 0"],
        "imports": ["import math"],
        "setup": "x = f(1)",
        "expected_output": "4",
        "reference": "def f(x):\n    return 2 * x",
        "files": {"data.txt": "1"},
        "split": "held_out",
        "level": 3,
        "metadata": {"author": "me"},
    }
    (task,) = load(tmp_path, json.dumps(row))
    assert task == Task(
        id="double",
        messages=({"role": "user", "content": "Write f that doubles."},),
        split="held_out",
        tests=PythonTests(
            visible=("assert f(2) == 4",),
            hidden=("assert f(0) == 0",),
            imports=("import math",),
            setup="x = f(1)",
            entry_points=("f",),
        ),
        expected_output="4",
        reference="def f(x):\n    return 2 * x",
        files={"data.txt": "1"},
        metadata={"author": "me", "level": 3},
    )


def test_the_least_row_is_named_by_its_line(tmp_path):
    tasks = load(tmp_path, '\n{"prompt": "a"}\n  \n{"prompt": "b", "id": 7}\r\n')
    assert [task.id for task in tasks] == ["2", "7"]
    assert tasks[0] == Task(id="2", messages=({"role": "user", "content": "a"},))


def test_a_system_message_opens_the_tasks_that_have_none(tmp_path):
    own = {"messages": [{"role": "system", "content": "own"}, {"role": "user", "content": "b"}]}
    plain, kept = load(tmp_path, '{"prompt": "a"}\n' + json.dumps(own), system="Be brief.")
    assert plain.messages[0] == {"role": "system", "content": "Be brief."}
    assert [message["content"] for message in kept.messages] == ["own", "b"]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    assert len(load(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}')) == 1
    assert len(load(tmp_path, b'\xef\xbb\xbf\n{"prompt": "a"}')) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a"', "EOF"),
        ('["prompt"]', "a JSON object is expected, not list"),
        ("null", "a JSON object is expected, not NoneType"),
        ("{}", "either a prompt or messages"),
        ('{"prompt": ""}', "prompt:"),
        ('{"prompt": 3}', "prompt:"),
        ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "either a prompt"),
        ('{"messages": []}', "either a prompt or messages"),
        ('{"messages": [{"role": "boss", "content": "b"}]}', "messages.0: role must be one of"),
        ('{"messages": [{"role": "user"}]}', "messages.0: content must be a string"),
        ('{"messages": ["hi"]}', "messages.0:"),
        ('{"prompt": "a", "tests": "assert f()"}', "tests:"),
        ('{"prompt": "a", "tests": [1]}', "tests.0:"),
        ('{"prompt": "a", "id": true}', "id."),
        ('{"prompt": "a", "id": 1.5}', "id."),
        ('{"prompt": "a", "split": "test"}', "'train' or 'held_out'"),
        ('{"prompt": "a", "metadata": 1}', "metadata:"),
        ('{"prompt": "a", "files": {"x": 1}}', "files.x:"),
        ('{"prompt": "a\\u0000"}', "NUL"),
        ('{"prompt": "a\0"}', "control character"),
        ('{"prompt": "\\ud800"}', "hex escape"),
        ('{"prompt": "a", "x": NaN}', "expected value"),
        ('{"prompt": "a", "x": 1e999}', "not JSON compliant"),
        ('{"prompt": "a", "x": ' + "[" * 300 + "]" * 300 + "}", "recursion limit"),
        ('{"prompt": "a", "x": ' + "1" * 5000 + "}", "out of range"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_reason(tmp_path, line, said):
    (problem,) = problems(tmp_path, '{"prompt": "fine"}\n' + line + "\n")
    assert problem.startswith(f"{tmp_path / 'tasks.jsonl'}:2: ")
    assert said in problem
    assert "\n" not in problem


def test_an_escaped_backslash_before_u0000_is_no_nul(tmp_path):
    (task,) = load(tmp_path, r'{"prompt": "print(\"\\u0000\")"}')
    assert task.messages[0]["content"] == r'print("\u0000")'


def test_a_line_that_is_not_utf8_is_refused(tmp_path):
    (problem,) = problems(tmp_path, b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    assert ":2: not UTF-8" in problem


def test_a_duplicate_id_names_both_lines(tmp_path):
    (problem,) = problems(tmp_path, '{"prompt": "a", "id": "2"}\n{"prompt": "b"}\n')
    assert problem.endswith(":2: the id '2' is that of line 1")


def test_at_most_five_bad_lines_are_listed(tmp_path):
    numbers = [problem.split(":")[-2] for problem in problems(tmp_path, "{}\n" * 9)]
    assert len(numbers) == 5


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_tasks_is_refused(tmp_path, content):
    (problem,) = problems(tmp_path, content)
    assert problem.endswith("holds no task")


def test_a_line_too_long_is_refused_without_being_held(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "LONGEST_LINE", 100)
    long = '{"prompt": "' + "a" * 5000 + '"}\n'
    (problem,) = problems(tmp_path, '{"prompt": "a"}\n' + long + '{"prompt": "b"}\n')
    assert problem.endswith(":2: the line is longer than 100 bytes")
    fitting = ('{"prompt": "' + "a" * 85 + '"}\n').encode()
    assert len(fitting) == 100
    assert len(load(tmp_path, fitting)) == 1


class Sized:
    """Records how much was asked for at once."""

    def __init__(self, file):
        self.file, self.most = file, 0

    def readline(self, size):
        line = self.file.readline(size)
        self.most = max(self.most, len(line))
        return line


def test_only_a_bounded_part_of_a_line_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "LONGEST_LINE", 100)
    path = tmp_path / "long"
    path.write_bytes(b"x" * 100_000)
    with open(path, "rb") as file:
        sized = Sized(file)
        assert list(jsonl._lines(sized)) == [(1, None)]
    assert sized.most == 101


@pytest.mark.parametrize("name", ["absent.jsonl", ".", "x\0y"])
def test_what_is_no_file_is_found_without_loading(tmp_path, name):
    dataset = Jsonl(path=f"{tmp_path}/{name}")
    assert [found.key for found in dataset.check()] == ["path"]
    with pytest.raises(ConfigError, match="there is no file"):
        dataset.load(0)


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "a"}')

    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        Jsonl(path=str(path)).load(0)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(), scalars, max_size=2)
keys = st.sampled_from([*jsonl.Row.model_fields, "other", "model_config", "__class__"])
rows = st.dictionaries(keys, values, max_size=4)
asking = rows.map(lambda row: {**row, "prompt": "a", "messages": []})
lines = (rows | asking).map(lambda row: json.dumps(row).encode()) | st.binary(max_size=40)


@settings(deadline=None)
@given(st.lists(lines, max_size=4))
@example([b'{"prompt": "a", "tests": ["t"], "reference": "' + b"(" * 5000 + b'"}'])
@example([b'{"prompt": "a", "tests": ["t"], "reference": "' + b"-" * 50000 + b'1"}'])
@example([b'{"prompt": "a", "tests": ["t"], "reference": "' + b"x." * 50000 + b'x"}'])
def test_no_file_raises_anything_but_a_config_error(content):
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ConfigError):
        tasks = load(Path(folder), b"\n".join(content), system="s")
        assert len({task.id for task in tasks}) == len(tasks) > 0
        for task in tasks:
            assert Task.model_validate_json(task.model_dump_json()) == task
