"""TRL's trainers on rlpipe's rollouts.

GRPOTrainer owns the loop and asks for rollouts through its `rollout_func`; the answer comes from
`Job.collect`, so agent loop, sandboxes and rewards are those of every other backend. TRL is handed
advantages in the place of rewards and told not to scale them: it subtracts a group mean that is 0
already, and trains on exactly the numbers of `rlpipe.advantages`.
"""

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlpipe import checkpoints
from rlpipe.backends.base import Backend, Job, TrainSummary, demonstrations
from rlpipe.errors import Finding
from rlpipe.policies.base import Actor, Policy
from rlpipe.train.base import Train
from rlpipe.train.grpo import Grpo
from rlpipe.train.sft import Sft
from rlpipe.train.teacher_grpo import TeacherGrpo

SMALL = 10_000_000
"""Parameters below which one CPU thread is faster than several."""


class Trl(Backend):
    """Train in this process with TRL, on a CPU or one GPU."""

    extra: ClassVar[str | None] = "trl"
    needs: ClassVar[tuple[str, ...]] = ("torch", "transformers", "trl", "peft", "datasets")
    honours: ClassVar[Mapping[str, frozenset[str]]] = {
        "grpo": frozenset(
            {
                "learning_rate",
                "lora_rank",
                "seed",
                "loss_fn",
                "beta",
                "epsilon",
                "scale_rewards",
                "warmup_steps",
                "warmup_tasks",
                "warmup_batch_size",
                "warmup_learning_rate",
                "warmup_keep",
                "warmup_learn_reasoning",
            }
        ),
        "sft": frozenset(
            {"learning_rate", "lora_rank", "seed", "batch_size", "keep", "learn_reasoning"}
        ),
        "teacher_grpo": frozenset(
            {"learning_rate", "lora_rank", "seed", "scale_rewards", "learn_reasoning"}
        ),
    }
    losses: ClassVar[tuple[str, ...]] = ("dapo", "grpo", "dr_grpo", "bnpo")

    kind: Literal["trl"] = "trl"
    micro_batch_size: int | None = Field(None, ge=1)
    """Rows of one forward and backward pass; null takes a step's rollouts at once."""

    generation_batch_size: int = Field(64, ge=1)
    """Rows of one generate call at most."""

    generation_wait: float = Field(0.5, ge=0)
    """Seconds that a rollout waits for others to share a generate call with."""

    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate over the steps; the warm-up always takes `cosine`."""

    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    lora_alpha: int = Field(32, ge=1)
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: slower, with less memory."""

    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Of the training arithmetic; `auto` is bf16 on a GPU that has it."""

    threads: int | None = Field(None, ge=1)
    """CPU threads of torch; null takes one for a small model, where more only get in each other's
    way, and torch's own choice for others."""

    def check_fit(self, policy: Policy, train: Train) -> list[Finding]:
        findings = super().check_fit(policy, train)
        if not train.lora_rank and getattr(policy, "dtype", None) == "bfloat16":
            problem = "small updates of bfloat16 weights are lost; leave auto, or set lora_rank"
            findings.append(Finding("policy.dtype", problem))
        return findings + list(self._uneven(train))

    def check(self) -> list[Finding]:
        several = int(os.environ.get("WORLD_SIZE") or 1) > 1
        alone = Finding("kind", "'trl' trains in one process; start rlpipe without a launcher")
        return super().check() + ([alone] if several else [])

    def _uneven(self, train: Train) -> Iterator[Finding]:
        """Batches that `micro_batch_size` does not divide: some rows would be left out."""
        batches = {}
        if isinstance(train, Grpo):
            batches["rollouts of a step"] = train.rollouts_per_step
            if train.warmup_steps:
                batches["demonstrations of a warm-up step"] = train.warmup_batch_size
        if isinstance(train, Sft):
            batches["rows of a step"] = train.batch_size
        for what, size in batches.items():
            micro = min(self.micro_batch_size or size, size)
            if size % micro:
                problem = f"must divide the {size} {what}"
                yield Finding("backend.micro_batch_size", problem)

    @asynccontextmanager
    async def serve(self, policy: Policy, seed: int) -> AsyncIterator[Actor]:
        from asyncio import to_thread

        model, tokenizer = await to_thread(self._load, policy, seed)
        yield self._actor(model, tokenizer, policy)

    async def train(self, job: Job) -> TrainSummary:
        from asyncio import to_thread

        from rlpipe.backends import _trl_steps

        job.status(f"loading {job.policy.name}")
        model, tokenizer = await to_thread(self._load_to_train, job)
        if job.resume:
            await to_thread(_trl_steps.restore, model, job.resume.folder)
        actor = self._actor(model, tokenizer, job.policy)
        if not (job.resume and job.resume.step):
            await self._begin(job, model, tokenizer, actor)
        await self._learn(job, model, tokenizer, actor)
        return TrainSummary(actor.version)

    def _load_to_train(self, job: Job) -> tuple[Any, Any]:
        from rlpipe.backends import _trl

        model, tokenizer = self._load(job.policy, job.seed)
        if job.train.lora_rank:
            return _trl.with_lora(model, job.train.lora_rank, self.lora_alpha), tokenizer
        return model.float(), tokenizer  # updates are smaller than what two bytes can tell apart

    def untrained(self, job: Job) -> Any:
        """The policy as the first step of this run found it: after a warm-up, if there was one."""
        from rlpipe.backends import _trl_steps

        model, _ = self._load_to_train(job)
        first = checkpoints.find(job.folder, 0)
        if first:
            _trl_steps.restore(model, first.folder)
        return model

    async def _begin(self, job: Job, model: Any, tokenizer: Any, actor: Actor) -> None:
        """What comes before the first step."""
        from asyncio import to_thread

        from rlpipe.backends import _trl_steps

        if isinstance(job.train, Grpo) and job.train.warmup_steps and not job.resume:
            await self._warm_up(job, job.train, model, tokenizer)
            with job.checkpoint(0) as folder:  # so that no resumed run needs the teacher again
                await to_thread(_trl_steps.save, model, tokenizer, folder)
        await job.evaluate(actor, 0)

    async def _learn(self, job: Job, model: Any, tokenizer: Any, actor: Actor) -> None:
        from rlpipe.backends import _trl, _trl_teacher

        if isinstance(job.train, Grpo):
            await _trl.grpo(self, job, job.train, model, tokenizer, actor)
        elif isinstance(job.train, TeacherGrpo):
            await _trl_teacher.teacher_grpo(self, job, job.train, model, tokenizer, actor)
        else:
            await _trl.sft(self, job, model, tokenizer, actor)

    async def _warm_up(self, job: Job, train: Grpo, model: Any, tokenizer: Any) -> None:
        """Fine-tune on the teacher's demonstrations before the first GRPO step."""
        from asyncio import to_thread

        from rlpipe.backends import _trl, _trl_steps

        job.status(f"warm-up: {train.warmup_tasks} demonstrations, {train.warmup_steps} steps")
        shown = await demonstrations(job, train.warmup_keep)
        rows = _trl.rows(tokenizer, shown, reasoning=train.warmup_learn_reasoning)
        rate = train.warmup_learning_rate or train.learning_rate
        args = _trl.sft_args(
            self,
            job,
            steps=train.warmup_steps,
            batch_size=train.warmup_batch_size,
            learning_rate=rate,
            schedule="cosine",
        )
        trainer = _trl.sft_trainer(model, tokenizer, rows, args)
        await to_thread(_trl_steps.run_trainer, trainer)

    def _actor(self, model: Any, tokenizer: Any, policy: Policy) -> Actor:
        from rlpipe.backends._generation import GeneratingActor

        return GeneratingActor(
            model,
            tokenizer,
            policy.name,
            wait=self.generation_wait,
            most=self.generation_batch_size,
        )

    def _load(self, policy: Policy, seed: int) -> tuple[Any, Any]:
        import torch

        model, tokenizer = policy.load(seed)
        small = sum(weight.numel() for weight in model.parameters()) < SMALL
        threads = self.threads or (1 if small else None)
        if threads:
            torch.set_num_threads(threads)
        return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer
