"""`rlpipe verify`: whether a data set and a reward judge known answers as they should.

Every reference solution must pass and every standard cheat must not, before money is spent on
training with them.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rlpipe.cheats import CONSTANT, cheats
from rlpipe.config.schema import Experiment
from rlpipe.console import Console
from rlpipe.errors import ConfigError, Finding, InfrastructureError
from rlpipe.fit import misfits
from rlpipe.rewards.base import Reward
from rlpipe.sandboxes._pool import open_pool
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, StopReason, Task, Trajectory

REFERENCE = "reference"
AT_ONCE = 8
"""Sandboxes that judge side by side."""

SHOWN = 50
"""Broken tasks that are listed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A known answer to a task."""

    task: Task
    name: str
    """`reference`, or the cheat's name."""

    code: str


@dataclass
class Verdict:
    """What came of all trials."""

    references: int = 0
    passed: int = 0
    broken: list[str] = field(default_factory=list)
    """A line for each reference that does not pass."""

    gamed: list[str] = field(default_factory=list)
    """A line for each cheat that passes."""

    weak: list[str] = field(default_factory=list)
    """Tasks whose tests one constant satisfies."""

    without_reference: int = 0

    @property
    def sound(self) -> bool:
        return not self.broken and not self.gamed

    def add(self, trial: Trial, score: Score | InfrastructureError) -> None:
        passed = isinstance(score, Score) and score.passed
        if trial.name == REFERENCE:
            self.references += 1
            self.passed += passed
            if not passed:
                self.broken.append(f"{trial.task.id}: the reference fails: {_said(score)}")
        elif not isinstance(score, Score):
            self.gamed.append(f"{trial.task.id}: the cheat {trial.name} breaks it: {score}")
        elif passed and trial.name == CONSTANT:
            self.weak.append(trial.task.id)
        elif passed:
            self.gamed.append(f"{trial.task.id}: the cheat {trial.name} passes")


def verify(experiment: Experiment, console: Console) -> Verdict:
    """Judge the reference and the cheats of every task of the experiment's data set.

    Raises:
        ConfigError: the data set, the reward or the sandbox is not as it must be.
    """
    findings = [
        Finding(f"{key}.{found.key}" if found.key else key, found.problem)
        for key in ("dataset", "reward", "sandbox")
        for found in getattr(experiment, key).check()
    ]
    findings += [found for found in misfits(experiment) if found.key.startswith("reward")]
    if findings:
        raise ConfigError(findings)
    tasks = experiment.dataset.splits(experiment.seed).all
    verdict = asyncio.run(_run(experiment, tasks, console))
    _tell(verdict, console)
    return verdict


async def _run(experiment: Experiment, tasks: Sequence[Task], console: Console) -> Verdict:
    verdict = Verdict(without_reference=sum(task.reference is None for task in tasks))
    trials = list(_trials(tasks))
    queue = iter(trials)
    with console.progress("verify", len(trials)) as advance:
        async with open_pool(experiment.sandbox) as pool, experiment.reward.open() as reward:

            async def work() -> None:
                async with pool.claim() as sandbox:
                    for trial in queue:
                        verdict.add(trial, await _judge(reward, trial, sandbox))
                        advance()

            async with asyncio.TaskGroup() as running:
                for _ in range(min(AT_ONCE, experiment.sandbox.max_live)):
                    running.create_task(work())
    return verdict


async def _judge(reward: Reward, trial: Trial, sandbox: Sandbox) -> Score | InfrastructureError:
    try:
        return await reward.score(trial.task, _trajectory(trial), sandbox)
    except InfrastructureError as error:
        return error


def _trials(tasks: Sequence[Task]) -> Iterator[Trial]:
    for task in tasks:
        if task.reference is not None:
            yield Trial(task, REFERENCE, task.reference)
        for name, code in cheats(task):
            yield Trial(task, name, code)


def _trajectory(trial: Trial) -> Trajectory:
    """The answer in every form that a reward may look for: submitted, tagged and fenced."""
    answer = f"<answer>\n```python\n{trial.code}\n```\n</answer>"
    return Trajectory(
        rollout_id=f"{trial.task.id} {trial.name}",
        group_id=trial.task.id,
        task_id=trial.task.id,
        phase="eval",
        messages=(*trial.task.messages, {"role": "assistant", "content": answer}),
        submission=trial.code,
        stop_reason=StopReason.SUBMITTED,
    )


def _said(score: Score | InfrastructureError) -> str:
    if isinstance(score, InfrastructureError):
        return f"{type(score).__name__}: {score}"
    failed = [test for test in score.tests if test.outcome != "passed"]
    why = f"{failed[0].name} ({failed[0].outcome}: {failed[0].message})" if failed else score.note
    return f"{score.outcome}: {why}"


def _tell(verdict: Verdict, console: Console) -> None:
    for lines in (verdict.broken, verdict.gamed):
        for line in lines[:SHOWN]:
            console.say(line)
        if len(lines) > SHOWN:
            console.say(f"... and {len(lines) - SHOWN} more")
    if verdict.weak:
        console.say(
            f"{len(verdict.weak)} weak tasks, whose tests one constant satisfies: "
            + ", ".join(verdict.weak[:SHOWN])
        )
    if verdict.without_reference:
        console.say(f"{verdict.without_reference} tasks have no reference solution")
    console.say(
        f"{verdict.passed}/{verdict.references} references pass, {len(verdict.gamed)} cheats pass"
    )
