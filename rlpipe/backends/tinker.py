"""Training on a Tinker service: it holds the weights, samples and steps; everything else is here.

Rollouts, sandboxes, rewards and advantages are those of every backend. The policy's tokenizer and
chat template come from `policy`, the weights are a LoRA adapter at the service.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from rlpipe.backends._steps import Course, learn
from rlpipe.backends.base import Backend, Job, TrainSummary
from rlpipe.errors import Finding
from rlpipe.policies.base import Actor, Policy
from rlpipe.train.base import Train

KEY_VARIABLES = ("TINKER_API_KEY", "ART_TINKER_API_KEY")
PREFIXES = ("tml-", "eyJ")
"""How a key begins: the SDK refuses others."""

COMMAND_VARIABLE = "TINKER_CREDENTIAL_CMD"
STORED_KEYS = "~/.tinker/credentials.json"
RANK = 32
"""Of the adapter where `train.lora_rank` is null; the SDK's own default."""

CLIPPED = ("ppo", "cispo")
HOUR = 3600.0


class Tinker(Backend):
    """Train a LoRA adapter on a Tinker service."""

    extra: ClassVar[str | None] = "tinker"
    needs: ClassVar[tuple[str, ...]] = ("tinker", "transformers", "jinja2")
    honours: ClassVar[Mapping[str, frozenset[str]]] = {
        "grpo": frozenset(
            {
                "learning_rate",
                "lora_rank",
                "seed",
                "loss_fn",
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
    losses: ClassVar[tuple[str, ...]] = ("importance_sampling", "ppo", "cispo")

    kind: Literal["tinker"] = "tinker"
    base_url: str | None = Field(None, pattern=r"^https?://")
    """Where the service is; null takes TINKER_BASE_URL, or the SDK's own."""

    base_model: str | None = None
    """What the service calls the model, where that is not `policy.model`."""

    project: str | None = None
    """Id of the project at the service; null takes TINKER_PROJECT_ID, or none."""

    metadata: Mapping[str, str] = {}
    """What the service keeps with the session, besides the run's name."""

    lr_scheduler: Course = "constant"
    """Course of the learning rate over the steps; the warm-up always takes `cosine`."""

    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float | None = Field(None, gt=0)
    """Norm that gradients are cut to; null cuts none."""

    checkpoint_ttl: float | None = Field(None, ge=HOUR)
    """Seconds that the service keeps a checkpoint; null keeps it until it is deleted."""

    def check(self) -> list[Finding]:
        findings = super().check()
        return findings + self._key_problems()

    def _key_problems(self) -> list[Finding]:
        """What is wrong with the key, without asking anybody whether it is good."""
        key = self.key()
        if key and not key.startswith(PREFIXES):
            name = next(name for name in KEY_VARIABLES if os.environ.get(name, "").strip())
            return [Finding("kind", f"{name} must begin with {PREFIXES[0]!r}")]
        if key or os.environ.get(COMMAND_VARIABLE) or Path(STORED_KEYS).expanduser().is_file():
            return []
        problem = f"set the environment variable {KEY_VARIABLES[0]} (or {KEY_VARIABLES[1]})"
        return [Finding("kind", problem, lacking=True)]

    def key(self) -> str | None:
        """The key of the environment; without one the SDK looks for what it has stored."""
        # A line break left over from a file would make every request's header invalid.
        found = (os.environ.get(name, "").strip() for name in KEY_VARIABLES)
        return next(filter(None, found), None)

    def check_fit(self, policy: Policy, train: Train) -> list[Finding]:
        findings = super().check_fit(policy, train)
        if getattr(policy, "model", None) is None:
            problem = f"{policy.kind!r} is made here, and the service cannot have it; "
            findings.append(Finding("policy.kind", problem + "choose policy=trainable"))
        if getattr(policy, "dtype", "auto") != "auto":
            findings.append(Finding("policy.dtype", "the service chooses it; leave auto"))
        if _changed(train, "epsilon") and self.loss_fn(train) not in CLIPPED:
            problem = f"{self.loss_fn(train)!r} does not clip; take train.loss_fn=ppo, or cispo"
            findings.append(Finding("train.epsilon", problem))
        return findings

    def check_fit_online(self, policy: Policy, train: Train | None) -> list[Finding]:
        from rlpipe.backends import _tinker_service

        return _tinker_service.refusals(self, policy, train)

    def model_of(self, policy: Policy) -> str:
        """What the service calls the policy's model."""
        return self.base_model or policy.name

    def rank_of(self, train: Train) -> int:
        return train.lora_rank or RANK

    @asynccontextmanager
    async def serve(self, policy: Policy, seed: int) -> AsyncIterator[Actor]:
        from rlpipe.backends import _tinker_service

        async with _tinker_service.connect(self, policy) as service:
            yield await service.untrained()

    async def train(self, job: Job) -> TrainSummary:
        from rlpipe.backends import _tinker, _tinker_service

        job.status(f"asking the service for {self.model_of(job.policy)}")
        async with _tinker_service.connect(self, job.policy, job.folder.name) as service:
            learner = await _tinker.open_learner(self, job, service)
            return await learn(job, learner, self.lr_scheduler)


def _changed(train: Train, name: str) -> bool:
    field = type(train).model_fields.get(name)
    return field is not None and getattr(train, name) != field.get_default()
