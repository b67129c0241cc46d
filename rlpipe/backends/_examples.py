"""What a service is sent to learn from, and what its answer says about the step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp
from statistics import fmean

from rlpipe.chat import IGNORED
from rlpipe.types import TokenRow


@dataclass(frozen=True, slots=True)
class Example:
    """One row to learn from. What is said per token is said of every token but the first, which
    nothing predicts."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]
    """Whether the token carries loss: given ones do not."""

    logprobs: tuple[float, ...]
    """Of the policy that sampled the token; 0 where there is none."""

    weight: float
    """The advantage, or 1 for what is to be imitated."""

    @property
    def inputs(self) -> list[int]:
        return list(self.tokens[:-1])

    @property
    def targets(self) -> list[int]:
        return list(self.tokens[1:])

    @property
    def weights(self) -> list[float]:
        """Per target: the row's weight where it is learned, 0 elsewhere."""
        return [self.weight if learned else 0.0 for learned in self.learned]


def sampled(row: TokenRow, advantage: float) -> Example:
    """A row that the policy sampled."""
    given = len(row.prompt_ids) - 1
    return Example(
        tokens=row.prompt_ids + row.completion_ids,
        learned=(False,) * given + tuple(bool(kept) for kept in row.mask),
        logprobs=(0.0,) * given + row.logprobs,
        weight=advantage,
    )


def taught(input_ids: Sequence[int], labels: Sequence[int], weight: float = 1.0) -> Example:
    """A row that a teacher wrote; labels are `IGNORED` where a token carries no loss."""
    learned = tuple(label != IGNORED for label in labels[1:])
    return Example(tuple(input_ids), learned, (0.0,) * len(learned), weight)


def policy_figures(rows: Sequence[Example], trained: Sequence[Sequence[float]]) -> dict[str, float]:
    """Figures of a step on the policy's own rows.

    `trained` has the trainer's log-probability of every target, before the step. The loss is the
    mean over the learned tokens of -ratio * advantage, which no clipping has changed; the entropy
    is estimated from the sampled tokens.
    """
    pairs = [
        (said, sampler, row.weight)
        for row, logprobs in zip(rows, trained, strict=True)
        for said, sampler, learned in zip(logprobs, row.logprobs, row.learned, strict=True)
        if learned
    ]
    apart = [abs(said - sampler) for said, sampler, _ in pairs]
    return {
        "train/loss": fmean(-exp(said - sampler) * weight for said, sampler, weight in pairs),
        "train/entropy": fmean(-said for said, _, _ in pairs),
        "train/logprob_diff": fmean(apart),
        "train/logprob_diff_max": max(apart),
        "train/tokens": float(len(pairs)),
    }


def teacher_figures(
    rows: Sequence[Example], trained: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Figures of a step on a teacher's rows: the weighted cross-entropy per learned token."""
    said = [
        (value, row.weight)
        for row, logprobs in zip(rows, trained, strict=True)
        for value in _learned(row, logprobs)
    ]
    return {
        "train/loss": fmean(-value * weight for value, weight in said),
        "train/tokens": float(len(said)),
    }


def sides(rows: Sequence[Example], trained: Sequence[Sequence[float]]) -> dict[str, float]:
    """How probable the policy held the teacher's tokens before the step, by what they earned."""
    better: list[float] = []
    worse: list[float] = []
    for row, values in zip(rows, trained, strict=True):
        (better if row.weight > 0 else worse).extend(_learned(row, values))
    found = {"train/logprob_better": better, "train/logprob_worse": worse}
    return {name: fmean(values) for name, values in found.items() if values}


def _learned(row: Example, values: Iterable[float]) -> list[float]:
    return [value for value, learned in zip(values, row.learned, strict=True) if learned]
