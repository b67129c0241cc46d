"""`train=teacher_grpo` in transformers' Trainer, which TRL's trainers are built on.

The teacher's groups of a step are asked for when the step begins, and all of their rows make one
optimizer step, in as many passes as `micro_batch_size` says. Only imported when a run trains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch  # noqa: TID253
from transformers import Trainer  # noqa: TID253

from rlpipe.backends import _trl
from rlpipe.backends._trl_steps import Steps
from rlpipe.backends.base import Job, lessons, supervised_rows
from rlpipe.chat import IGNORED
from rlpipe.policies.base import Actor
from rlpipe.train.teacher_grpo import TeacherGrpo
from rlpipe.types import TrajectoryGroup

if TYPE_CHECKING:  # trl.py imports this module only while it trains
    from rlpipe.backends.trl import Trl


@dataclass(frozen=True, slots=True)
class Lesson:
    """One row to learn from."""

    input_ids: list[int]
    labels: list[int]
    """`IGNORED` where a token carries no loss."""

    weight: float
    """The advantage of the trajectory that the row is of."""

    @property
    def tokens(self) -> int:
        """Labels that carry loss: the first is not predicted from anything."""
        return sum(label != IGNORED for label in self.labels[1:])


async def teacher_grpo(
    backend: "Trl", job: Job, train: TeacherGrpo, model: Any, tokenizer: Any, actor: Actor
) -> None:
    """Train in a thread; the teacher's rollouts are made on this event loop."""

    def learned(step: int) -> list[Lesson]:
        groups = steps.wait(job.teach(job.batch(step), step))
        found = laid_out(tokenizer, groups, train)
        steps.idle = not found
        return found

    steps = Steps(job, actor, model, tokenizer)
    trainer = Weighted(
        model=model,
        args=_arguments(backend, job, train),
        train_dataset=[{}] * train.steps,  # a step's rows are asked for when it begins
        data_collator=lambda rows: {},
        callbacks=[steps],
        lessons=learned,
        rows_per_pass=backend.micro_batch_size,
        pad_id=tokenizer.pad_token_id,
        figures=steps.more,
    )
    await steps.run(trainer)


def laid_out(tokenizer: Any, groups: Sequence[TrajectoryGroup], train: TeacherGrpo) -> list[Lesson]:
    """The rows of a step. A trajectory whose template rewrites history has several."""
    return [
        Lesson(input_ids, labels, advantage)
        for trajectory, advantage in lessons(groups, train.scale_rewards)
        for input_ids, labels in supervised_rows(
            tokenizer, trajectory, reasoning=train.learn_reasoning
        )
    ]


def _arguments(backend: "Trl", job: Job, train: TeacherGrpo) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        **_trl.shared_args(backend, job),
        max_steps=train.steps,
        per_device_train_batch_size=1,
        learning_rate=train.learning_rate,
        lr_scheduler_type=backend.lr_scheduler,
        remove_unused_columns=False,
    )


class Weighted(Trainer):  # type: ignore[misc]
    """Makes one optimizer step of all rows of a step, each weighed by its advantage.

    Args:
        lessons: gives the rows of a step.
        rows_per_pass: of one forward and backward pass; null takes all rows of a step.
        figures: where a step's own figures go.
    """

    def __init__(
        self,
        *,
        lessons: Callable[[int], list[Lesson]],
        rows_per_pass: int | None,
        pad_id: int,
        figures: dict[str, float],
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.lessons = lessons
        self.rows_per_pass = rows_per_pass
        self.pad_id = pad_id
        self.figures = figures

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        rows = self.lessons(self.state.global_step + 1)
        tokens = sum(row.tokens for row in rows)
        self.figures.clear()
        self.figures |= {"train/rows": float(len(rows)), "train/tokens": float(tokens)}
        model.train()
        loss = torch.zeros((), device=self.args.device)
        said: list[tuple[Lesson, float]] = []
        for batch in _passes(rows, self.rows_per_pass):
            with self.compute_loss_context_manager():
                logprobs = self._logprobs(model, batch)
                weights = torch.tensor([row.weight for row in batch], device=logprobs.device)
                part = -(weights * logprobs).sum() / tokens
            self.accelerator.backward(part)
            loss += part.detach()
            said += zip(batch, logprobs.tolist(), strict=True)
        self.figures |= _sides(said)
        return loss

    def _logprobs(self, model: Any, rows: Sequence[Lesson]) -> torch.Tensor:
        """Sum of the labels' log-probabilities in each row."""
        width = max(len(row.input_ids) for row in rows)

        def padded(values: list[list[int]], filler: int) -> torch.Tensor:
            filled = [value + [filler] * (width - len(value)) for value in values]
            return torch.tensor(filled, device=self.args.device)

        logits = model(
            input_ids=padded([row.input_ids for row in rows], self.pad_id),
            attention_mask=padded([[1] * len(row.input_ids) for row in rows], 0),
            use_cache=False,
        ).logits
        labels = padded([row.labels for row in rows], IGNORED)[:, 1:]
        kept = labels != IGNORED
        losses = torch.nn.functional.cross_entropy(
            logits[:, :-1][kept].float(), labels[kept], reduction="none"
        )
        owner = kept.nonzero()[:, 0]
        return torch.zeros(len(rows), device=losses.device).index_add(0, owner, -losses)

    def floating_point_ops(self, inputs: Any) -> int:
        """Nothing: Trainer would ask what it hands to `training_step`, which is empty."""
        return 0


def _passes(rows: Sequence[Lesson], most: int | None) -> list[Sequence[Lesson]]:
    size = most or len(rows) or 1
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _sides(said: Sequence[tuple[Lesson, float]]) -> dict[str, float]:
    """How probable the policy held the teacher's tokens before the step, by what they earned."""
    sides = {
        "train/logprob_better": [(row, value) for row, value in said if row.weight > 0],
        "train/logprob_worse": [(row, value) for row, value in said if row.weight < 0],
    }
    return {
        name: sum(value for _, value in members) / sum(row.tokens for row, _ in members)
        for name, members in sides.items()
        if members
    }
