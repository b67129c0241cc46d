"""Rejection sampling: the policy is fine-tuned on a teacher's rollouts that passed."""

from typing import ClassVar, Literal

from pydantic import Field

from rlpipe.train.base import Train


class Sft(Train):
    """Fine-tune the policy on the teacher's rollouts that passed."""

    samples_policy: ClassVar[bool] = False
    kind: Literal["sft"] = "sft"
    group_size: int = Field(1, ge=1)
    """Rollouts of one task that the teacher makes."""

    batch_size: int = Field(32, ge=1)
    """Trajectories of one optimizer step."""

    keep: Literal["passed", "all"] = "passed"
    """Which trajectories are learned."""

    learn_reasoning: bool = False
    """Whether what the teacher thought is learned too; the policy's chat template must have a place
    for it."""

    @property
    def demonstrations(self) -> int:
        return self.total_tasks * self.group_size

    @property
    def judges_teacher(self) -> bool:
        return self.keep == "passed"
