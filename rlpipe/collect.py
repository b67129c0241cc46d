"""Groups of rollouts at bounded concurrency, scored; whatever fails becomes data.

One rollout's failure never touches another. What the machinery did is retried within
`rollout.max_attempts` and then masked; an unknown error is kept with its traceback.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from rlpipe.errors import Boundary, InfrastructureError, RunError
from rlpipe.failures import delay, failure_of, late
from rlpipe.judging import judge_group
from rlpipe.policies.base import Actor, OnTurn, Request, unheard
from rlpipe.rewards.base import Reward
from rlpipe.rollouts.base import Record, Rollout
from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes._tags import tag
from rlpipe.sandboxes.base import Sandbox
from rlpipe.tools.base import Tool
from rlpipe.types import (
    Failure,
    Message,
    SandboxRecord,
    StopReason,
    Task,
    Timing,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


@dataclass(frozen=True, slots=True)
class Slot:
    """One rollout that is to be made: which task, and where its trajectory belongs."""

    task: Task
    phase: str
    step: int
    position: int
    """Of the group among the groups of the step."""

    index: int
    """Of the rollout in its group."""

    seed: int
    temperature: float | None
    scored: bool

    @property
    def group_id(self) -> str:
        return f"{self.phase}-{self.step}-{self.position}"

    @property
    def rollout_id(self) -> str:
        return f"{self.group_id}-{self.index}"


@dataclass
class Collector:
    """Rolls out and scores tasks with one set of tools, one reward and one pool of sandboxes."""

    rollout: Rollout
    tools: Mapping[str, Tool]
    reward: Reward
    sandboxes: SandboxPool
    seed: int
    on_attempt: Callable[[Trajectory], None] = lambda trajectory: None
    """Told of every attempt, failed ones included, as soon as it ends."""

    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.rollout.concurrency)

    async def collect(
        self,
        actor: Actor,
        tasks: Sequence[Task],
        *,
        phase: str,
        step: int = 0,
        group_size: int = 1,
        temperature: float | None = None,
        scored: bool = True,
        on_rollout: Callable[[Trajectory], None] = lambda trajectory: None,
        on_turn: OnTurn = unheard,
        enough: Callable[[], bool] = lambda: False,
    ) -> list[TrajectoryGroup]:
        """Roll out each task `group_size` times; return the groups in the order of `tasks`.

        Without `scored`, trajectories end with neither a score nor, unless they failed, a failure.
        Once there is `enough`, no further rollout begins, and groups without one are left out.

        Raises:
            RunError: not one rollout is valid.
        """

        compared = scored and any(part.judges_groups for part in self.reward.each())

        async def one(slot: Slot) -> Trajectory | None:
            trajectory = await self._roll_out(slot, actor, on_turn, enough)
            if trajectory and not compared:
                on_rollout(trajectory)
            return trajectory

        async def group(position: int, task: Task) -> TrajectoryGroup | None:
            async with asyncio.TaskGroup() as running:
                asked = [
                    running.create_task(one(slot(position, task, index)))
                    for index in range(group_size)
                ]
            members = [made for rollout in asked if (made := rollout.result())]
            if not members:
                return None
            if compared:
                members = await self._compare(task, members)
                for member in members:
                    on_rollout(member)
            return TrajectoryGroup(
                group_id=members[0].group_id, task_id=task.id, trajectories=tuple(members)
            )

        def slot(position: int, task: Task, index: int) -> Slot:
            seed = self._seed(phase, step, position, index)
            return Slot(task, phase, step, position, index, seed, temperature, scored)

        async with asyncio.TaskGroup() as running:
            asked = [running.create_task(group(*numbered)) for numbered in enumerate(tasks)]
        groups = [made for task in asked if (made := task.result())]
        _refuse_total_loss([t for made in groups for t in made.trajectories], phase, step)
        return groups

    async def _compare(self, task: Task, members: list[Trajectory]) -> list[Trajectory]:
        """Judge a group's members beside each other, and tell of those that this masks."""
        rollout = self.rollout
        judged = await judge_group(
            self.reward, task, members, rollout.timeout, rollout.max_attempts, self.pause
        )
        for before, after in zip(members, judged, strict=True):
            if before.valid and after.failure is not None:
                self.on_attempt(after)
        return judged

    def _seed(self, phase: str, step: int, position: int, index: int) -> int:
        """Distinct for every rollout of a run, and the same in every repetition of it."""
        name = f"{self.seed} {phase} {step} {position} {index}".encode()
        return int.from_bytes(hashlib.sha256(name).digest()[:4]) >> 1

    async def _roll_out(
        self, slot: Slot, actor: Actor, on_turn: OnTurn, enough: Callable[[], bool]
    ) -> Trajectory | None:
        attempt = 1
        while True:
            async with self.slots:  # let go while pausing: others need not wait
                if attempt == 1 and enough():
                    return None
                trajectory = await self._attempt(slot, actor, attempt, on_turn)
            self.on_attempt(trajectory)
            failure = trajectory.failure
            if failure is None or not failure.retryable or attempt >= self.rollout.max_attempts:
                return trajectory
            await self.pause(delay(failure, attempt, slot.seed))
            attempt += 1

    async def _attempt(self, slot: Slot, actor: Actor, attempt: int, on_turn: OnTurn) -> Trajectory:
        """One try: the rollout and its score under one deadline. Only bugs of ours can raise."""
        record, began = Record(slot.task), time.monotonic()
        version = actor.version
        stop, score, failure = StopReason.FAILED, None, None
        used: SandboxRecord | None = None

        def so_far(sandbox: Sandbox) -> Trajectory:
            return Trajectory(
                rollout_id=slot.rollout_id,
                group_id=slot.group_id,
                task_id=slot.task.id,
                phase=slot.phase,
                step=slot.step,
                index=slot.index,
                attempt=attempt,
                seed=slot.seed,
                policy=actor.name,
                policy_version=version,
                messages=tuple(record.messages),
                tools=record.tools,
                turns=tuple(record.turns),
                submission=record.submission,
                tool_calls=dict(record.tool_calls),
                malformed=record.malformed,
                stop_reason=stop,
                score=score,
                failure=failure,
                timing=Timing(total=time.monotonic() - began, **record.seconds),
                sandbox=used or _sandbox_record(sandbox),
            )

        tags = tag("step", str(slot.step)), tag("task", slot.task.id)
        # Neither called nor graded, a rollout may never need its sandbox.
        ahead = slot.scored or bool(self.tools)
        files = slot.task.files
        async with self.sandboxes.claim(tags=tags, files=files, ahead=ahead) as sandbox:
            try:
                async with asyncio.timeout(self.rollout.timeout) as deadline:
                    stop = await self.rollout.roll_out(
                        slot.task,
                        _Attributed(actor, on_turn),
                        self.tools,
                        sandbox,
                        record,
                        temperature=slot.temperature,
                        seed=slot.seed,
                    )
                    used = _sandbox_record(sandbox)  # to judge code, a reward may take another one
                    if slot.scored:
                        with record.timed("grading"), _crossing("grader"):
                            score = await self.reward.score(slot.task, so_far(sandbox), sandbox)
            except Exception as error:
                grading = stop is not StopReason.FAILED
                if isinstance(error, TimeoutError) and deadline.expired():
                    failure = late(self.rollout.timeout, attempt, grading=grading)
                    stop = StopReason.TIMEOUT
                else:
                    failure = _failure(error, attempt, grading=grading)
                    failure = _in_time(failure, self.rollout.timeout)
                    stop = StopReason.FAILED
            return so_far(sandbox)


class _Unexpected(Exception):
    """Stands for an error that nobody translated, its cause, and the boundary that it crossed."""

    def __init__(self, boundary: Boundary, error: Exception) -> None:
        super().__init__(str(error))
        self.boundary = boundary


@contextmanager
def _crossing(boundary: Boundary) -> Iterator[None]:
    """Name the boundary of errors that do not say it themselves."""
    try:
        yield
    except InfrastructureError:
        raise
    except Exception as error:
        raise _Unexpected(boundary, error) from error


class _Attributed(Actor):
    """An actor whose unexpected errors are told from those of the rollout that asks it, and of
    whose answers someone is told."""

    def __init__(self, actor: Actor, on_turn: OnTurn) -> None:
        self._actor = actor
        self._on_turn = on_turn
        self.name = actor.name
        self.version = actor.version

    async def act(self, request: Request) -> tuple[Message, Turn]:
        with _crossing("provider"):
            message, turn = await self._actor.act(request)
        self._on_turn(self.name, turn)
        return message, turn

    def attend(self) -> AbstractContextManager[None]:
        return self._actor.attend()


def _failure(error: Exception, attempt: int, *, grading: bool) -> Failure:
    """Turn an error into data, attributed to the boundary that it crossed."""
    if not isinstance(error, _Unexpected):
        return failure_of(error, attempt, grading=grading)
    unknown = error.__cause__
    assert isinstance(unknown, Exception)
    failure = failure_of(unknown, attempt, grading=grading)
    return failure.model_copy(update={"boundary": error.boundary})


def _in_time(failure: Failure, timeout: float) -> Failure:
    """A service that asks for a pause longer than a whole rollout may take is not waited for."""
    asked = failure.retry_after or 0.0
    if not failure.retryable or asked <= timeout:
        return failure
    why = f"not tried again: a pause of {asked:g} s is asked for, rollout.timeout={timeout:g}"
    return failure.model_copy(update={"retryable": False, "message": f"{failure.message} ({why})"})


def _sandbox_record(sandbox: Sandbox) -> SandboxRecord | None:
    """None for a sandbox that was never used: its start may not even have ended."""
    if not sandbox.stats.exec_count:
        return None
    return SandboxRecord(
        id=sandbox.id,
        image=sandbox.spec.image,
        tags=sandbox.spec.tags,
        executions=sandbox.stats.exec_count,
        completed_ok=sandbox.stats.exec_completed_ok,
        completed_nonzero=sandbox.stats.exec_completed_nonzero,
        failures=sandbox.stats.exec_failures,
    )


def _refuse_total_loss(trajectories: Sequence[Trajectory], phase: str, step: int) -> None:
    failures = [trajectory.failure for trajectory in trajectories if trajectory.failure]
    if not failures or len(failures) < len(trajectories):
        return
    kinds = Counter(f"{failure.boundary}: {failure.type}" for failure in failures)
    counted = ", ".join(f"{kind} x{times}" for kind, times in kinds.most_common())
    first = failures[0]
    detail = first.traceback or first.message
    raise RunError(
        f"all {len(failures)} rollouts of {phase} step {step} failed ({counted})\n{detail}"
    )
