"""Group-relative policy optimisation: the policy learns from its own rollouts."""

from typing import ClassVar, Literal

from pydantic import Field

from rlpipe.train.base import Train


class Grpo(Train):
    """Train the policy on its own rollouts, each judged against the others of its task."""

    compares_groups: ClassVar[bool] = True
    kind: Literal["grpo"] = "grpo"
    group_size: int = Field(8, ge=2)
    """Rollouts of one task; advantages are taken within the group."""

    loss_fn: (
        Literal["grpo", "dapo", "dr_grpo", "bnpo", "ppo", "cispo", "importance_sampling"] | None
    ) = None
    """How token losses are formed and averaged. Each backend has its own, and null takes its
    default: `dapo` with `trl`, `importance_sampling` with `tinker`."""

    beta: float = Field(0.0, ge=0)
    """Weight of the KL term towards the starting policy."""

    epsilon: float = Field(0.2, gt=0)
    """Clipping range of the importance ratio."""

    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What advantages are divided by: the spread within the group, within the batch, or nothing."""

    warmup_steps: int = Field(0, ge=0)
    """Steps of supervised fine-tuning on a teacher's rollouts before the first GRPO step."""

    warmup_tasks: int = Field(256, ge=1)
    """Tasks that the teacher demonstrates for the warm-up, once each."""

    warmup_batch_size: int = Field(32, ge=1)
    """Demonstrations of one warm-up step."""

    warmup_learning_rate: float | None = Field(None, gt=0)
    """Null takes `learning_rate`."""

    warmup_keep: Literal["passed", "all"] = "passed"
    """Which demonstrations are learned: those that passed, or all, faults included."""

    warmup_learn_reasoning: bool = False
    """Whether what the teacher thought is learned too; the policy's chat template must have a place
    for it."""

    @property
    def demonstrations(self) -> int:
        return self.warmup_tasks if self.warmup_steps else 0

    @property
    def judges_teacher(self) -> bool:
        return self.warmup_keep == "passed"
