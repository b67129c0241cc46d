"""What models read and wrote, by the role that they played, what it costs, and when it is enough.

Every answer of a model is counted when it comes, those of attempts that failed later included. A
request that gave no answer is not: nobody says what it used.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from rlpipe.component import Section
from rlpipe.types import Turn, Usage

Role = Literal["policy", "teacher", "judge"]
ROLES: tuple[Role, ...] = ("policy", "teacher", "judge")
TOTALS = "tokens/total/"
MILLION = 1_000_000


class Price(Section):
    """Of one model, for a million tokens. Any currency will do: it is only added up."""

    input: float = Field(ge=0)
    """For tokens that it reads."""

    cached: float | None = Field(None, ge=0)
    """For those of them that it had read before; null asks the same as for the others."""

    output: float = Field(ge=0)
    """For tokens that it writes."""

    train: float = Field(0.0, ge=0)
    """For tokens that it is trained on, at a service that counts those."""

    def of(self, used: Usage, trained: int = 0) -> float:
        """What these tokens cost. A usage's cached tokens are among those of its prompt."""
        cached = self.input if self.cached is None else self.cached
        return (
            (used.prompt_tokens - used.cached_tokens) * self.input
            + used.cached_tokens * cached
            + used.completion_tokens * self.output
            + trained * self.train
        ) / MILLION


class Limits(Section):
    """Where a run ends before its last step, as if it had reached that: with a checkpoint.

    They are looked at after every step of training, and before every rollout that is made for
    itself (demonstrations, `mode=collect`, `mode=eval`). A step that has begun is finished, so a
    run may pass a limit by one step. The held-out tasks are not evaluated once more. Such a run is
    `stopped` in its manifest, which names the limit; it has done what the spec says, so the exit
    status is 0.
    """

    cost: float | None = Field(None, gt=0)
    """In the currency of `prices`; models without a price count as free."""

    tokens: int | None = Field(None, ge=1)
    """Read and written by all models together."""

    time: float | None = Field(None, gt=0)
    """Seconds since the run began."""


class Spending:
    """What a run has used up.

    `earlier` are the last totals of the attempts that it goes on from: what they did after their
    last checkpoint was paid for, too.
    """

    def __init__(
        self, prices: Mapping[str, Price], earlier: Mapping[str, float] | None = None
    ) -> None:
        self._prices = prices
        self._earlier = dict(earlier or {})
        self._used: defaultdict[tuple[Role, str], Usage] = defaultdict(Usage)
        self._trained: Counter[str] = Counter()
        self._cost_before = sum(self._earlier_costs().values())
        self._judged_before = Usage()

    def add(self, role: Role, model: str, turn: Turn) -> None:
        """Count an answer."""
        self._used[role, model] += turn.usage

    def add_trained(self, model: str, tokens: int) -> None:
        """Count tokens that a service trained the policy on."""
        self._trained[model] += tokens

    def usage(self, role: Role) -> Usage:
        return sum((used for (whose, _), used in self._used.items() if whose == role), Usage())

    @property
    def tokens(self) -> int:
        """Read and written by all models."""
        now = sum(u.prompt_tokens + u.completion_tokens for u in self._used.values())
        ends = ("/prompt", "/completion")
        return now + int(sum(n for name, n in self._earlier.items() if name.endswith(ends)))

    @property
    def cost(self) -> float:
        return sum(self.costs().values())

    def costs(self) -> dict[Role, float]:
        """By role; one whose models have no price is not there."""
        found: defaultdict[Role, float] = defaultdict(float, self._earlier_costs())
        for (role, model), used in self._used.items():
            if price := self._prices.get(model):
                found[role] += price.of(used)
        for model, tokens in self._trained.items():
            if price := self._prices.get(model):
                found["policy"] += price.of(Usage(), tokens)
        return dict(found)

    def so_far(self) -> dict[str, float]:
        """Totals since the run began, under names that no step's own figures have."""
        figures = {n: v for n, v in self._earlier.items() if n.startswith(TOTALS)}
        for role in sorted({role for role, _ in self._used}):
            for name, count in _counts(f"{TOTALS}{role}", self.usage(role)).items():
                figures[name] = figures.get(name, 0.0) + count
        costs = self.costs()
        figures |= {f"costs/{role}": cost for role, cost in sorted(costs.items())}
        return figures | ({"costs/total": sum(costs.values())} if costs else {})

    def _earlier_costs(self) -> dict[Role, float]:
        costs = {role: self._earlier.get(f"costs/{role}") for role in ROLES}
        return {role: cost for role, cost in costs.items() if cost is not None}

    def of_step(self) -> dict[str, float]:
        """What was spent since this was last asked, as far as a step's groups do not tell it."""
        judged, cost = self.usage("judge"), self.cost
        before, self._judged_before = self._judged_before, judged
        spent, self._cost_before = cost - self._cost_before, cost
        figures = _counts("judge/tokens", _less(judged, before)) if judged != Usage() else {}
        return figures | ({"costs/step": spent} if self.costs() else {})

    def over(self, limits: Limits, seconds: float) -> str | None:
        """Which limit is reached, in words; None where there is room."""
        if limits.cost is not None and self.cost >= limits.cost:
            return f"limits.cost={limits.cost:g} is reached: {self.cost:.4g} spent"
        if limits.tokens is not None and self.tokens >= limits.tokens:
            return f"limits.tokens={limits.tokens} is reached: {self.tokens:,} used"
        if limits.time is not None and seconds >= limits.time:
            return f"limits.time={limits.time:g} is reached: {seconds:.0f} s passed"
        return None


def _counts(prefix: str, used: Usage) -> dict[str, float]:
    return {
        f"{prefix}/prompt": float(used.prompt_tokens),
        f"{prefix}/cached": float(used.cached_tokens),
        f"{prefix}/completion": float(used.completion_tokens),
    }


def _less(used: Usage, before: Usage) -> Usage:
    return Usage(
        prompt_tokens=used.prompt_tokens - before.prompt_tokens,
        cached_tokens=used.cached_tokens - before.cached_tokens,
        completion_tokens=used.completion_tokens - before.completion_tokens,
    )
