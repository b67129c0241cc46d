"""Arithmetic: right answers, wrong mistakes, no repetition, and cheap generation."""

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlpipe.datasets.arithmetic import OPERATIONS, Arithmetic
from rlpipe.errors import ConfigError

numbers = st.integers(-60, 60)
operations = st.lists(st.sampled_from(list(OPERATIONS)), min_size=1, unique=True)


@st.composite
def small(draw):
    low = draw(numbers)
    high = draw(st.integers(low, low + 8))
    names = draw(operations)
    possible = len(names) * (high - low + 1) ** 2
    return Arithmetic(
        low=low, high=high, operations=names, tasks=draw(st.integers(1, min(possible, 40)))
    )


def printed(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue().strip()


@given(small(), st.integers())
def test_the_reference_prints_what_is_expected_and_the_mistake_does_not(dataset, seed):
    for task in dataset.load(seed):
        assert printed(task.reference) == task.expected_output
        if task.mistake is not None:
            assert printed(task.mistake) != task.expected_output


@given(small(), st.integers())
def test_tasks_are_distinct_and_the_seeds_own(dataset, seed):
    tasks = dataset.load(seed)
    assert len({task.id for task in tasks}) == len(tasks) == dataset.count() == dataset.tasks
    assert len({task.messages[0]["content"] for task in tasks}) == len(tasks)
    assert dataset.load(seed) == tasks


def test_one_task_in_full():
    (task,) = Arithmetic(tasks=1, low=17, high=17, operations=("product",)).load(0)
    assert task.id == "product-17-17"
    assert task.messages == (
        {"role": "user", "content": "Write Python that prints the product of 17 and 17."},
    )
    assert task.expected_output == "289"
    assert task.reference == "print(17 * 17)"
    assert task.mistake == "print(17 + 17)"


def test_the_mistake_is_none_where_it_would_be_right():
    tasks = Arithmetic(tasks=4 * 9, low=0, high=2).load(0)
    rights = {task.id for task in tasks if task.mistake is None}
    assert {f"sum-{a}-{b}" for a in range(3) for b in range(3)} < rights
    assert {"product-2-2", "difference-2-0", "larger-0-1"} < rights
    assert "product-1-2" not in rights


def test_every_possible_task_can_be_had_and_not_one_more():
    dataset = Arithmetic(tasks=36, low=1, high=3)
    assert len({task.id for task in dataset.load(0)}) == 36
    greedy = Arithmetic(tasks=37, low=1, high=3)
    (finding,) = greedy.check()
    assert finding.key == "tasks"
    with pytest.raises(ConfigError, match=r"dataset\.tasks: 37 .* only 36 "):
        greedy.load(0)


def test_operations_come_about_equally_often():
    tasks = Arithmetic(tasks=4000).load(0)
    for name in OPERATIONS:
        assert 900 < sum(task.id.startswith(name) for task in tasks) < 1100


def test_a_huge_range_is_not_built():
    assert len(Arithmetic(low=-1_000_000, high=1_000_000, tasks=50).load(0)) == 50


@pytest.mark.parametrize(
    "options",
    [
        {"low": 5, "high": 4},
        {"operations": ()},
        {"operations": ("sum", "sum")},
        {"operations": ("quotient",)},
        {"tasks": 0},
        {"high": 10**9},
    ],
)
def test_senseless_options_are_refused(options):
    with pytest.raises(ValidationError):
        Arithmetic(**options)


def test_another_seed_gives_other_tasks():
    dataset = Arithmetic(tasks=100)
    assert {task.id for task in dataset.load(0)} != {task.id for task in dataset.load(1)}
