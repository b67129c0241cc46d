"""Numbers of the rows that a service learns from."""

from math import exp

import pytest

from rlpipe.backends._examples import (
    Example,
    policy_figures,
    sampled,
    sides,
    taught,
    teacher_figures,
)
from rlpipe.chat import IGNORED
from rlpipe.types import TokenRow

ROW = TokenRow((1, 2, 3), (4, 5, 6, 7), (-0.5, -0.25, 0.0, -1.0), (1, 1, 0, 1))
"""Two sampled tokens, one of a tool's output, and another sampled one."""


def test_a_sampled_row_trains_on_what_the_policy_said():
    row = sampled(ROW, -1.5)
    assert row.inputs == [1, 2, 3, 4, 5, 6]
    assert row.targets == [2, 3, 4, 5, 6, 7]
    assert row.learned == (False, False, True, True, False, True)
    assert row.logprobs == (0.0, 0.0, -0.5, -0.25, 0.0, -1.0)
    assert row.weights == [0.0, 0.0, -1.5, -1.5, 0.0, -1.5]


def test_a_taught_row_trains_on_its_labels():
    row = taught([1, 2, 3, 4], [IGNORED, IGNORED, 3, 4], 2.0)
    assert (row.inputs, row.targets) == ([1, 2, 3], [2, 3, 4])
    assert row.weights == [0.0, 2.0, 2.0]
    assert row.logprobs == (0.0, 0.0, 0.0)
    assert taught([1, 2], [IGNORED, 2]).weights == [1.0]


def test_the_first_label_is_not_predicted_from_anything():
    assert taught([1, 2], [1, 2]).weights == [1.0]


def test_figures_compare_the_trainer_with_the_sampler():
    row = sampled(ROW, 2.0)
    trained = [-9.0, -9.0, -0.5, -0.5, -9.0, -0.9]  # given tokens count for nothing
    figures = policy_figures([row], [trained])
    assert figures["train/tokens"] == 3
    assert figures["train/logprob_diff"] == pytest.approx((0 + 0.25 + 0.1) / 3)
    assert figures["train/logprob_diff_max"] == pytest.approx(0.25)
    assert figures["train/entropy"] == pytest.approx((0.5 + 0.5 + 0.9) / 3)
    expected = -2.0 * (1 + exp(-0.25) + exp(0.1)) / 3
    assert figures["train/loss"] == pytest.approx(expected)


def test_a_teachers_figures_are_per_learned_token():
    good = Example((0, 1, 2), (False, True), (0.0, 0.0), 1.0)
    bad = Example((0, 1, 2), (True, True), (0.0, 0.0), -0.5)
    trained = [[-7.0, -2.0], [-1.0, -3.0]]
    figures = teacher_figures([good, bad], trained)
    assert figures == {"train/loss": pytest.approx((2.0 - 0.5 - 1.5) / 3), "train/tokens": 3.0}
    assert sides([good, bad], trained) == {
        "train/logprob_better": -2.0,
        "train/logprob_worse": -2.0,
    }
    assert sides([good], trained[:1]) == {"train/logprob_better": -2.0}
