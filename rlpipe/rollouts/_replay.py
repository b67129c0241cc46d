"""A recorded rollout's tool calls, made again in another sandbox."""

from collections.abc import Mapping, Sequence

from rlpipe.rollouts.agent import NOT_RUN, calls_of, run_call
from rlpipe.rollouts.base import Record
from rlpipe.sandboxes.base import Sandbox
from rlpipe.tools.base import Tool
from rlpipe.types import Message, Task


async def replay(
    task: Task, messages: Sequence[Message], tools: Mapping[str, Tool], sandbox: Sandbox
) -> int:
    """Make the calls of `messages` again, in order; return how many were answered differently.

    Raises:
        InfrastructureError: the machinery failed.
    """
    record, differing = Record(task), 0
    answers = {m["tool_call_id"]: str(m["content"]) for m in messages if m["role"] == "tool"}
    for message in messages[len(task.messages) :]:
        for call in calls_of(message):
            before = answers.get(call.id, NOT_RUN)
            if before.startswith(NOT_RUN):
                continue
            seen = await run_call(call, tools, sandbox, record)
            differing += seen.text != before
    return differing
