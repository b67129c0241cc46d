"""Pass rates of held-out tasks, with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import comb, sqrt
from statistics import fmean

from rlpipe.types import TrajectoryGroup

Z = 1.959964
"""Half-width of a 95 % interval, in standard errors."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int
    """Tasks that it was taken over."""

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] of {self.count}"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation of held-out tasks came to."""

    step: int
    greedy: Rate | None = None
    pass_at: dict[int, Rate] = field(default_factory=dict)
    """By k, from sampled rollouts."""

    reward: float | None = None
    """Mean over the greedy rollouts, or over the sampled ones where none is greedy."""

    failed: int = 0
    """Rollouts that the machinery failed; they count in no rate."""

    def metrics(self) -> dict[str, float]:
        figures: dict[str, float] = {"val/failed": float(self.failed)}
        if self.reward is not None:
            figures["val/reward"] = self.reward
        rates = {f"val/pass@{k}": rate for k, rate in self.pass_at.items()}
        if self.greedy:
            rates = {"val/pass_rate": self.greedy} | rates
        for name, rate in rates.items():
            figures |= {name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high}
        return figures


def greedy_rate(groups: Sequence[TrajectoryGroup]) -> Rate | None:
    """Share of tasks whose greedy rollout passed, with Wilson's interval (Wilson 1927)."""
    passed = [t.score.passed for group in groups for t in group.valid if t.score]
    if not passed:
        return None
    return _wilson(fmean(map(float, passed)), len(passed))


def pass_at(groups: Sequence[TrajectoryGroup], k: int) -> Rate | None:
    """Unbiased pass@k (Chen et al. 2021, equation 1), its mean over tasks.

    The interval is Wilson's, with a task for a trial. No estimate between 0 and 1 varies more than
    a trial with its mean, so it is wide enough; and a few tasks that all passed leave doubt.
    Tasks with fewer than `k` valid rollouts are left out; None when that leaves none.
    """
    estimates = []
    for group in groups:
        passed = [t.score.passed for t in group.valid if t.score]
        if len(passed) >= k:
            n, right = len(passed), sum(passed)
            estimates.append(1.0 - comb(n - right, k) / comb(n, k))
    if not estimates:
        return None
    return _wilson(fmean(estimates), len(estimates))


def mean_reward(groups: Sequence[TrajectoryGroup]) -> float | None:
    rewards = [reward for group in groups for reward in group.rewards if reward is not None]
    return fmean(rewards) if rewards else None


def _wilson(share: float, n: int) -> Rate:
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * sqrt(share * (1 - share) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return Rate(share, max(0.0, centre - half), min(1.0, centre + half), n)
