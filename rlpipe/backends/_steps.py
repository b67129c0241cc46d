"""The step loop of backends whose service takes a step's finished groups, one step at a time."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi
from pathlib import Path
from typing import Literal

from rlpipe.backends.base import Job, TrainSummary, demonstrations
from rlpipe.policies.base import Actor
from rlpipe.train.grpo import Grpo
from rlpipe.train.sft import Sft
from rlpipe.train.teacher_grpo import TeacherGrpo
from rlpipe.types import Trajectory, TrajectoryGroup

Course = Literal["constant", "linear", "cosine"]
Figures = Mapping[str, float]


class Learner(ABC):
    """A policy in training that a service holds.

    Methods raise RunError where the service fails, or refuses what it is asked.
    """

    @abstractmethod
    async def actor(self, version: int) -> Actor:
        """Serve the weights as they are now, after `version` steps."""

    @abstractmethod
    async def save(self, step: int, folder: Path) -> None:
        """Keep the weights of that step, and write into `folder` where they are."""

    async def reinforce(self, groups: Sequence[TrajectoryGroup], rate: float) -> Figures:
        """Make one step on the policy's own groups (`train=grpo`)."""
        raise NotImplementedError

    async def imitate(
        self, shown: Sequence[Trajectory], rate: float, *, reasoning: bool
    ) -> Figures:
        """Make one step on a teacher's trajectories (`train=sft`, and warm-ups).

        With `reasoning`, what the teacher thought is learned as well.
        """
        raise NotImplementedError

    async def compare(self, groups: Sequence[TrajectoryGroup], rate: float) -> Figures:
        """Make one step on a teacher's groups (`train=teacher_grpo`)."""
        raise NotImplementedError


@dataclass
class _Progress:
    """How far a training is, for whoever has to break it off."""

    step: int
    """The last one that is done."""

    saved: int
    moving: bool = False
    """Whether the weights may be past `step` already."""


async def learn(job: Job, learner: Learner, course: Course) -> TrainSummary:
    """Train to the end of `job.train.steps`, or to where a limit ends the run.

    A run that is cancelled saves the weights of the last step that is done, if they are still
    those of that step. `course` is the learning rate's over the steps.

    Raises:
        RunError: training cannot go on.
    """
    from asyncio import CancelledError

    done = job.resume.step if job.resume else 0
    progress = _Progress(done, done)
    if not done:
        await _begin(job, learner)
    try:
        await _train(job, learner, course, progress)
    except CancelledError:
        if progress.step > progress.saved and not progress.moving:
            await _save(job, learner, progress)
        raise
    return TrainSummary(progress.step)


async def _begin(job: Job, learner: Learner) -> None:
    """What comes before the first step."""
    train = job.train
    if isinstance(train, Grpo) and train.warmup_steps and not job.resume:
        await _warm_up(job, train, learner)
        with job.checkpoint(0) as folder:  # so that no resumed run needs the teacher again
            await learner.save(0, folder)
    await job.evaluate(await learner.actor(0), 0)


async def _train(job: Job, learner: Learner, course: Course, progress: _Progress) -> None:
    train = job.train
    shown = await demonstrations(job, train.keep) if isinstance(train, Sft) else []
    for step in range(progress.step + 1, train.steps + 1):
        rate = learning_rate(course, train.learning_rate, step, train.steps)
        figures = await _step(job, learner, shown, step, rate, progress)
        over_limit = job.finish_step(step, {"train/learning_rate": rate, **figures})
        progress.step, progress.moving = step, False
        last = step == train.steps
        if last or (not over_limit and train.eval_every and step % train.eval_every == 0):
            await job.evaluate(await learner.actor(step), step)
        if last or over_limit or (train.save_every and step % train.save_every == 0):
            await _save(job, learner, progress)
        if over_limit:
            return


async def _save(job: Job, learner: Learner, progress: _Progress) -> None:
    """Write a checkpoint; one that is begun when the run is cancelled is finished first."""
    from asyncio import CancelledError, ensure_future, shield

    with job.checkpoint(progress.step) as folder:
        saving = ensure_future(learner.save(progress.step, folder))
        stopped: CancelledError | None = None
        try:
            await shield(saving)
        except CancelledError as cancelled:
            stopped = cancelled
            await saving
    progress.saved = progress.step
    if stopped:
        raise stopped


async def _step(
    job: Job,
    learner: Learner,
    shown: Sequence[Trajectory],
    step: int,
    rate: float,
    progress: _Progress,
) -> Figures:
    train = job.train
    if isinstance(train, Sft):
        drawn = batch(shown, step, train.batch_size, job.seed)
        progress.moving = True
        return await learner.imitate(drawn, rate, reasoning=train.learn_reasoning)
    if isinstance(train, TeacherGrpo):
        groups = await job.teach(job.batch(step), step)
        progress.moving = True
        return await learner.compare(groups, rate)
    groups = await job.collect(await learner.actor(step - 1), job.batch(step), step)
    progress.moving = True
    return await learner.reinforce(groups, rate)


async def _warm_up(job: Job, train: Grpo, learner: Learner) -> None:
    """Fine-tune on the teacher's demonstrations before the first step."""
    steps, size = train.warmup_steps, train.warmup_batch_size
    job.status(f"warm-up: {train.warmup_tasks} demonstrations, {steps} steps")
    shown = await demonstrations(job, train.warmup_keep)
    top = train.warmup_learning_rate or train.learning_rate
    for step in range(1, steps + 1):
        rate = learning_rate("cosine", top, step, steps)
        drawn = batch(shown, step, size, job.seed)
        await learner.imitate(drawn, rate, reasoning=train.warmup_learn_reasoning)


def learning_rate(course: Course, top: float, step: int, steps: int) -> float:
    """Of a step, counted from 1; the first has `top`, and what falls would reach 0 after the last.

    Example: `learning_rate("linear", 1.0, 3, 4)` is 0.5.
    """
    passed = (step - 1) / steps
    if course == "linear":
        return top * (1 - passed)
    if course == "cosine":
        return top * (1 + cos(pi * passed)) / 2
    return top


def batch(shown: Sequence[Trajectory], step: int, size: int, seed: int) -> list[Trajectory]:
    """The trajectories of a step, counted from 1. Every epoch takes each once, in a new order."""
    places = range((step - 1) * size, step * size)
    return [shown[_order(len(shown), p // len(shown), seed)[p % len(shown)]] for p in places]


@lru_cache(maxsize=2)
def _order(size: int, epoch: int, seed: int) -> list[int]:
    order = list(range(size))
    random.Random(f"demonstrations {epoch} {seed}").shuffle(order)
    return order
