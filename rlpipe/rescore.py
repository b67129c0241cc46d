"""`rlpipe rescore`: the rewards of a run's stored trajectories, taken again.

Code that was submitted or said is judged anew as it stands. A reward that looks at what a rollout
left in its sandbox needs the recorded tool calls to be made again first. The new scores stand
beside the old ones, in `scores/NAME.jsonl`; nothing that the run wrote is changed.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import fmean

from rlpipe.config.schema import Experiment
from rlpipe.console import Console
from rlpipe.errors import ConfigError, Finding, RunError
from rlpipe.failures import failure_of, late
from rlpipe.fit import misfits
from rlpipe.judging import judge_group
from rlpipe.rewards.base import Reward
from rlpipe.rollouts._replay import replay
from rlpipe.sandboxes._pool import SandboxPool, open_pool
from rlpipe.sandboxes.base import Sandbox
from rlpipe.store import add_scores, read_run
from rlpipe.types import Task, Trajectory

SHOWN = 50
"""Changed trajectories that are listed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One trajectory before and after."""

    file: str
    """Of its trajectory, such as `step_3`."""

    before: Trajectory
    after: Trajectory

    @property
    def changed(self) -> bool:
        return (self.before.reward, self.before.valid) != (self.after.reward, self.after.valid)

    def __str__(self) -> str:
        name = f"{self.file} {self.before.rollout_id} ({self.before.task_id})"
        return f"{name}: {_worth(self.before)} -> {_worth(self.after)}"


@dataclass(frozen=True, slots=True)
class Rescoring:
    """What a rescoring came to."""

    file: Path
    """The new score set."""

    changes: tuple[Change, ...]
    skipped: int
    """Trajectories whose rollout itself failed, which leaves nothing to judge."""

    differing: int
    """Replayed tool calls that were answered differently from before."""


def rescore(
    run: Path,
    experiment: Experiment,
    console: Console,
    *,
    failed_only: bool = False,
    replays: bool = False,
) -> Rescoring:
    """Judge the trajectories of the run folder `run` by the reward of `experiment`.

    Args:
        failed_only: only those whose judgement failed before.
        replays: make the recorded tool calls again first, each in a fresh sandbox.

    Raises:
        ConfigError: the reward does not fit.
        RunError: the folder holds no run, or its tasks are no longer there.
    """
    _refuse_misfits(experiment, replays)
    stored = [(file, t) for file, t in read_run(run) if _judgeable(t)]
    skipped = sum(1 for _ in read_run(run)) - len(stored)
    if failed_only:
        stored = [(file, t) for file, t in stored if t.failure is not None]
    if not stored:
        raise RunError(f"{run} holds no trajectory to judge")
    tasks = {task.id: task for task in experiment.dataset.splits(experiment.seed).all}
    lost = {t.task_id for _, t in stored} - tasks.keys()
    if lost:
        raise RunError(f"the data set no longer has the task {sorted(lost)[0]!r}")
    rescorer = _Rescorer(experiment, tasks, replays)
    changes = asyncio.run(rescorer.run(stored, console))
    file = add_scores(run, experiment.reward.kind, [(c.file, c.after) for c in changes])
    result = Rescoring(file, tuple(changes), skipped, rescorer.differing)
    _tell(result, console)
    return result


def _judgeable(trajectory: Trajectory) -> bool:
    failure = trajectory.failure
    return trajectory.score is not None or (failure is not None and failure.grading)


def _refuse_misfits(experiment: Experiment, replays: bool) -> None:
    findings = [
        Finding(f"{key}.{found.key}" if found.key else key, found.problem)
        for key in ("dataset", "reward", "sandbox")
        for found in getattr(experiment, key).check()
    ]
    findings += [found for found in misfits(experiment) if found.key.startswith("reward")]
    in_place = next((r for r in experiment.reward.each() if r.in_place), None)
    if in_place is not None and not replays:
        problem = f"{in_place.kind!r} judges what a rollout left in its sandbox; add --replay"
        findings.append(Finding("reward.kind", problem))
    if findings:
        raise ConfigError(findings)


class _Rescorer:
    def __init__(self, experiment: Experiment, tasks: Mapping[str, Task], replays: bool) -> None:
        self.experiment = experiment
        self.tasks = tasks
        self.replays = replays
        self.differing = 0
        self.slots = asyncio.Semaphore(experiment.rollout.concurrency)

    async def run(self, stored: Sequence[tuple[str, Trajectory]], console: Console) -> list[Change]:
        async with (
            open_pool(self.experiment.sandbox) as pool,
            self.experiment.reward.open() as reward,
        ):
            with console.progress("rescore", len(stored)) as advance:

                async def one(file: str, before: Trajectory) -> Change:
                    async with self.slots:
                        after = await self._judge(reward, before, pool)
                    advance()
                    return Change(file, before, after)

                async with asyncio.TaskGroup() as running:
                    asked = [running.create_task(one(*item)) for item in stored]
            changes = [task.result() for task in asked]
            if any(part.judges_groups for part in reward.each()):
                return await self._compare(reward, changes)
        return changes

    async def _compare(self, reward: Reward, changes: Sequence[Change]) -> list[Change]:
        """Judge the members of each group beside each other."""
        compared: list[Change] = []
        key = attrgetter("file", "before.group_id")
        for _, members in groupby(sorted(changes, key=key), key):
            group = list(members)
            after = await judge_group(
                reward,
                self.tasks[group[0].before.task_id],
                [member.after for member in group],
                self.experiment.rollout.timeout,
                self.experiment.rollout.max_attempts,
            )
            pairs = zip(group, after, strict=True)
            compared += [replace(member, after=judged) for member, judged in pairs]
        return compared

    async def _judge(self, reward: Reward, before: Trajectory, pool: SandboxPool) -> Trajectory:
        task, timeout = self.tasks[before.task_id], self.experiment.rollout.timeout
        bare = before.model_copy(update={"score": None, "failure": None})
        tags = ("rescore", f"task:{task.id}")
        async with pool.claim(tags=tags, files=task.files, ahead=False) as sandbox:
            try:
                async with asyncio.timeout(timeout) as deadline:
                    await self._replay(task, before, sandbox)
                    score = await reward.score(task, bare, sandbox)
            except Exception as error:
                is_late = isinstance(error, TimeoutError) and deadline.expired()
                failure = late(timeout, grading=True) if is_late else None
                failure = failure or failure_of(error, grading=True)
                return bare.model_copy(update={"failure": failure})
        return bare.model_copy(update={"score": score})

    async def _replay(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> None:
        if self.replays:
            tools = self.experiment.tools
            differing = await replay(task, trajectory.messages, tools, sandbox)
            self.differing += differing  # not in one statement: others count while this one waits


def _worth(trajectory: Trajectory) -> str:
    if trajectory.score is not None:
        return f"{trajectory.score.value:g} ({trajectory.score.outcome})"
    failure = trajectory.failure
    return f"masked ({failure.boundary} {failure.type})" if failure else "masked"


def _mean(trajectories: Iterable[Trajectory]) -> str:
    rewards = [t.reward for t in trajectories if t.reward is not None]
    return f"{fmean(rewards):.3f} of {len(rewards)}" if rewards else "none"


def _tell(result: Rescoring, console: Console) -> None:
    changed = [change for change in result.changes if change.changed]
    for change in changed[:SHOWN]:
        console.say(str(change))
    if len(changed) > SHOWN:
        console.say(f"... and {len(changed) - SHOWN} more")
    before = _mean(change.before for change in result.changes)
    after = _mean(change.after for change in result.changes)
    masked = sum(not change.after.valid for change in result.changes)
    console.say(
        f"{len(result.changes)} judged, {len(changed)} changed, {masked} masked; "
        f"mean reward {before} -> {after}"
    )
    if result.skipped:
        console.say(f"{result.skipped} skipped: their rollouts failed")
    if result.differing:
        console.say(f"{result.differing} replayed tool calls were answered differently")
    console.say(f"scores: {result.file}")
