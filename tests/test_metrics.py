import pytest

from rlpipe.metrics import aside, summarise
from rlpipe.types import (
    Failure,
    Score,
    StopReason,
    Timing,
    Trajectory,
    TrajectoryGroup,
    Turn,
    Usage,
)


def trajectory(group, index, **fields):
    return Trajectory(
        **{
            "rollout_id": f"{group}-{index}",
            "group_id": group,
            "task_id": group,
            "stop_reason": StopReason.FINAL_ANSWER,
            **fields,
        }
    )


def group(name, *members):
    made = tuple(trajectory(name, index, **fields) for index, fields in enumerate(members))
    return TrajectoryGroup(group_id=name, task_id=name, trajectories=made)


def scored(value, **fields):
    parts = {"tests": 2 * value}
    return {"score": Score(value=value, passed=value == 1, parts=parts), **fields}


GONE = {
    "stop_reason": StopReason.FAILED,
    "failure": Failure(boundary="sandbox", type="SandboxGone", message=""),
}


def test_figures_of_a_step():
    turn = Turn(usage=Usage(prompt_tokens=10, completion_tokens=5))
    figures = summarise(
        [
            group(
                "a",
                scored(1.0, turns=(turn, turn), tool_calls={"bash": 2, "python": 1}, malformed=1),
                scored(0.0, stop_reason=StopReason.MAX_TOKENS, turns=(turn,)),
            ),
            group("b", scored(1.0), scored(1.0), GONE),
            group("c", scored(0.0), GONE),
        ]
    )
    expected = {
        "rollout/count": 7,
        "rollout/valid": 5,
        "rollout/infra_failure_rate": 2 / 7,
        "rollout/turns": 3 / 5,
        "rollout/tool_calls": 3 / 5,
        "tools/malformed": 1,
        "tools/bash/calls": 2,
        "tools/python/calls": 1,
        "completions/clipped_ratio": 1 / 5,
        "tokens/prompt": 30,
        "tokens/completion": 15,
        "groups/count": 3,
        "groups/trainable": 1 / 3,
        "groups/zero_variance": 1 / 3,
        "train/reward": 3 / 5,
        "train/pass_rate": 3 / 5,
        "train/reward_parts/tests": 6 / 5,
        "stop/final_answer": 4,
        "stop/max_tokens": 1,
        "stop/failed": 2,
        "failures/sandbox/SandboxGone": 2,
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


def test_without_a_valid_rollout_there_is_no_reward():
    figures = summarise([group("a", GONE)])
    assert "train/reward" not in figures
    assert figures["groups/trainable"] == figures["groups/zero_variance"] == 0


def test_rollouts_that_nobody_scored_are_no_failures():
    figures = summarise([group("a", {}, {})], "teacher")
    assert figures["rollout/infra_failure_rate"] == 0
    assert "teacher/reward" not in figures


def test_rollouts_beside_training_keep_their_failures_and_tokens_under_names_of_their_own():
    turn = Turn(usage=Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=5))
    assert aside([group("a", scored(1.0, turns=(turn,)), GONE)], "val") == {
        "val/failures/sandbox/SandboxGone": 1,
        "val/tokens/prompt": 10,
        "val/tokens/cached": 4,
        "val/tokens/completion": 5,
    }


def test_a_teachers_tokens_are_counted_apart_from_the_policys():
    turn = Turn(usage=Usage(prompt_tokens=10, completion_tokens=5))
    figures = summarise([group("a", scored(1.0, turns=(turn, turn)))], teacher=True)
    assert figures["teacher/tokens/completion"] == 10
    assert not [name for name in figures if name.startswith("tokens/")]


def test_seconds_are_summed():
    timing = Timing(sampling=1.0, tools=0.5, grading=0.25)
    figures = summarise([group("a", scored(1.0, timing=timing), scored(0.0, timing=timing))])
    seconds = [figures[f"time/{name}"] for name in ("sampling", "tools", "grading")]
    assert seconds == [2.0, 1.0, 0.5]
