import pytest

from rlpipe.console import Console
from rlpipe.rewards.base import NO_ANSWER
from rlpipe.types import Failure, Score, StopReason, Trajectory, TrajectoryGroup

PASSED, FAILED = Score(value=1.0, passed=True), Score(value=0.0, outcome="tests_failed")
LOST = Failure(boundary="sandbox", type="SandboxGone", message="")


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([PASSED, FAILED, NO_ANSWER], "2 sandboxes, 1/2 passed, 1 skipped (no code)"),
        ([FAILED, FAILED], "2 sandboxes, 0/2 passed"),
        ([NO_ANSWER, NO_ANSWER], "0 sandboxes, 0/0 passed, 2 skipped (no code)"),
        ([PASSED, LOST], "1 sandbox, 1/1 passed, 1 masked"),
    ],
)
def test_the_line_of_a_reward_call(capsys, verdicts, said):
    members = tuple(
        Trajectory(
            rollout_id=f"g-{index}",
            group_id="g",
            task_id="t",
            stop_reason=StopReason.FINAL_ANSWER,
            score=verdict if isinstance(verdict, Score) else None,
            failure=verdict if isinstance(verdict, Failure) else None,
        )
        for index, verdict in enumerate(verdicts)
    )
    group = TrajectoryGroup(group_id="g", task_id="t", trajectories=members)
    Console().reward_call(8, [group])
    assert capsys.readouterr().out == f"  Reward call 8: {said}\n"
