"""The parts of the TRL backend that touch torch and TRL. Only imported when a run trains."""

import asyncio
import copy
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import PrinterCallback, ProgressCallback, TrainerCallback  # noqa: TID253

from rlpipe.advantages import advantages, trainable
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
    loop = asyncio.get_running_loop()
    batches = {step: job.batch(step) for step in range(1, train.steps + 1)}
    positions = range(train.total_tasks)

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        step = trainer.state.global_step + 1
        actor.version = step - 1
        chosen = dict.fromkeys(int(prompt) for prompt in prompts)
        tasks = [batches[step][position % train.groups_per_batch] for position in chosen]
        groups = on_loop(loop, job.collect(actor, tasks, step))
        steps.idle = not any(trainable(group.rewards) for group in groups)
        return _columns(groups, train, tokenizer)

    def advantage(completions: list[Any], advantage: list[float | None], **_: Any) -> list[Any]:
        return advantage

    steps = Steps(loop, job, actor, lambda step: save(model, tokenizer, job.checkpoint(step)))
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
        trainer.beta, trainer.ref_model = train.beta, _frozen_copy(trainer, model)
    await asyncio.to_thread(run_trainer, trainer)


def _frozen_copy(trainer: Any, model: Any) -> Any:
    """The policy as GRPO starts from it."""
    reference = copy.deepcopy(model).eval().requires_grad_(False)
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
    loop = asyncio.get_running_loop()
    steps = Steps(loop, job, actor, lambda step: save(model, tokenizer, job.checkpoint(step)))
    await asyncio.to_thread(run_sft, model, tokenizer, data, args, (steps,))


def run_sft(
    model: Any, tokenizer: Any, data: Sequence[Row], args: Any, callbacks: Sequence[Any]
) -> None:
    """Train on `(input_ids, labels)` rows; blocks."""
    from datasets import Dataset
    from trl import SFTTrainer

    columns = {"input_ids": [ids for ids, _ in data], "labels": [labels for _, labels in data]}
    trainer = SFTTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict(columns),
        callbacks=list(callbacks),
    )
    run_trainer(trainer)


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


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write weights and tokenizer as transformers loads them; adapters merged, and alone too."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # one bar for every checkpoint would cover our own lines
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(model, "merge_and_unload"):
        model.save_pretrained(folder / "adapter")
        model = copy.deepcopy(model).merge_and_unload()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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


def run_trainer(trainer: Any) -> None:
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.train()


class Steps(TrainerCallback):  # type: ignore[misc]
    """Tells the run of every step; evaluates and saves when it is time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        job: Job,
        actor: Actor,
        save: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._job = job
        self._actor = actor
        self._save = save
        self.idle = False
        """Whether no group of this step can teach anything."""

        self.more: dict[str, float] = {}
        """Figures of this step that the trainer does not log."""

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, *, model: Any, **_: Any
    ) -> None:
        if self.idle:
            # With gradients of zero, momentum and weight decay would still move the weights.
            for parameter in model.parameters():
                parameter.grad = None

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any
    ) -> None:
        if "loss" not in logs:
            return  # the summary of the whole training
        step, train = state.global_step, self._job.train
        self._actor.version = step
        figures = _figures(logs) | self.more | {"train/skipped": float(self.idle)}
        on_loop(self._loop, self._finish(step, figures))
        if step == train.steps:
            return  # evaluated and saved by whoever started the trainer
        if train.eval_every and step % train.eval_every == 0:
            on_loop(self._loop, self._job.evaluate(self._actor, step))
        if train.save_every and step % train.save_every == 0:
            self._save(step)

    async def _finish(self, step: int, figures: Mapping[str, float]) -> None:
        self._job.finish_step(step, figures)


_SHOWN = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "entropy": "train/entropy",
    "kl": "train/kl",
    "clip_ratio/region_mean": "train/clip_ratio",
}


def _figures(logs: Mapping[str, Any]) -> dict[str, float]:
    return {ours: float(logs[theirs]) for theirs, ours in _SHOWN.items() if theirs in logs}


def on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> Result:
    """Wait, in the trainer's thread, for work on the run's event loop."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


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
