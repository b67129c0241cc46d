"""What a person sees while a run goes on: a line for every step, and bars in a terminal."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from rlpipe.evaluation import Evaluation
from rlpipe.metrics import summarise
from rlpipe.redaction import redact
from rlpipe.rewards.base import NO_ANSWER
from rlpipe.types import Task, Trajectory, TrajectoryGroup

log = logging.getLogger(__name__)


class Console:
    """Prints through rich. Bars appear only where output is a terminal."""

    def __init__(self) -> None:
        from rich.console import Console as Rich

        self._rich = Rich(highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a line without the environment's secrets, and keep it in the run's log."""
        text = str(redact(text))
        self._rich.print(text, markup=False)
        log.info("%s", text)

    @contextmanager
    def rollouts(self, label: str, total: int) -> Iterator[Callable[[Trajectory], None]]:
        """Show how many of `total` rollouts are done; call the yielded function for each."""
        with self.progress(label, total) as advance:
            yield lambda trajectory: advance()

    @contextmanager
    def listing(self, tasks: Sequence[Task], total: int) -> Iterator[Callable[[Trajectory], None]]:
        """Print a line for each rollout that ends; call the yielded function for each."""
        names = {task.id: f"problem {number} ({task.id})" for number, task in enumerate(tasks)}
        numbers = count(1)

        def line(trajectory: Trajectory) -> None:
            name = names[trajectory.task_id]
            self.say(f"  [{next(numbers)}/{total}] {name}: {_verdict(trajectory)}")

        yield line

    def summary(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Every rollout in the order of the tasks, and what they come to."""
        self.say("summary, in the original order:")
        everyone = [(n, t) for n, group in enumerate(groups) for t in group.trajectories]
        for number, t in everyone:
            worth = "no reward" if t.reward is None else f"reward {t.reward:.1f}"
            self.say(f"  problem {number} ({t.task_id}): {worth}, {_verdict(t)}")
        rewards = [t.reward for _, t in everyone if t.reward is not None]
        passed = sum(t.score is not None and t.score.passed for _, t in everyone)
        rate = f"{passed / len(rewards):.0%}".replace("%", " %") if rewards else "none"
        total = f"total reward {sum(rewards):.1f}/{len(rewards)}"
        self.say(f"{total}, pass rate {rate} ({passed}/{len(rewards)})")

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Callable[[], None]]:
        """Show how many of `total` are done; call the yielded function for each."""
        if not self._rich.is_terminal:
            yield lambda: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._rich, transient=True) as progress:
            bar = progress.add_task(label, total=total)
            yield lambda: progress.advance(bar)

    def step(self, step: int, steps: int, figures: Mapping[str, float]) -> None:
        """The line of one training step."""
        if "rollout/count" not in figures:  # learned from demonstrations
            loss, seconds = figures.get("train/loss"), figures.get("time/training", 0.0)
            shown = "no loss" if loss is None else f"loss {loss:.4f}"
            self.say(f"step {step}/{steps} | {shown} | training {seconds:.1f} s")
            return
        who = "" if "train/reward" in figures else "teacher's "
        reward = figures.get("train/reward", figures.get("teacher/reward"))
        parts = [
            f"step {step}/{steps}",
            "no valid rollout" if reward is None else f"{who}reward {reward:.3f}",
            f"trainable groups {_count(figures, 'groups/trainable')}",
        ]
        failures = failure_counts(figures)
        if failures:
            parts.append(f"failed {failures}")
        self.say(" | ".join([*parts, time_split(figures)]))

    def reward_call(self, number: int, groups: Sequence[TrajectoryGroup]) -> None:
        """The line of one step's rewards, each answer run in a sandbox of its own."""
        everyone = [t for group in groups for t in group.trajectories]
        scores = [t.score for t in everyone if t.score and t.valid]
        skipped = sum(score.outcome == NO_ANSWER.outcome for score in scores)
        ran, passed = len(scores) - skipped, sum(score.passed for score in scores)
        parts = [f"{ran} sandbox{'' if ran == 1 else 'es'}", f"{passed}/{ran} passed"]
        if skipped:
            parts.append(f"{skipped} skipped (no code)")
        if masked := len(everyone) - len(scores):
            parts.append(f"{masked} masked")
        self.say(f"  Reward call {number}: {', '.join(parts)}")

    def evaluation(self, evaluation: Evaluation) -> None:
        rates = [f"greedy pass rate {evaluation.greedy}"] if evaluation.greedy else []
        rates += [f"pass@{k} {rate}" for k, rate in evaluation.pass_at.items()]
        lost = f" ({evaluation.failed} rollouts failed)" if evaluation.failed else ""
        self.say(f"held-out after step {evaluation.step}: {', '.join(rates) or 'nothing'}{lost}")

    def closing(self, folder: Path, rates: Sequence[float], next_steps: Sequence[str]) -> None:
        """The last words of a run: what it came to, where it lies, what to type next.

        `rates` are the held-out greedy pass rates of all evaluations, in order.
        """
        if len(rates) > 1:
            said = f"{rates[0]:.3f} before, {rates[-1]:.3f} after"
            self.say(f"held-out greedy pass rate: {said}")
        self.say(f"run folder: {folder}")
        self.say("try next:")
        for step in next_steps:
            self.say(f"  {step}")

    def collected(self, groups: Sequence[TrajectoryGroup], seconds: float) -> None:
        """How many tasks were solved, what failed, and how fast it went."""
        everyone = [t for group in groups for t in group.trajectories]
        solved = [g for g in groups if any(t.score and t.score.passed for t in g.trajectories)]
        rate = len(everyone) / seconds if seconds else 0.0
        self.say(f"{len(solved)}/{len(groups)} tasks solved, {rate:.1f} rollouts/s")
        failures = failure_counts(summarise(groups))
        if failures:
            self.say(f"failed and masked: {failures}")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        from rich.table import Table

        table = Table(*head)
        for row in rows:
            table.add_row(*(str(cell) for cell in row))
        self._rich.print(table)


def _verdict(trajectory: Trajectory) -> str:
    if trajectory.score is None or trajectory.failure is not None:
        return f"masked ({trajectory.failure.type})" if trajectory.failure else "not judged"
    return "pass" if trajectory.score.passed else "fail"


def failure_counts(figures: Mapping[str, float]) -> str:
    """`sandbox/SandboxGone x3, rollout/timeout x1`, or nothing."""
    counts = {
        name.removeprefix("failures/"): int(times)
        for name, times in figures.items()
        if name.startswith("failures/")
    }
    return ", ".join(f"{name} x{times}" for name, times in counts.items())


def time_split(figures: Mapping[str, float]) -> str:
    """Where the seconds of a step went. Rollouts wait side by side, so theirs are shared out."""
    parts = {name: figures.get(f"time/{name}", 0.0) for name in ("sampling", "tools", "grading")}
    rollouts, busy = figures.get("time/rollouts", 0.0), sum(parts.values()) or 1.0
    split = [f"{name} {rollouts * seconds / busy:.1f}" for name, seconds in parts.items()]
    return ", ".join([*split, f"training {figures.get('time/training', 0.0):.1f} s"])


def _count(figures: Mapping[str, float], name: str) -> str:
    total = int(figures.get("groups/count", 0))
    return f"{round(figures.get(name, 0.0) * total)}/{total}"
