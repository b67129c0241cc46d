"""MBPP: both schemas give one kind of task, published splits, and errors that say where."""

import ast
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlpipe.datasets import mbpp
from rlpipe.datasets.mbpp import Mbpp
from rlpipe.errors import ConfigError
from rlpipe.types import PythonTests, Task

DATA = Path(__file__).parents[3] / "shared" / "data" / "mbpp"
# Some of the published solutions and tests hold escapes such as "\w", which the parser warns of.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no copy of MBPP at {DATA}")

FULL = {
    "text": "Write a function to square a number.",
    "code": "import math\r\ndef square(n):\r\n    return n * n",
    "task_id": 601,
    "test_setup_code": "",
    "test_list": ["assert square(2) == 4", "assert square(3) == 9", "assert square(0) == 0"],
    "challenge_test_list": ["assert square(-1) == 1"],
}
SANITIZED = {
    "source_file": "notebook.ipynb",
    "task_id": 602,
    "prompt": "Write a function to round a number up.",
    "code": "import math\ndef up(x):\n    return math.ceil(x)",
    "test_imports": ["import math"],
    "test_list": ["assert up(math.pi) == 4"],
}


def written(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def row(task_id: int) -> dict[str, object]:
    return {**FULL, "task_id": task_id}


def refusal(dataset: Mbpp) -> str:
    with pytest.raises(ConfigError) as caught:
        dataset.load(0)
    return str(caught.value)


def test_both_schemas_give_the_same_kind_of_task(tmp_path):
    path = written(tmp_path / "mixed.jsonl", FULL, SANITIZED)
    full, sanitized = Mbpp(path=path).load(0)
    assert type(full) is type(sanitized) is Task
    assert (full.id, sanitized.id) == ("mbpp/601", "mbpp/602")
    assert full.tests == PythonTests(
        visible=tuple(FULL["test_list"]),
        hidden=("assert square(-1) == 1",),
        imports=("import math",),
        entry_points=("square",),
    )
    # The test's own import and the reference's are one and the same.
    assert sanitized.tests == PythonTests(
        visible=("assert up(math.pi) == 4",), imports=("import math",), entry_points=("up",)
    )
    assert full.reference == "import math\ndef square(n):\n    return n * n"


def test_the_tests_own_imports_come_before_those_of_the_solution(tmp_path):
    row = {**SANITIZED, "test_imports": ["import cmath"]}
    (task,) = Mbpp(path=written(tmp_path / "mbpp.jsonl", row)).load(0)
    assert task.tests.imports == ("import cmath", "import math")


@pytest.mark.parametrize("form", ["array", "lines"])
def test_unknown_schema_names_the_place_and_the_keys(tmp_path, form):
    strange = {"question": "?", "answer": 1}
    path = tmp_path / "strange.json"
    if form == "array":
        path.write_text(json.dumps([FULL, strange]))
    else:
        written(path, FULL, strange)
    said = refusal(Mbpp(path=str(path)))
    assert f"{path}: row 2" in said if form == "array" else f"{path}:2" in said
    assert "answer, question" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": ', ":1: not valid JSON"),
        (b"[1, 2", "not valid JSON"),
        (b"\xff\xfe", ":1: not valid JSON"),
        (b"7\n", "not an MBPP problem"),
        (b"", "holds no problem"),
        (json.dumps(row(975)).encode(), "task_id"),
        (json.dumps({**FULL, "test_list": "assert 1"}).encode(), "test_list"),
    ],
)
def test_broken_files_are_refused_with_the_reason(tmp_path, content, said):
    path = tmp_path / "broken.jsonl"
    path.write_bytes(content)
    assert said in refusal(Mbpp(path=str(path)))


def test_a_byte_order_mark_and_line_separators_in_strings_do_no_harm(tmp_path):
    path = tmp_path / "mbpp.jsonl"
    text = json.dumps({**FULL, "text": "one\u2028two"}, ensure_ascii=False)
    path.write_text(text + "\r\n\n", encoding="utf-8-sig")
    (task,) = Mbpp(path=str(path)).load(0)
    assert "one\u2028two" in task.messages[0]["content"]


def test_published_splits_go_by_task_id(tmp_path):
    ids = [1, 10, 11, 510, 511, 600, 601, 974]
    path = written(tmp_path / "mbpp.jsonl", *map(row, ids))
    splits = [task.split for task in Mbpp(path=path).load(0)]
    assert splits == [
        *("prompt", "prompt", "held_out", "held_out"),
        *("validation", "validation", "train", "train"),
    ]


def test_an_unchosen_training_split_is_never_trained_on(tmp_path):
    path = written(tmp_path / "mbpp.jsonl", *map(row, [11, 511, 601]))
    dataset = Mbpp(path=path, train_split="test", held_out_split="validation")
    splits = dataset.splits(0)
    assert [task.id for task in splits.train] == ["mbpp/11"]
    assert [task.id for task in splits.held_out] == ["mbpp/511"]
    assert [task.split for task in splits.all] == ["train", "held_out", "published_train"]


def test_training_on_the_evaluation_split_is_refused():
    with pytest.raises(ValidationError, match="both 'test'"):
        Mbpp(train_split="test")


def test_duplicate_ids_are_refused(tmp_path):
    path = written(tmp_path / "mbpp.jsonl", FULL, FULL)
    with pytest.raises(ConfigError, match="mbpp/601"):
        Mbpp(path=path).splits(0)


def test_visible_tests_bounds_what_the_prompt_shows(tmp_path):
    path = written(tmp_path / "mbpp.jsonl", FULL)
    (task,) = Mbpp(path=path, visible_tests=1).load(0)
    content = task.messages[0]["content"]
    assert "square(2)" in content
    assert "square(3)" not in content
    assert task.tests.visible == ("assert square(2) == 4",)
    assert len(task.tests.hidden) == 3


def test_challenge_tests_and_the_solution_are_never_shown(tmp_path):
    (task,) = Mbpp(path=written(tmp_path / "mbpp.jsonl", FULL)).load(0)
    content = task.messages[0]["content"]
    assert "square(0)" in content
    assert "square(-1)" not in content
    assert "return" not in content


def test_the_prompt_template_is_the_users(tmp_path):
    path = written(tmp_path / "mbpp.jsonl", FULL)
    (task,) = Mbpp(path=path, visible_tests=1, prompt="{{}} {text} | {tests}").load(0)
    assert task.messages == (
        {"role": "user", "content": f"{{}} {FULL['text']} | assert square(2) == 4"},
    )


@pytest.mark.parametrize(
    "prompt", ["{test} {text}", "{0} {text}", "{", "no place for it", "{text.x}"]
)
def test_a_template_that_cannot_be_filled_is_refused(prompt):
    with pytest.raises(ValidationError, match=r"\{text\}"):
        Mbpp(prompt=prompt)


@pytest.mark.parametrize("name", ["mbpp.jsonl", "data/mbpp.jsonl", "full/train.jsonl"])
def test_a_folder_is_searched_for_the_subset(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    written(path, FULL)
    assert Mbpp(path=str(tmp_path)).check() == []
    assert len(Mbpp(path=str(tmp_path)).load(0)) == 1
    (finding,) = Mbpp(path=str(tmp_path), subset="sanitized").check()
    assert finding.key == "path"
    assert "sanitized-mbpp.json" in finding.problem


def test_the_hubs_parquet_files_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "full").mkdir()
    for name, task_id in [("test", 11), ("train", 601)]:
        table = pyarrow.Table.from_pylist([row(task_id)])
        parquet.write_table(table, tmp_path / "full" / f"{name}-00000-of-00001.parquet")
    tasks = Mbpp(path=str(tmp_path)).load(0)
    assert {task.id: task.split for task in tasks} == {
        "mbpp/11": "held_out",
        "mbpp/601": "train",
    }


def test_a_broken_parquet_file_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"not parquet")
    assert "not valid parquet" in refusal(Mbpp(path=str(tmp_path)))


def test_a_missing_path_is_found_without_loading(tmp_path):
    dataset = Mbpp(path=str(tmp_path / "absent.jsonl"))
    (finding,) = dataset.check()
    assert (finding.key, "absent.jsonl" in finding.problem) == ("path", True)
    assert "absent.jsonl" in refusal(dataset)


def test_the_size_is_known_without_reading(tmp_path):
    assert Mbpp().count() == 974
    assert Mbpp(subset="sanitized").count() == 427
    assert Mbpp(path="somewhere/sanitized-mbpp.json").count() == 427
    assert Mbpp(path="somewhere/mine.jsonl").count() is None
    assert Mbpp(path=str(tmp_path), subset="sanitized").count() == 427


def test_the_hub_is_asked_for_the_pinned_revision(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return {"test": [row(11)], "train": [row(601)]}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    tasks = Mbpp(revision="abc").load(0)
    assert [task.split for task in tasks] == ["held_out", "train"]
    assert asked == [(("google-research-datasets/mbpp", "full"), {"revision": "abc"})]


def test_an_unreachable_hub_says_to_give_a_path(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def load_dataset(*_args, **_options):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    said = refusal(Mbpp())
    assert "dataset.path" in said
    assert "no route" in said


def test_without_the_extra_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'rlpipe[hub]'" in refusal(Mbpp())
    monkeypatch.setattr(mbpp, "find_spec", lambda _name: None)
    assert ["pip install 'rlpipe[hub]'" in found.problem for found in Mbpp().check()] == [True]
    assert Mbpp(path=__file__).check() == []


@needs_data
@pytest.mark.parametrize(
    ("subset", "sizes"),
    [
        ("full", {"prompt": 10, "held_out": 500, "validation": 90, "train": 374}),
        ("sanitized", {"prompt": 7, "held_out": 257, "validation": 43, "train": 120}),
    ],
)
def test_the_whole_data_set_loads(subset, sizes):
    dataset = Mbpp(path=str(DATA), subset=subset)
    tasks = dataset.load(0)
    assert Counter(task.split for task in tasks) == sizes
    assert len({task.id for task in tasks}) == len(tasks) == dataset.count()
    for task in tasks:
        assert "\r" not in task.reference + task.tests.setup
        assert set(task.tests.entry_points) & names_in(task.tests.all)


def names_in(statements: tuple[str, ...]) -> set[str]:
    nodes = ast.walk(ast.parse("\n".join(statements)))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


@needs_data
@pytest.mark.parametrize("task_id", [367, 927])
def test_the_two_tasks_with_set_up_code_keep_it_apart(task_id):
    tasks = {task.id: task for task in Mbpp(path=str(DATA)).load(0)}
    task = tasks[f"mbpp/{task_id}"]
    assert "root = Node(1)" in task.tests.setup
    assert "Node" in task.tests.entry_points
    with_setup = [task.id for task in tasks.values() if task.tests.setup]
    assert with_setup == ["mbpp/367", "mbpp/927"]


@needs_data
def test_held_out_tasks_never_train():
    tasks = Mbpp(path=str(DATA)).load(0)
    assert len(tasks) == 974

    @given(seed=st.integers(), limit=st.none() | st.integers(1, 500), held_out=st.integers(0, 600))
    def never_overlap(seed, limit, held_out):
        dataset = Loaded(path=str(DATA), limit=limit, held_out=held_out)
        splits = dataset.splits(seed)
        train = [task.id for task in splits.train]
        assert not set(train) & {task.id for task in splits.held_out}
        assert len(train) == min(limit or 374, 374)
        assert len(splits.held_out) == min(held_out, 500)
        assert dataset.splits(seed) == splits

    class Loaded(Mbpp):
        def load(self, seed):
            return tasks

    never_overlap()
