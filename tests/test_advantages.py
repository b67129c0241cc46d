import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.advantages import advantages, trainable, zero_variance

REWARDS = st.lists(st.none() | st.floats(-10, 10), min_size=1, max_size=8)


def test_a_failed_rollout_moves_no_baseline():
    (group,) = advantages([[1, 0, None, 1]])
    assert group == [pytest.approx(1 / 3), pytest.approx(-2 / 3), None, pytest.approx(1 / 3)]


def test_group_scaling_divides_by_the_population_spread_of_the_valid():
    (group,) = advantages([[1, 0, None, 1]], "group")
    spread = math.sqrt(2 / 9)
    assert group[0] == pytest.approx(1 / 3 / spread)
    assert group[1] == pytest.approx(-2 / 3 / spread)


def test_batch_scaling_takes_all_usable_groups_together():
    first, second = advantages([[1, 0], [1, 1], [5, None]][:2], "batch")
    spread = math.sqrt(3 / 16)
    assert first == [pytest.approx(0.5 / spread), pytest.approx(-0.5 / spread)]
    assert second == [0, 0]


def test_a_lone_valid_reward_neither_trains_nor_joins_the_batch_spread():
    alone, pair = advantages([[100, None], [1, 0]], "batch")
    assert alone == [None, None]
    assert pair == [pytest.approx(1.0), pytest.approx(-1.0)]


def test_equal_rewards_are_all_zero_under_every_scaling():
    for scale in ("none", "group", "batch"):
        assert advantages([[0.5, 0.5, 0.5]], scale) == [[0, 0, 0]]


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward):
    for take in (trainable, zero_variance, lambda group: advantages([group])):
        with pytest.raises(ValueError, match="not finite"):
            take([1.0, reward, None])


@given(REWARDS)
def test_valid_advantages_sum_to_zero_and_nones_stay(rewards):
    (group,) = advantages([rewards])
    usable = [r for r in rewards if r is not None]
    if len(usable) < 2:
        assert group == [None] * len(rewards)
        return
    assert [a is None for a in group] == [r is None for r in rewards]
    assert sum(a for a in group if a is not None) == pytest.approx(0, abs=1e-9)


def test_trainable_and_zero_variance_are_the_two_faces_of_a_usable_group():
    assert trainable([1, 0, None])
    assert not trainable([1, None])
    assert not trainable([1, 1])
    assert zero_variance([1, 1])
    assert not zero_variance([1, None])
    assert not zero_variance([1, 0])
