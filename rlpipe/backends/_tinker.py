"""The Tinker backend's learner: rows go to the service, and what it says of them comes back."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker import types  # noqa: TID253

from rlpipe.backends import _examples
from rlpipe.backends import _tinker_losses as losses
from rlpipe.backends._examples import Example
from rlpipe.backends._steps import Figures, Learner
from rlpipe.backends._tinker_actor import SamplingActor, settled
from rlpipe.backends._tinker_checkpoint import SavedWeights
from rlpipe.backends._tinker_failures import failing
from rlpipe.backends._tinker_losses import Loss
from rlpipe.backends._tinker_service import Service, made
from rlpipe.backends.base import Job, lessons, sampled_rows, supervised_rows
from rlpipe.train.grpo import Grpo
from rlpipe.train.teacher_grpo import TeacherGrpo
from rlpipe.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:  # tinker.py imports this module only while it trains
    from rlpipe.backends.tinker import Tinker


async def open_learner(backend: "Tinker", job: Job, service: Service) -> Learner:
    """A fresh adapter, or the one that an earlier attempt of the run has saved.

    Raises:
        RunError: the service refuses the model, the adapter or the loss.
    """
    if job.resume:
        saved = SavedWeights.read(job.resume.folder)
        rank, client = saved.lora_rank, await service.saved_adapter(saved)
    else:
        rank = backend.rank_of(job.train)
        client = await service.fresh_adapter(rank, job.seed)
    await losses.try_out(client, losses.chosen(backend, job.train))
    return TinkerLearner(backend, job, service, client, rank)


class TinkerLearner(Learner):
    """An adapter at the service.

    Its requests are numbered, and the service works them off in order: one that was cancelled on
    its way would keep all later ones waiting. So they are shielded from the end of a run.
    """

    def __init__(
        self, backend: "Tinker", job: Job, service: Service, client: Any, rank: int
    ) -> None:
        self._backend = backend
        self._job = job
        self._service = service
        self._client = client
        self._rank = rank
        self._sampler: Any = None
        """Serves the weights as they are, once someone has asked for it."""

    async def actor(self, version: int) -> SamplingActor:
        if self._sampler is None:
            with failing("the weights cannot be sampled from"):
                made_here = made(self._client.save_weights_and_get_sampling_client)
                self._sampler = await asyncio.shield(made_here)
        return self._service.actor(self._sampler, version)

    async def reinforce(self, groups: Sequence[TrajectoryGroup], rate: float) -> Figures:
        train = self._job.train
        assert isinstance(train, Grpo)
        laid = [(sampled_rows(t), value) for t, value in lessons(groups, train.scale_rewards)]
        rows = [_examples.sampled(row, v) for found, v in laid for row in found if any(row.mask)]
        split = sum(len(found) > 1 for found, _ in laid)
        counted = {"train/rows": float(len(rows)), "train/split_rollouts": float(split)}
        if not rows:
            return counted | {"train/skipped": 1.0}
        loss = losses.chosen(self._backend, train)
        logprobs, figures = await self._step(rows, loss, rate, serve=True)
        figures |= counted | _examples.policy_figures(rows, logprobs)
        return figures | {"train/skipped": 0.0}

    async def imitate(
        self, shown: Sequence[Trajectory], rate: float, *, reasoning: bool
    ) -> Figures:
        rows = [
            _examples.taught(*row)
            for trajectory in shown
            for row in supervised_rows(self._service.tokenizer, trajectory, reasoning=reasoning)
        ]
        logprobs, figures = await self._step(rows, losses.IMITATION, rate)
        counted = {"train/rows": float(len(rows))}
        return figures | counted | _examples.teacher_figures(rows, logprobs)

    async def compare(self, groups: Sequence[TrajectoryGroup], rate: float) -> Figures:
        """A teacher's tokens, weighed by advantage, as importance sampling at a ratio of 1.

        Its gradient is that of the weighted cross-entropy. The service's own cross-entropy is not
        asked, since services that divide a row's loss by its weights have no use for negative ones.
        """
        train = self._job.train
        assert isinstance(train, TeacherGrpo)
        tokenizer, reasoning = self._service.tokenizer, train.learn_reasoning
        rows = [
            _examples.taught(*row, value)
            for trajectory, value in lessons(groups, train.scale_rewards)
            for row in supervised_rows(tokenizer, trajectory, reasoning=reasoning)
        ]
        counted = {"train/rows": float(len(rows))}
        if not rows:
            return counted | {"train/skipped": 1.0}
        with failing("the teacher's rows cannot be read"):
            plain = [losses.datum(replace(row, weight=1.0), losses.IMITATION) for row in rows]
            asked = settled(self._client.forward(plain, losses.IMITATION.name))
            before = _logprobs(await asyncio.shield(asked))
        weighed = [replace(row, logprobs=tuple(b)) for row, b in zip(rows, before, strict=True)]
        _, figures = await self._step(weighed, losses.chosen(self._backend, train), rate)
        figures |= counted | _examples.teacher_figures(rows, before)
        return figures | _examples.sides(rows, before) | {"train/skipped": 0.0}

    async def _step(
        self, rows: Sequence[Example], loss: Loss, rate: float, *, serve: bool = False
    ) -> tuple[list[list[float]], dict[str, float]]:
        """One optimizer step; returns each row's log-probabilities before it, and figures.

        Every request is on its way before the first is awaited. `serve` asks for the new weights'
        sampler with them.
        """
        adam = types.AdamParams(
            learning_rate=rate,
            weight_decay=self._backend.weight_decay,
            grad_clip_norm=self._backend.max_grad_norm or 0.0,
        )
        self._sampler = None
        with failing("the training step failed"):
            data = [losses.datum(row, loss) for row in rows]
            passed = self._client.forward_backward(data, loss.name, loss.config)
            stepped = self._client.optim_step(adam)
            asked = [settled(passed), settled(stepped)]
            if serve:
                asked.append(made(self._client.save_weights_and_get_sampling_client))
            answers = await asyncio.shield(asyncio.gather(*asked))
        self._sampler = answers[2] if serve else None
        sent = {"tokens/trained": float(sum(len(row.inputs) for row in rows))}
        return _logprobs(answers[0]), _grad_norm(answers[1]) | sent

    async def save(self, step: int, folder: Path) -> None:
        ttl, saved, name = self._backend.checkpoint_ttl, datetime.now(UTC), f"step_{step}"
        whole = None if ttl is None else int(ttl)
        with failing(f"the checkpoint of step {step} cannot be saved"):
            state = self._client.save_state(name, ttl_seconds=whole)
            sampler = self._client.save_weights_for_sampler(name, ttl_seconds=whole)
            both = asyncio.gather(settled(state), settled(sampler))
            kept, served = await asyncio.shield(both)
        expires = None if ttl is None else f"{saved + timedelta(seconds=ttl):%Y-%m-%dT%H:%M:%SZ}"
        SavedWeights(
            step=step,
            base_model=self._service.model,
            lora_rank=self._rank,
            state=kept.path,
            sampler=served.path,
            saved=f"{saved:%Y-%m-%dT%H:%M:%SZ}",
            expires=expires,
        ).write(folder)
        until = f"until {expires}" if expires else "until it is deleted"
        self._job.status(f"checkpoint {kept.path}, which the service keeps {until}")


def _logprobs(answer: Any) -> list[list[float]]:
    """The trainer's log-probability of every target, row by row."""
    return [output["logprobs"].tolist() for output in answer.loss_fn_outputs]


def _grad_norm(answer: Any) -> dict[str, float]:
    """Before clipping, where the service tells it; some put their own name before it."""
    metrics = getattr(answer, "metrics", None) or {}
    found = [value for name, value in metrics.items() if name.rpartition("/")[2] == "grad_norm"]
    return {"train/grad_norm": float(found[0])} if found else {}
