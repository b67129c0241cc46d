"""How the policy is changed: settings that every way of training shares."""

from typing import ClassVar

from pydantic import Field

from rlpipe.component import Component, Seed


class Train(Component):
    """Settings of the training itself. A backend refuses those that it would ignore."""

    samples_policy: ClassVar[bool] = True
    """Whether the policy in training makes the rollouts; otherwise a teacher does."""

    compares_groups: ClassVar[bool] = False
    """Whether the rollouts of a task are judged against each other, so that they must differ."""

    steps: int = Field(10, ge=1)
    """Optimizer steps."""

    groups_per_batch: int = Field(8, ge=1)
    """Tasks of one step."""

    group_size: int = Field(8, ge=1)
    """Rollouts of one task."""

    learning_rate: float = Field(1e-5, gt=0)
    lora_rank: int | None = Field(None, ge=1)
    """Rank of a LoRA adapter; null trains every weight."""

    seed: Seed | None = None
    """Of weights that are made on the spot and of the trainer; null takes the experiment's."""

    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations; null evaluates only before and after training."""

    save_every: int | None = Field(None, ge=1)
    """Steps between checkpoints; null keeps only the last."""

    @property
    def rollouts_per_step(self) -> int:
        return self.groups_per_batch * self.group_size

    @property
    def total_tasks(self) -> int:
        """Tasks that the whole training draws, repetitions included."""
        return self.steps * self.groups_per_batch

    @property
    def demonstrations(self) -> int:
        """Rollouts that a teacher makes."""
        return 0

    @property
    def judges_teacher(self) -> bool:
        """Whether the teacher's rollouts are scored; those that are all learned need no score."""
        return True
