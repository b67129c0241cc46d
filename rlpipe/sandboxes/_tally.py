"""What sandboxes did, counted under the names that CoreWeave's SDK gives to its metrics."""

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from rlpipe.sandboxes.base import ExecResult


@dataclass(slots=True)
class Spread:
    """Count, sum and extremes of numbers."""

    count: int = 0
    sum: float = 0.0
    least: float = inf
    most: float = 0.0

    def add(self, number: float) -> None:
        self.count += 1
        self.sum += number
        self.least, self.most = min(self.least, number), max(self.most, number)

    def metrics(self, name: str) -> dict[str, float]:
        return {
            f"avg_{name}": self.sum / self.count if self.count else 0.0,
            f"min_{name}": self.least if self.count else 0.0,
            f"max_{name}": self.most,
        }


@dataclass(slots=True)
class Tally:
    """Counters over many sandboxes."""

    created: int = 0
    executions: int = 0
    completed_ok: int = 0
    completed_nonzero: int = 0
    failures: int = 0
    startups: Spread = field(default_factory=Spread)
    ended: Spread = field(default_factory=Spread)
    """Executions per claim that is over."""

    open: Counter[object] = field(default_factory=Counter)
    """Executions per claim that is not, by a token of the claim."""

    def begin(self, claim: object) -> None:
        """Count an execution that begins."""
        self.executions += 1
        self.open[claim] += 1

    def finish(self, result: ExecResult | None) -> None:
        """Count how it went; None where the machinery lost it."""
        if result is None:
            self.failures += 1
        elif result.ok:
            self.completed_ok += 1
        else:
            self.completed_nonzero += 1

    def close(self, claim: object) -> None:
        """Keep no more of a claim than its number."""
        if claim in self.open:
            self.ended.add(self.open.pop(claim))

    def metrics(self) -> dict[str, float]:
        per_sandbox = Spread(self.ended.count, self.ended.sum, self.ended.least, self.ended.most)
        for count in self.open.values():
            per_sandbox.add(count)
        completed, asked = self.completed_ok + self.completed_nonzero, self.executions
        numbers: dict[str, float] = {
            "sandboxes_created": self.created,
            "executions": asked,
            "exec_completed_ok": self.completed_ok,
            "exec_completed_nonzero": self.completed_nonzero,
            "exec_failures": self.failures,
            "exec_completion_rate": completed / asked if asked else 0.0,
            "exec_failure_rate": self.failures / asked if asked else 0.0,
            "startup_count": self.startups.count,
            **self.startups.metrics("startup_seconds"),
            **per_sandbox.metrics("execs_per_sandbox"),
        }
        return {f"cwsandbox/{name}": float(number) for name, number in numbers.items()}


class Counters:
    """Two tallies of the same: since the last report, and of all."""

    def __init__(self) -> None:
        self.recent = Tally()
        self.total = Tally()

    @property
    def both(self) -> tuple[Tally, Tally]:
        return self.recent, self.total

    def report(self, reset: bool) -> dict[str, float]:
        """What happened since the last report that reset."""
        metrics = self.recent.metrics()
        if reset:
            self.recent = Tally()
        return metrics
