"""Trajectories to judge."""

from typing import Any

from rlpipe.types import Message, StopReason, Task, Trajectory

TASK = Task(id="t", messages=({"role": "user", "content": "Do it."},))


def said(answer: str = "", *messages: Message, **fields: Any) -> Trajectory:
    """A trajectory that ends with this answer."""
    given = {"rollout_id": "g-0", "group_id": "g", "task_id": "t", **fields}
    return Trajectory(
        stop_reason=fields.pop("stop_reason", StopReason.FINAL_ANSWER),
        messages=(*TASK.messages, *messages, {"role": "assistant", "content": answer}),
        **{name: value for name, value in given.items() if name != "stop_reason"},
    )
