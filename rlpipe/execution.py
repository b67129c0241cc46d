"""One execution of an experiment: what is open while it runs, and what a backend may ask of it."""

import logging
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from rlpipe import fit, provenance
from rlpipe.backends.base import Job
from rlpipe.checkpoints import Checkpoint
from rlpipe.collect import Collector
from rlpipe.config.schema import Experiment
from rlpipe.console import Console
from rlpipe.datasets.base import Splits
from rlpipe.errors import ConfigError, Finding, LimitReached
from rlpipe.evaluation import Evaluation, greedy_rate, mean_reward, pass_at
from rlpipe.metrics import aside, summarise
from rlpipe.policies.base import Actor
from rlpipe.report.live import Report
from rlpipe.sandboxes._ledger import NAME as LEDGER
from rlpipe.sandboxes._ledger import Ledger
from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes._sweep import sweep_killed
from rlpipe.sandboxes._tags import run_tags
from rlpipe.sandboxes.base import SandboxSpec
from rlpipe.spending import Role, Spending
from rlpipe.store import RunFolder
from rlpipe.trackers.base import Ending
from rlpipe.tracking import Trackings, open_trackings
from rlpipe.types import Task, Trajectory, TrajectoryGroup

log = logging.getLogger(__name__)


@dataclass
class Execution:
    """The open parts of a run. Its methods are what `Job` lends to a backend."""

    experiment: Experiment
    folder: RunFolder
    console: Console
    splits: Splits
    collector: Collector
    trackings: Trackings
    spending: Spending
    report: Report
    teacher: Actor | None = None
    """Open as long as the run, where its training asks for one."""

    resume: Checkpoint | None = None
    evaluations: list[Evaluation] = field(default_factory=list)
    latest_step: int = 0
    stopped: str | None = None
    """The limit that ended the run, in words."""

    _began: float = field(default_factory=time.monotonic)
    _groups: dict[int, list[TrajectoryGroup]] = field(default_factory=dict)
    _step_began: float = field(default_factory=time.monotonic)
    """A step that makes no rollouts begins when what came before it, the teacher's work or an
    evaluation, is done."""

    _rollout_seconds: float = 0.0

    def job(self) -> Job:
        train = self.experiment.train
        return Job(
            policy=self.experiment.policy,
            train=train,
            seed=self.experiment.seed if train.seed is None else train.seed,
            temperature=self.experiment.rollout.temperature,
            max_sampled_tokens=self.experiment.rollout.max_sampled_tokens(),
            folder=self.folder.path,
            batch=self.batch,
            collect=self.collect,
            teach=self.teach,
            demonstrate=self.demonstrate,
            evaluate=self.evaluate,
            finish_step=self.finish_step,
            checkpoint=self.folder.checkpoint,
            resume=self.resume,
            status=self.console.say,
        )

    def batch(self, step: int) -> list[Task]:
        """The tasks of a step. Every epoch takes each task once, in a new seeded order."""
        size, tasks = self.experiment.train.groups_per_batch, self.splits.train
        first = (step - 1) * size
        return [self._at(position, tasks) for position in range(first, first + size)]

    def _at(self, position: int, tasks: Sequence[Task]) -> Task:
        epoch, place = divmod(position, len(tasks))
        if epoch == 0 or not self.experiment.dataset.shuffle:
            return tasks[place]
        return tasks[_order(len(tasks), epoch, self.experiment.seed)[place]]

    async def collect(
        self, actor: Actor, tasks: Sequence[Task], step: int
    ) -> list[TrajectoryGroup]:
        """Let the policy roll out a training step's tasks."""
        return await self._step_groups(actor, tasks, step, phase="train")

    async def teach(self, tasks: Sequence[Task], step: int) -> list[TrajectoryGroup]:
        """Let the teacher roll out a training step's tasks."""
        return await self._step_groups(self._teacher(), tasks, step, phase="teacher")

    async def _step_groups(
        self, actor: Actor, tasks: Sequence[Task], step: int, *, phase: str
    ) -> list[TrajectoryGroup]:
        self._step_began = time.monotonic()
        groups = await self.roll_out(
            actor,
            tasks,
            phase=phase,
            file=f"step_{step}",
            step=step,
            group_size=self.experiment.train.group_size,
        )
        self._rollout_seconds = time.monotonic() - self._step_began
        self._groups.setdefault(step, []).extend(groups)
        if self.experiment.console.reward_calls:
            self.console.reward_call(step, groups)
        return groups

    async def roll_out(
        self,
        actor: Actor,
        tasks: Sequence[Task],
        *,
        phase: str,
        file: str,
        step: int = 0,
        group_size: int = 1,
        temperature: float | None = None,
        scored: bool = True,
        each: bool = False,
        limited: bool = False,
    ) -> list[TrajectoryGroup]:
        """Roll out tasks and record the trajectories under `trajectories/<file>.jsonl`.

        `each` prints a line for every rollout, where a bar would stand otherwise. With `limited`,
        no further rollout begins once the run's limits are reached.
        """
        total = len(tasks) * group_size
        console = self.console
        bar = console.listing(tasks, total) if each else console.rollouts(f"{phase} {step}", total)
        with bar as advance:

            def done(trajectory: Trajectory) -> None:
                self.folder.add_trajectory(file, trajectory)
                advance(trajectory)
                self.report.keep()

            groups = await self.collector.collect(
                actor,
                tasks,
                phase=phase,
                step=step,
                group_size=group_size,
                temperature=temperature,
                scored=scored,
                on_rollout=done,
                on_turn=partial(self.spending.add, self._role(phase)),
                enough=self.over_limit if limited else lambda: False,
            )
        self.trackings.show(step, phase, groups)
        return groups

    def _role(self, phase: str) -> Role:
        teaches = fit.acting(self.experiment) is self.experiment.teacher
        return "teacher" if teaches or phase == "teacher" else "policy"

    def over_limit(self) -> bool:
        """Whether the run has used up what its spec allows. Once it has, it stays so."""
        if self.stopped is None:
            seconds = time.monotonic() - self._began
            self.stopped = self.spending.over(self.experiment.limits, seconds)
            if self.stopped:
                self.trackings.ending = Ending("stopped", message=self.stopped)
                self.console.say(f"stopping: {self.stopped}")
        return self.stopped is not None

    async def demonstrate(self) -> list[Trajectory]:
        """Let the teacher solve as many tasks as the training settings ask for.

        Raises:
            LimitReached: before all were solved; those that were are on record.
        """
        train = self.experiment.train
        size = 1 if train.samples_policy else train.group_size
        tasks = [self._at(i, self.splits.train) for i in range(train.demonstrations // size)]
        if (shown := self.folder.recorded("teacher", len(tasks) * size)) is not None:
            return shown
        groups = await self.roll_out(
            self._teacher(),
            tasks,
            phase="teacher",
            file="teacher",
            group_size=size,
            scored=train.judges_teacher,
            limited=True,
        )
        figures = summarise(groups, "teacher", teacher=True)
        own = {name: v for name, v in figures.items() if name.startswith("teacher/")}
        self.log(0, own | aside(groups, "teacher", teacher=True))
        if self.over_limit():
            raise LimitReached(self.stopped)
        self._step_began = time.monotonic()
        return [trajectory for group in groups for trajectory in group.trajectories]

    def _teacher(self) -> Actor:
        if self.teacher is None:
            raise ConfigError([Finding("teacher", "needed, but none is chosen")])
        return self.teacher

    async def evaluate(self, actor: Actor, step: int) -> None:
        """Evaluate the held-out tasks and record the rates under `step`."""
        settings, tasks = self.experiment.evaluate, self.splits.held_out
        if not tasks:
            return
        alone = self.experiment.mode == "eval"
        roll = partial(self.roll_out, actor, tasks, step=step, file=f"eval_{step}", limited=alone)
        greedy: list[TrajectoryGroup] = []
        sampled: list[TrajectoryGroup] = []
        if settings.greedy:
            greedy = await roll(phase="eval", temperature=0.0)
        if settings.samples:
            sampled = await roll(
                phase="sample", group_size=settings.samples, temperature=settings.temperature
            )
        ks = sorted({1, settings.samples}) if settings.samples else []
        rates = {k: rate for k in ks if (rate := pass_at(sampled, k))}
        everyone = [*greedy, *sampled]
        failed = sum(not t.valid for group in everyone for t in group.trajectories)
        reward = mean_reward(greedy or sampled)
        evaluation = Evaluation(step, greedy_rate(greedy), rates, reward, failed)
        self.evaluations.append(evaluation)
        self.console.evaluation(evaluation)
        taught = settings.who == "teacher"
        self.log(step, evaluation.metrics() | aside(everyone, "val", teacher=taught))
        self.report.keep(now=True)
        self._step_began = time.monotonic()

    def finish_step(self, step: int, figures: Mapping[str, float]) -> bool:
        """Record a training step: the rollouts' figures, the sandboxes' and the trainer's own.

        Returns whether the run's limits end it before its last step.
        """
        seconds = time.monotonic() - self._step_began
        metrics = self._figures(groups) if (groups := self._groups.pop(step, [])) else {}
        metrics |= {
            "time/rollouts": self._rollout_seconds,
            "time/training": seconds - self._rollout_seconds,
            "time/step": seconds,
        }
        model, trained = self.experiment.policy.name, int(figures.get("tokens/trained", 0))
        self.spending.add_trained(model, trained)
        metrics |= self.collector.sandboxes.metrics() | self.spending.of_step() | dict(figures)
        self.log(step, metrics)
        self.console.step(step, self.experiment.train.steps, metrics)
        self.report.keep()
        self._step_began, self._rollout_seconds = time.monotonic(), 0.0
        return step < self.experiment.train.steps and self.over_limit()

    def _figures(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """The figures of a training step's rollouts, under the name of who made them."""
        if self.experiment.train.samples_policy:
            return summarise(groups)
        return summarise(groups, "teacher", teacher=True)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.latest_step = max(self.latest_step, step)
        recorded = dict(metrics) | self.spending.so_far()
        self.folder.add_metrics(step, recorded)
        self.trackings.log(step, recorded)


@asynccontextmanager
async def open_execution(
    experiment: Experiment,
    folder: RunFolder,
    console: Console,
    report: Report,
    *,
    group: str | None = None,
    resume: Checkpoint | None = None,
) -> AsyncIterator[Execution]:
    """Load the tasks, open trackers and sandboxes; close them in reverse, whatever happens.

    `group` is the sweep that the run is a job of.
    """
    splits = experiment.dataset.splits(experiment.seed)
    folder.note(dataset=_dataset_facts(experiment, splits))
    _refuse_empty(experiment, splits)
    for note in fit.notes(experiment):
        console.say(note)
    async with AsyncExitStack() as stack:
        spending = Spending(experiment.prices, folder.manifest.get("spent"))
        # Trackers first: whatever costs money comes after those that may not open.
        tracked = open_trackings(experiment, folder, console, group)
        trackings = await stack.enter_async_context(tracked)
        pool = await stack.enter_async_context(_open_pool(experiment, folder, console))
        judged = partial(spending.add, "judge")
        collector = Collector(
            experiment.rollout,
            experiment.tools,
            await stack.enter_async_context(experiment.reward.open(judged)),
            pool,
            experiment.seed,
            on_attempt=partial(_record_failure, folder),
        )
        teacher = None
        if experiment.mode == "train" and experiment.teacher and fit.needs_teacher(experiment):
            teacher = await stack.enter_async_context(experiment.teacher.open())
        execution = Execution(
            experiment,
            folder,
            console,
            splits,
            collector,
            trackings,
            spending,
            report,
            teacher,
            resume,
        )
        yield execution
        execution.log(execution.latest_step, _total(pool))


@asynccontextmanager
async def _open_pool(
    experiment: Experiment, folder: RunFolder, console: Console
) -> AsyncIterator[SandboxPool]:
    """The sandboxes of the run, on record from before the first one until the last is gone."""
    provider = experiment.sandbox
    async with provider.open() as session:
        folder.note(isolation=session.capabilities.isolation, warnings=provider.warnings())
        for warning in provider.warnings():
            console.say(f"warning: {warning}")
        for line in await sweep_killed(Path(experiment.output_root), provider.kind, session):
            console.say(line)
        spec = _tagged(experiment, folder)
        ledger = Ledger(folder.path / LEDGER, run=folder.id, provider=provider.kind, tags=spec.tags)
        pool = SandboxPool(
            session,
            spec,
            warm=provider.warm,
            max_live=provider.max_live,
            max_starting=provider.max_starting,
            max_starts_per_second=provider.max_starts_per_second,
            record=ledger.record,
        )
        try:
            async with pool:
                yield pool
        finally:
            folder.note(sandbox_totals=pool.totals())
            ledger.close()


def _total(pool: SandboxPool) -> dict[str, float]:
    """The run's counters, under names that no step's row has."""
    return {name.replace("/", "/total/"): value for name, value in pool.totals().items()}


def _tagged(experiment: Experiment, folder: RunFolder) -> SandboxSpec:
    """What the run's sandboxes are started from, with the tags by which they are found."""
    spec = experiment.sandbox.spec()
    model = fit.acting(experiment).name
    tags = run_tags(run=folder.id, project=experiment.name, model=model)
    spec = replace(spec, tags=tuple(dict.fromkeys((*tags, *spec.tags))))
    folder.note(sandbox_tags=spec.tags)
    return spec


@lru_cache(maxsize=2)
def _order(size: int, epoch: int, seed: int) -> list[int]:
    """The order of a later epoch."""
    order = list(range(size))
    random.Random(f"epoch {epoch} {seed}").shuffle(order)
    return order


def _record_failure(folder: RunFolder, trajectory: Trajectory) -> None:
    failure = trajectory.failure
    if failure:
        folder.add_failure(trajectory)
        where = f"{trajectory.rollout_id} (task {trajectory.task_id}, attempt {failure.attempt})"
        log.warning("%s: %s %s: %s", where, failure.boundary, failure.type, failure.message)


def _dataset_facts(experiment: Experiment, splits: Splits) -> dict[str, object]:
    return {
        "kind": experiment.dataset.kind,
        "revision": getattr(experiment.dataset, "revision", None),
        "fingerprint": provenance.fingerprint(splits.all),
        "tasks": len(splits.all),
        "train": len(splits.train),
        "held_out": len(splits.held_out),
    }


def _refuse_empty(experiment: Experiment, splits: Splits) -> None:
    if experiment.mode == "train" and not splits.train:
        raise ConfigError([Finding("dataset", "no task is left to train on")])
    if experiment.mode == "eval" and not splits.held_out:
        raise ConfigError([Finding("dataset.held_out", "no task is held out to evaluate on")])
    chosen = experiment.collect.tasks
    if experiment.mode == "collect" and not getattr(splits, chosen):
        raise ConfigError([Finding("collect.tasks", f"the data set has no {chosen!r} tasks")])
    lacking = [
        (reward.kind, f"{task.id}: {need}")
        for task in splits.all
        for reward in experiment.reward.each()
        for need in reward.needs_task
        if getattr(task, need) is None
    ]
    if lacking:
        kind, what = lacking[0]
        raise ConfigError([Finding("reward.kind", f"{kind!r} needs what a task lacks: {what}")])
    if fit.needs_teacher(experiment) and experiment.teacher is None:
        raise ConfigError([Finding("teacher", "needed, but none is chosen")])
