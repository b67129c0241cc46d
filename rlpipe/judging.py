"""Taking the rewards that compare a task's trajectories with each other."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rlpipe.errors import GraderError
from rlpipe.failures import delay, failure_of, late
from rlpipe.rewards.base import Reward
from rlpipe.types import Failure, Score, Task, Trajectory


async def judge_group(
    reward: Reward,
    task: Task,
    members: Sequence[Trajectory],
    timeout: float,
    attempts: int,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[Trajectory]:
    """Judge the valid members beside each other; where that fails, each of them is masked."""
    valid = [member for member in members if member.valid]
    if not valid:
        return list(members)
    for attempt in range(1, attempts + 1):
        scores, failure = await _attempt(reward, task, valid, timeout, attempt)
        if failure is None or not failure.retryable or attempt == attempts:
            break
        await pause(delay(failure, attempt, valid[0].seed))
    judged = iter(scores)
    return [
        member.model_copy(update={"score": next(judged, None), "failure": failure})
        if member.valid
        else member
        for member in members
    ]


async def _attempt(
    reward: Reward, task: Task, valid: Sequence[Trajectory], timeout: float, attempt: int
) -> tuple[list[Score], Failure | None]:
    try:
        async with asyncio.timeout(timeout) as deadline:
            scores = await reward.score_group(task, valid)
        if len(scores) != len(valid):
            raise GraderError(f"{len(scores)} scores came for {len(valid)} trajectories")
    except Exception as error:
        if isinstance(error, TimeoutError) and deadline.expired():
            return [], late(timeout, attempt, grading=True)
        return [], failure_of(error, attempt, grading=True)
    return scores, None
