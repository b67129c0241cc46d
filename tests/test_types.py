import pytest
from pydantic import ValidationError

from rlpipe.types import (
    Failure,
    Score,
    StopReason,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
    Usage,
    lay_out,
)


def trajectory(**changes):
    fields = {
        "rollout_id": "train-1-0-0",
        "group_id": "train-1-0",
        "task_id": "a",
        "stop_reason": StopReason.FINAL_ANSWER,
    }
    return Trajectory(**fields | changes)


def turn(prompt, completion):
    return Turn(prompt_ids=prompt, completion_ids=completion, logprobs=[-1.0] * len(completion))


def test_a_conversation_that_only_grows_is_one_row_with_the_given_tokens_masked():
    rows = lay_out([turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 9, 9, 9], [5])])
    assert rows == [
        TokenRow((1, 2), (3, 4, 9, 9, 9, 5), (-1.0, -1.0, 0.0, 0.0, 0.0, -1.0), (1, 1, 0, 0, 0, 1))
    ]


def test_a_rewritten_history_starts_a_new_row():
    rows = lay_out([turn([1, 2], [3]), turn([1, 7, 3, 9], [5])])
    assert [row.prompt_ids for row in rows] == [(1, 2), (1, 7, 3, 9)]
    assert [row.mask for row in rows] == [(1,), (1,)]


def test_a_turn_without_token_ids_cannot_be_laid_out():
    with pytest.raises(ValueError, match="token ids"):
        lay_out([Turn()])


def test_log_probabilities_must_match_the_tokens():
    with pytest.raises(ValueError, match="1 log-probabilities for 2 tokens"):
        lay_out([Turn(prompt_ids=(1,), completion_ids=(2, 3), logprobs=(-1.0,))])


def test_a_failure_has_no_reward_even_when_a_score_was_taken():
    failed = trajectory(
        score=Score(value=1.0), failure=Failure(boundary="sandbox", type="SandboxGone", message="")
    )
    assert failed.reward is None
    assert not failed.valid
    assert trajectory(score=Score(value=0.5)).reward == 0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_score_is_a_finite_number(value):
    with pytest.raises(ValidationError):
        Score(value=value)


def test_a_group_of_different_tasks_is_refused():
    with pytest.raises(ValueError, match="holds b"):
        TrajectoryGroup(
            group_id="train-1-0",
            task_id="a",
            trajectories=(trajectory(), trajectory(task_id="b")),
        )


def test_usage_adds_up_over_turns():
    usage = Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=2)
    both = trajectory(turns=(Turn(usage=usage), Turn(usage=usage))).usage
    assert both == Usage(prompt_tokens=6, cached_tokens=2, completion_tokens=4)
