"""The four answers, by figures that can be checked by hand."""

import math

import pytest

from rlpipe.report import summary
from rlpipe.report.data import RunData, brief
from rlpipe.report.figures import distribution


@pytest.fixture
def data(tmp_path):
    """A folder with nothing in it, to which the tests add."""
    run = RunData(tmp_path)
    run.manifest = {"mode": "train", "status": "done", "started": "2026-01-01T00:00:00+00:00"}
    return run


def row(**fields):
    return brief(fields.pop("file", "step_1"), 0, {"phase": "train", "reward": 0.0} | fields)


def evaluate(data, step, passed, low=None, high=None):
    """A held-out evaluation in which these tasks passed."""
    value = sum(passed) / len(passed)
    bounds = {"val/pass_rate_low": low, "val/pass_rate_high": high} if low is not None else {}
    data.metrics[step] = {"val/pass_rate": value} | bounds
    data.trajectories += [
        row(phase="eval", step=step, task_id=str(n), passed=won, reward=float(won))
        for n, won in enumerate(passed)
    ]


@pytest.mark.parametrize(
    ("gained", "lost", "chance"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 1 / 16), (6, 0, 1 / 32), (7, 1, 18 / 256), (3, 3, 1.0)],
)
def test_mcnemars_exact_test(gained, lost, chance):
    assert summary.mcnemar(gained, lost) == pytest.approx(chance)
    assert summary.mcnemar(lost, gained) == pytest.approx(chance)


@pytest.mark.parametrize(
    ("before", "after", "verdict", "said"),
    [
        ("0000000011", "0111111011", "yes", "Yes: held-out pass rate rose from 20.0 % to 80.0 %"),
        ("0111111011", "0000000011", "worse", "No: held-out pass rate fell from 80.0 % to 20.0 %"),
        ("0000000011", "0000011111", "unclear", "Not clearly: held-out pass rate rose from 20.0"),
        ("0101010101", "1010101010", "unclear", "Not clearly: held-out pass rate stayed at 50.0"),
    ],
)
def test_it_learned_if_more_tasks_were_gained_than_chance_gives(data, before, after, verdict, said):
    evaluate(data, 0, [mark == "1" for mark in before])
    evaluate(data, 5, [mark == "1" for mark in after])
    answer = summary.learned(data)
    assert answer["verdict"] == verdict
    assert answer["headline"].replace("\xa0", " ").startswith(said)


def test_gains_and_losses_are_of_the_same_tasks(data):
    evaluate(data, 0, [True, False, False, False])
    evaluate(data, 2, [False, True, True, False])
    evaluate(data, 4, [False, True, False, False])
    answer = summary.learned(data)
    assert (answer["gained"], answer["lost"], answer["best"]["step"]) == (1, 1, 2)


def test_without_trajectories_intervals_decide(data):
    data.metrics = {
        0: {"val/pass_rate": 0.3, "val/pass_rate_low": 0.2, "val/pass_rate_high": 0.4},
        9: {"val/pass_rate": 0.6, "val/pass_rate_low": 0.5, "val/pass_rate_high": 0.7},
    }
    assert summary.learned(data)["verdict"] == "yes"
    data.metrics[9]["val/pass_rate_low"] = 0.39
    assert summary.learned(data)["verdict"] == "unclear"


def test_what_is_not_known_is_not_claimed(data):
    assert summary.learned(data)["headline"] == "Not known: nothing was measured"
    data.metrics = {n: {"train/reward": n / 10} for n in range(1, 11)}
    said = "Not measured on held-out tasks: training reward went from 0.150 to 0.950"
    assert summary.learned(data)["headline"] == said
    data.metrics[0] = {"val/pass_rate": 0.25}
    assert summary.learned(data)["headline"].startswith("Not known yet: held-out pass rate 25.0")


def test_pass_at_one_stands_in_for_a_greedy_rate(data):
    data.metrics = {0: {"val/pass@1": 0.5, "val/pass@1_low": 0.4, "val/pass@1_high": math.nan}}
    assert summary.evaluations(data) == [{"step": 0, "value": 0.5, "low": 0.4}]


def test_a_run_that_does_not_train_says_so(data):
    data.manifest["mode"] = "collect"
    data.trajectories = [
        row(phase="collect", passed=n < 3, reward=1.0 if n < 3 else 0.0) for n in range(4)
    ]
    said = summary.learned(data)["headline"].replace("\xa0", " ")
    assert said == "Nothing was trained: 75.0 % of 4 rollouts passed"
    assert summary.tried(data)["phase"] == "collect"


def test_what_was_tried_is_what_training_tried(data):
    data.trajectories = [
        row(stop_reason="submitted", tool_calls={"bash": 2, "submit": 1}, turns=[{}, {}]),
        row(stop_reason="submitted", tool_calls={"bash": 1}, turns=[{}, {}, {}, {}]),
        row(stop_reason="max_turns", passed=True),
        row(stop_reason="final_answer", phase="teacher"),
    ]
    answer = summary.tried(data)
    assert answer["stops"] == [("submitted", 2), ("max_turns", 1)]
    assert answer["tools"] == [("bash", 3), ("submit", 1)]
    assert (answer["rollouts"], answer["scored"], answer["passed"]) == (3, 3, 1)
    assert answer["turns"] == 2.0
    said = answer["headline"].replace("\xa0", " ")
    assert said == "3 rollouts: 66.7 % submitted, 33.3 % max turns"


def test_the_machinerys_failures_stand_apart_from_the_models(data):
    gone = {"boundary": "sandbox", "type": "SandboxGone"}
    data.trajectories = [
        row(passed=True, reward=1.0, outcome="passed"),
        row(outcome="tests_failed", malformed=2),
        row(outcome="tests_failed", stop_reason="max_tokens"),
        row(outcome=None),
        row(failure=gone, outcome="tests_failed"),
        row(phase="eval", outcome="no_answer"),
    ]
    late = {"boundary": "provider", "type": "ProviderError", "message": "busy"}
    data.failures = [gone | {"message": "died"}, late, late]
    answer = summary.failed(data)
    assert answer["machinery"] == [
        {"name": "sandbox/SandboxGone", "lost": 1, "attempts": 1, "message": "died"},
        {"name": "provider/ProviderError", "lost": 0, "attempts": 2, "message": "busy"},
    ]
    assert answer["outcomes"] == [("tests_failed", 2), ("not_passed", 1)]
    assert (answer["scored"], answer["wrong"], answer["lost"], answer["total"]) == (4, 3, 1, 6)
    assert (answer["malformed"], answer["cut"]) == (2, [("max_tokens", 1)])
    said = answer["headline"].replace("\xa0", " ")
    assert said == (
        "Machinery: lost 1 of 6 rollouts (16.7 %). Model: 75.0 % of answers did not pass."
    )


def test_time_is_shared_out_by_what_rollouts_waited_for(data):
    data.metrics = {
        1: {
            "time/rollouts": 10.0,
            "time/sampling": 60.0,
            "time/tools": 20.0,
            "time/grading": 20.0,
            "time/training": 5.0,
        },
        2: {"time/training": 7.0},
    }
    split = dict(summary.time_split(data, 40.0))
    assert split == pytest.approx(
        {"sampling": 6.0, "tools": 2.0, "grading": 2.0, "training": 12.0, "other": 18.0}
    )


def test_without_training_steps_the_whole_time_is_rollouts(data):
    timing = {"total": 9.0, "sampling": 6.0, "tools": 0.0, "grading": 2.0}
    data.trajectories = [row(phase="collect", timing=timing)] * 3
    split = dict(summary.time_split(data, 40.0))
    assert split == pytest.approx({"sampling": 30.0, "tools": 0, "grading": 10.0, "other": 0.0})


def test_tokens_are_told_by_purpose_and_money_where_it_is_known(data):
    data.manifest["ended"] = "2026-01-01T01:02:03+00:00"
    usage = {"prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 7}
    data.trajectories = [row(usage=usage), row(usage=usage), row(usage=usage, phase="teacher")]
    answer = summary.cost(data, now=0.0)
    assert answer["headline"] == "1 h 2 min, 21 tokens sampled"
    assert answer["tokens"] == [
        {"phase": "train", "rollouts": 2, "prompt": 200, "cached": 80, "completion": 14},
        {"phase": "teacher", "rollouts": 1, "prompt": 100, "cached": 40, "completion": 7},
    ]
    assert answer["money"] is None
    first = {"costs/teacher": 0.25, "costs/policy": 1.0, "costs/total": 1.25, "costs/step": 1.25}
    data.metrics = {1: first, 2: {"costs/policy": 1.5, "costs/total": 1.75, "costs/step": 0.5}}
    answer = summary.cost(data, now=0.0)
    assert answer["money"] == {"total": 1.75, "parts": [("policy", 1.5), ("teacher", 0.25)]}
    assert answer["headline"] == "1 h 2 min, 21 tokens sampled, $1.75"


def test_the_clock_of_a_run_that_goes_on_runs(data):
    began = 1767225600.0
    data.manifest |= {"status": "running", "ended": "2025-12-31T23:00:00+00:00"}  # an earlier end
    assert summary.wall_seconds(data, began + 90) == pytest.approx(90)
    assert summary.duration(90) == "1 min 30 s"
    assert summary.duration(0.25) == "0.2 s"


def test_few_rewards_are_told_apart_and_many_are_binned():
    few = [row(step=1, reward=r) for r in (0, 0, 0.5, 1)] + [row(step=2, reward=1)]
    few.append(row(step=2, failure={"boundary": "tool", "type": "X"}))
    assert distribution(few) == {
        "steps": [1, 2],
        "labels": ["0", "0.5", "1"],
        "counts": [[2, 0], [1, 0], [1, 1]],
        "masked": [0, 1],
    }
    many = distribution([row(step=1, reward=n / 100) for n in range(101)])
    assert [sum(counts) for counts in many["counts"]] == [13, 12, 13, 12, 13, 12, 13, 13]
    assert many["labels"][0] == "0 to 0.125"
    assert distribution([]) == {"steps": [], "labels": [], "counts": [], "masked": []}
    assert distribution([row(failure={"boundary": "tool", "type": "X"})])["masked"] == [1]
