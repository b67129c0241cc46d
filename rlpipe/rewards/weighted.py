"""A sum of other rewards."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Literal, Self

from pydantic import Field, SerializeAsAny, model_validator

from rlpipe.component import Section, chosen
from rlpipe.errors import Finding, GraderError
from rlpipe.policies.base import OnTurn
from rlpipe.rewards.base import Reward
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class Part(Section):
    """One reward of the sum."""

    weight: float = 1.0
    """What its value is multiplied by; a negative one makes a penalty of it."""

    reward: Annotated[SerializeAsAny[Reward], chosen("rewards")]


class Weighted(Reward):
    """The sum of several rewards, each times its weight, and each logged under its own name.

    All parts are taken or none is: where one fails the whole trajectory is masked, since a sum
    without one of its parts would be another reward.
    """

    kind: Literal["weighted"] = "weighted"
    parts: dict[str, Part] = Field(min_length=1)
    """The rewards by name, such as `tests: {weight: 0.9, reward: {kind: tests_pass}}`."""

    passes: str | None = None
    """The part that decides whether the task counts as solved; null asks for all of them."""

    @model_validator(mode="after")
    def _passes_is_a_part(self) -> Self:
        if self.passes is not None and self.passes not in self.parts:
            raise ValueError(f"passes: no part is called {self.passes!r}")
        return self

    def each(self) -> Iterator[Reward]:
        yield self
        for part in self.parts.values():
            yield from part.reward.each()

    def check(self) -> list[Finding]:
        findings = super().check()
        for name, part in self.parts.items():
            findings += [_within(name, found) for found in part.reward.check()]
            if not part.reward.judges_groups and _judges_groups(part.reward):
                problem = "what judges groups may be a part itself, but not a part of a part"
                findings.append(_within(name, Finding("", problem)))
        return findings

    def check_online(self) -> list[Finding]:
        return [
            _within(name, found)
            for name, part in self.parts.items()
            for found in part.reward.check_online()
        ]

    @asynccontextmanager
    async def _open(self, on_turn: OnTurn) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            opened = {
                name: part.model_copy(
                    update={"reward": await stack.enter_async_context(part.reward.open(on_turn))}
                )
                for name, part in self.parts.items()
            }
            yield self.model_copy(update={"parts": opened})

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        scores: dict[str, Score] = {}
        # Those that look at what the rollout left come first: the others take the sandbox anew.
        for name in sorted(self.parts, key=lambda name: not _in_place(self.parts[name].reward)):
            scores[name] = await self.parts[name].reward.score(task, trajectory, sandbox)
        return self._sum({name: scores[name] for name in self.parts})

    async def score_group(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Score]:
        totals = [_score_of(trajectory) for trajectory in trajectories]
        for name, part in self.parts.items():
            if part.reward.judges_groups:
                scores = await part.reward.score_group(task, trajectories)
                pairs = zip(totals, scores, strict=True)
                totals = [self._add(total, name, score) for total, score in pairs]
        return totals

    def _sum(self, scores: Mapping[str, Score]) -> Score:
        total = Score(value=0.0, passed=True)
        for name, score in scores.items():
            if not self.parts[name].reward.judges_groups:
                total = self._add(total, name, score)
        return total

    def _add(self, total: Score, name: str, score: Score) -> Score:
        decides = self.passes in (None, name)
        inner = {f"{name}/{part}": value for part, value in score.parts.items()}
        said = f"{name} {score.value:g} ({score.outcome}{': ' if score.note else ''}{score.note})"
        return Score(
            value=total.value + self.parts[name].weight * score.value,
            parts={**total.parts, name: score.value, **inner},
            tests=total.tests + score.tests,
            passed=total.passed and (score.passed or not decides),
            outcome=(score.outcome if decides and total.passed else total.outcome),
            note="; ".join(filter(None, (total.note, said))),
        )


def _in_place(reward: Reward) -> bool:
    return any(part.in_place for part in reward.each())


def _judges_groups(reward: Reward) -> bool:
    return any(part.judges_groups for part in reward.each())


def _score_of(trajectory: Trajectory) -> Score:
    if trajectory.score is None:
        raise GraderError(f"{trajectory.rollout_id} has no score of its own")
    return trajectory.score


def _within(name: str, found: Finding) -> Finding:
    key = f"parts.{name}.reward"
    return Finding(f"{key}.{found.key}" if found.key else key, found.problem)
