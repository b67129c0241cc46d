"""Distillation with a baseline: the policy learns from a teacher's rollouts, each weighed against
the others of its task.

The loss of a step is the advantage-weighted cross-entropy

    L = -1/N * sum_i A_i * sum_t log pi(y_it | what came before)

over the trajectories i of the groups that differ in reward, with A_i as in GRPO (see
`rlpipe.advantages`), y_it the tokens of what the teacher said, laid out by the policy's own
tokenizer and chat template, and N their number in the step. There is no importance ratio: nobody
knows the teacher's log-probabilities, and they are not needed. It is therefore not GRPO, which
corrects for who sampled: what the teacher did better than its own average becomes more probable,
what it did worse becomes less so, and without a bound, since nothing clips a step.
"""

from typing import ClassVar, Literal

from pydantic import Field

from rlpipe.train.base import Train


class TeacherGrpo(Train):
    """Train the policy on a teacher's rollouts with group-relative advantages."""

    samples_policy: ClassVar[bool] = False
    compares_groups: ClassVar[bool] = True
    kind: Literal["teacher_grpo"] = "teacher_grpo"
    group_size: int = Field(8, ge=2)
    """Rollouts of one task that the teacher makes; advantages are taken within the group."""

    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What advantages are divided by: the spread within the group, within the batch, or nothing."""

    learn_reasoning: bool = False
    """Whether what the teacher thought is learned too; the policy's chat template must have a place
    for it."""

    @property
    def demonstrations(self) -> int:
        return self.total_tasks * self.group_size
