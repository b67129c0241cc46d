"""Order, limit and held-out tasks, for any source of tasks."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.datasets.base import Dataset
from rlpipe.errors import ConfigError
from rlpipe.types import Task


class Listed(Dataset):
    """Tasks named by their split and position."""

    kind: Literal["listed"] = "listed"
    names: tuple[str, ...]

    def load(self, seed):
        return [task(name) for name in self.names]


def task(name: str) -> Task:
    return Task(id=name, messages=(), split=name.rsplit("-", 1)[0])


def ids(tasks: tuple[Task, ...]) -> list[str]:
    return [task.id for task in tasks]


def numbered(split: str, size: int) -> tuple[str, ...]:
    return tuple(f"{split}-{number}" for number in range(size))


settings = st.fixed_dictionaries(
    {
        "limit": st.none() | st.integers(1, 40),
        "held_out": st.integers(0, 40),
        "shuffle": st.booleans(),
    }
)


@given(settings, st.integers(), st.integers(0, 30), st.integers(0, 30), st.integers(0, 3))
def test_held_out_tasks_never_train(options, seed, train, held_out, other):
    names = numbered("train", train) + numbered("held_out", held_out) + numbered("test", other)
    splits = Listed(names=names, **options).splits(seed)
    trained, evaluated = ids(splits.train), ids(splits.held_out)
    assert not set(trained) & set(evaluated)
    assert len(set(trained)) == len(trained)
    assert ids(splits.all) == list(names)
    assert not any(name.startswith("test") for name in trained + evaluated)
    published = [name for name in names if name.startswith("held_out")]
    if published:
        assert evaluated == published[: options["held_out"]]
    else:
        assert len(evaluated) == min(options["held_out"], train)


@given(settings, st.integers())
def test_one_seed_gives_one_order(options, seed):
    dataset = Listed(names=numbered("train", 30), **options)
    assert dataset.splits(seed) == dataset.splits(seed)


@given(st.integers(), st.integers(1, 40))
def test_a_limit_takes_the_beginning_of_the_same_order(seed, limit):
    names = numbered("train", 30)
    every = Listed(names=names, held_out=5).splits(seed)
    some = Listed(names=names, held_out=5, limit=limit).splits(seed)
    assert some.train == every.train[:limit]
    assert some.held_out == every.held_out


def test_the_order_is_the_seeds():
    dataset = Listed(names=numbered("train", 20), held_out=4)
    first, second = dataset.splits(1), dataset.splits(2)
    assert ids(first.train) != ids(second.train)
    assert ids(first.held_out) != ids(second.held_out)


def test_the_order_is_pinned_since_a_resumed_run_must_find_it_again():
    splits = Listed(names=numbered("train", 6), held_out=2).splits(0)
    assert ids(splits.train) == ["train-1", "train-5", "train-0", "train-2"]


def test_without_shuffling_the_data_sets_order_stays():
    splits = Listed(names=numbered("train", 20), held_out=0, shuffle=False).splits(7)
    assert ids(splits.train) == list(numbered("train", 20))


def test_a_task_id_that_occurs_twice_is_refused():
    with pytest.raises(ConfigError, match="'train-1' occurs more than once"):
        Listed(names=("train-1", "train-1")).splits(0)
