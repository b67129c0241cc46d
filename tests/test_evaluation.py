import pytest

from rlpipe.evaluation import Evaluation, greedy_rate, mean_reward, pass_at
from rlpipe.types import Failure, Score, StopReason, Trajectory, TrajectoryGroup


def group(name, *passed):
    """A group whose rollouts passed, did not, or failed (None)."""
    members = [
        Trajectory(
            rollout_id=f"{name}-{i}",
            group_id=name,
            task_id=name,
            stop_reason=StopReason.FINAL_ANSWER,
            score=None if ok is None else Score(value=float(ok), passed=ok),
            failure=Failure(boundary="grader", type="x", message="") if ok is None else None,
        )
        for i, ok in enumerate(passed)
    ]
    return TrajectoryGroup(group_id=name, task_id=name, trajectories=tuple(members))


def test_wilson_interval_of_a_known_case():
    # 8 of 10: 0.4902 to 0.9433, as tables of the Wilson interval have it.
    rate = greedy_rate([group(str(i), i < 8) for i in range(10)])
    assert rate.value == 0.8
    assert (rate.low, rate.high) == (
        pytest.approx(0.4902, abs=1e-4),
        pytest.approx(0.9433, abs=1e-4),
    )


def test_failed_rollouts_count_in_no_rate():
    assert greedy_rate([group("a", True), group("b", None)]).value == 1.0
    assert greedy_rate([group("a", None)]) is None


def test_pass_at_k_is_the_unbiased_estimate():
    # n=4, c=1: pass@1 = 1/4, pass@2 = 1 - C(3,2)/C(4,2) = 1/2, pass@4 = 1.
    groups = [group("a", True, False, False, False)]
    assert [pass_at(groups, k).value for k in (1, 2, 4)] == [0.25, 0.5, 1.0]


def test_a_few_tasks_that_all_passed_leave_doubt():
    rate = pass_at([group(name, True, True) for name in "abc"], 2)
    assert (rate.value, rate.high) == (1.0, pytest.approx(1.0))
    assert rate.low == pytest.approx(0.4385, abs=1e-4)  # Wilson, 3 of 3


def test_failed_rollouts_have_no_part_in_the_reward():
    assert mean_reward([group("a", True, None), group("b", False)]) == 0.5
    assert mean_reward([group("a", None)]) is None


def test_tasks_with_too_few_valid_rollouts_are_left_out():
    groups = [group("a", True, None), group("b", False, False)]
    assert pass_at(groups, 2).count == 1
    assert pass_at([group("a", True, None)], 2) is None


def test_metrics_name_every_rate_and_its_interval():
    rate = greedy_rate([group("a", True)])
    metrics = Evaluation(3, greedy=rate, pass_at={4: rate}, reward=0.5, failed=2).metrics()
    assert set(metrics) == {
        "val/failed",
        "val/reward",
        *(f"val/pass_rate{end}" for end in ("", "_low", "_high")),
        *(f"val/pass@4{end}" for end in ("", "_low", "_high")),
    }
