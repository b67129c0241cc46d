"""Group statistics, in one place: what a backend trains on, whatever its library would do."""

from collections.abc import Sequence
from math import isfinite
from statistics import fmean, pstdev
from typing import Literal

Scaling = Literal["group", "batch", "none"]

EQUAL = 1e-9
"""Rewards closer than this carry no signal between them."""


def advantages(
    groups: Sequence[Sequence[float | None]], scale: Scaling = "none"
) -> list[list[float | None]]:
    """Reward minus the mean of the group's valid rewards, optionally divided by a spread.

    A failed rollout (None) moves no baseline and gets None. A group with fewer than two valid
    rewards gets None throughout: nothing can be compared in it. `scale="group"` divides by the
    group's population standard deviation, `"batch"` by that of all valid rewards of usable
    groups; a spread of 0 leaves the differences, which are then 0 too. The formula is GRPO's,
    Shao et al. 2024 (DeepSeekMath), equation 3; "none" is Dr. GRPO, Liu et al. 2025.

    Example: `advantages([[1, 0, None, 1]])` is `[[1/3, -2/3, None, 1/3]]`.

    Raises:
        ValueError: a reward is NaN or infinite, which would spread to its whole group.
    """
    usable = [valid if len(valid := _valid(group)) >= 2 else [] for group in groups]
    batch = [reward for rewards in usable for reward in rewards]
    result: list[list[float | None]] = []
    for group, rewards in zip(groups, usable, strict=True):
        if not rewards:
            result.append([None] * len(group))
            continue
        baseline, spread = fmean(rewards), _spread(rewards, batch, scale)
        result.append([None if r is None else (r - baseline) / spread for r in group])
    return result


def trainable(rewards: Sequence[float | None]) -> bool:
    """Whether a group carries a gradient: at least two valid rewards, not all equal."""
    valid = _valid(rewards)
    return len(valid) >= 2 and max(valid) - min(valid) > EQUAL


def zero_variance(rewards: Sequence[float | None]) -> bool:
    """Whether a group could be compared but all its rewards are equal."""
    valid = _valid(rewards)
    return len(valid) >= 2 and max(valid) - min(valid) <= EQUAL


def _valid(rewards: Sequence[float | None]) -> list[float]:
    valid = [reward for reward in rewards if reward is not None]
    if not all(map(isfinite, valid)):
        raise ValueError(f"a reward is not finite: {valid}")
    return valid


def _spread(group: Sequence[float], batch: Sequence[float], scale: Scaling) -> float:
    if scale == "none":
        return 1.0
    spread = pstdev(group if scale == "group" else batch)
    return spread if spread > EQUAL else 1.0
