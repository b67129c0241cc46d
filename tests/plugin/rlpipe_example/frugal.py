"""A backend that only counts what it is given, and honours next to nothing."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import ClassVar, Literal

from rlpipe.backends.base import Backend, Job, TrainSummary
from rlpipe.policies.base import Actor, Policy
from rlpipe.policies.scripted import Scripted


class Frugal(Backend):
    """Trains nothing, but drives a run as any backend does."""

    honours: ClassVar[Mapping[str, frozenset[str]]] = {"grpo": frozenset({"learning_rate"})}

    kind: Literal["frugal"] = "frugal"
    answer: str = "<answer>print(4)</answer>"
    """What its policy always says."""

    @asynccontextmanager
    async def serve(self, policy: Policy, seed: int) -> AsyncIterator[Actor]:
        async with Scripted(turns=(self.answer,)).open() as actor:
            yield actor

    async def train(self, job: Job) -> TrainSummary:
        async with self.serve(job.policy, job.seed) as actor:
            for step in range(1, job.train.steps + 1):
                groups = await job.collect(actor, job.batch(step), step)
                if job.finish_step(step, {"train/groups": float(len(groups))}):
                    return TrainSummary(step)
        return TrainSummary(job.train.steps)
