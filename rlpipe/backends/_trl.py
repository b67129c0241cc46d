"""The parts of the TRL backend that touch torch and TRL. Only imported when a run trains."""

import asyncio
import copy
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rlpipe.advantages import advantages, trainable
from rlpipe.backends._trl_steps import Steps
from rlpipe.backends.base import Job, demonstrations, sampled_rows, supervised_rows
from rlpipe.errors import RunError
from rlpipe.policies.base import Actor
from rlpipe.train.grpo import Grpo
from rlpipe.train.sft import Sft
from rlpipe.types import TokenRow, Trajectory, TrajectoryGroup

if TYPE_CHECKING:  # trl.py imports this module only while it trains
    from rlpipe.backends.trl import Trl

Result = TypeVar("Result")
Row = tuple[list[int], list[int]]


async def grpo(
    backend: "Trl", job: Job, train: Grpo, model: Any, tokenizer: Any, actor: Actor
) -> None:
    """Run GRPOTrainer in a thread; its rollouts are made on this event loop."""
    from datasets import Dataset
    from trl import GRPOTrainer

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func announces itself
    batches = {step: job.batch(step) for step in range(1, train.steps + 1)}
    positions = range(train.total_tasks)

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        step = trainer.state.global_step + 1
        actor.version = step - 1
        chosen = dict.fromkeys(int(prompt) for prompt in prompts)
        tasks = [batches[step][position % train.groups_per_batch] for position in chosen]
        groups = steps.wait(job.collect(actor, tasks, step))
        steps.idle = not any(trainable(group.rewards) for group in groups)
        return _columns(groups, train, tokenizer)

    def advantage(completions: list[Any], advantage: list[float | None], **_: Any) -> list[Any]:
        return advantage

    steps = Steps(job, actor, model, tokenizer)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=advantage,
        rollout_func=rollout_func,
        processing_class=tokenizer,
        # TRL only carries the prompts to `rollout_func`, so a prompt is the task's position.
        train_dataset=Dataset.from_dict({"prompt": [str(position) for position in positions]}),
        args=_grpo_args(backend, job, train),
        callbacks=[steps],
    )
    if train.beta:
        # TRL would load the reference anew by name, as it was before any warm-up.
        first = await asyncio.to_thread(backend.untrained, job) if job.resume else model
        trainer.beta, trainer.ref_model = train.beta, _frozen_copy(trainer, model, first)
    await steps.run(trainer)


def _frozen_copy(trainer: Any, model: Any, first: Any) -> Any:
    """The policy as the first step found it: a copy of what TRL has fitted to its needs."""
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    reference.load_state_dict(first.state_dict())
    return trainer.accelerator.prepare_model(reference, evaluation_mode=True)


async def sft(backend: "Trl", job: Job, model: Any, tokenizer: Any, actor: Actor) -> None:
    """Fine-tune on the teacher's trajectories."""
    train = job.train
    if not isinstance(train, Sft):
        raise TypeError(f"sft got the settings of {train.kind}")
    shown = await demonstrations(job, train.keep)
    data = rows(tokenizer, shown, reasoning=train.learn_reasoning)
    job.status(f"fine-tuning on {len(data)} rows")
    args = sft_args(
        backend,
        job,
        steps=train.steps,
        batch_size=train.batch_size,
        learning_rate=train.learning_rate,
        schedule=backend.lr_scheduler,
    )
    steps = Steps(job, actor, model, tokenizer)
    await steps.run(sft_trainer(model, tokenizer, data, args, (steps,)))


def sft_trainer(
    model: Any, tokenizer: Any, data: Sequence[Row], args: Any, callbacks: Sequence[Any] = ()
) -> Any:
    """What trains on `(input_ids, labels)` rows."""
    from datasets import Dataset
    from trl import SFTTrainer

    columns = {"input_ids": [ids for ids, _ in data], "labels": [labels for _, labels in data]}
    return SFTTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict(columns),
        callbacks=list(callbacks),
    )


def rows(tokenizer: Any, trajectories: Sequence[Trajectory], *, reasoning: bool) -> list[Row]:
    """Supervised rows of all trajectories."""
    return [row for t in trajectories for row in supervised_rows(tokenizer, t, reasoning=reasoning)]


def with_lora(model: Any, rank: int, alpha: int) -> Any:
    """Wrap a model so that only low-rank adapters of its linear layers are trained."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, config)


def sft_args(
    backend: "Trl", job: Job, *, steps: int, batch_size: int, learning_rate: float, schedule: str
) -> Any:
    from trl import SFTConfig

    micro = min(backend.micro_batch_size or batch_size, batch_size)
    return SFTConfig(
        **shared_args(backend, job),
        max_steps=steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=max(1, batch_size // micro),
        learning_rate=learning_rate,
        lr_scheduler_type=schedule,
        warmup_steps=min(20, steps // 10) if schedule == "cosine" else 0,
        max_length=None,
    )


def _grpo_args(backend: "Trl", job: Job, train: Grpo) -> Any:
    from trl import GRPOConfig

    micro = backend.micro_batch_size or train.rollouts_per_step
    return GRPOConfig(
        **shared_args(backend, job),
        max_steps=train.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=train.rollouts_per_step // micro,
        num_generations=train.group_size,
        max_completion_length=job.max_sampled_tokens,
        temperature=job.temperature,
        learning_rate=train.learning_rate,
        lr_scheduler_type=backend.lr_scheduler,
        epsilon=train.epsilon,
        loss_type=backend.loss_fn(train),
        scale_rewards="none",
        shuffle_dataset=False,
        remove_unused_columns=False,
    )


def shared_args(backend: "Trl", job: Job) -> dict[str, Any]:
    import torch

    gpu = torch.cuda.is_available()
    bf16 = backend.precision == "bf16" or (
        backend.precision == "auto" and gpu and torch.cuda.is_bf16_supported()
    )
    return {
        "output_dir": str(job.folder / "checkpoints"),
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": not gpu,
        "bf16": bf16,
        "seed": job.seed,
        "weight_decay": backend.weight_decay,
        "max_grad_norm": backend.max_grad_norm,
        "gradient_checkpointing": backend.gradient_checkpointing,
    }


def _columns(
    groups: Sequence[TrajectoryGroup], train: Grpo, tokenizer: Any
) -> dict[str, list[Any]]:
    """What TRL wants of the rollouts; a masked one has no advantage and no trained token."""
    scaled = advantages([group.rewards for group in groups], train.scale_rewards)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "advantage")
    }
    for group, values in zip(groups, scaled, strict=True):
        for trajectory, value in zip(group.trajectories, values, strict=True):
            row = _row(trajectory, tokenizer.eos_token_id)
            columns["prompt_ids"].append(list(row.prompt_ids))
            columns["completion_ids"].append(list(row.completion_ids))
            columns["logprobs"].append(list(row.logprobs))
            mask = row.mask if value is not None else (0,) * len(row.mask)
            columns["env_mask"].append(list(mask))
            columns["advantage"].append(value)
    return columns


def _row(trajectory: Trajectory, end: int) -> TokenRow:
    laid = sampled_rows(trajectory)
    if len(laid) > 1:
        raise RunError(
            f"{trajectory.rollout_id}: history was rewritten between turns, and TRL takes one row"
        )
    # A rollout that never came to a turn still needs a place in its group.
    return laid[0] if laid else TokenRow((end,), (end,), (0.0,), (0,))
