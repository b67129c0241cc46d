"""What changes the policy's weights. The backend drives and asks; the run lends it a `Job`."""

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from rlpipe import chat
from rlpipe.advantages import Scaling, advantages, trainable
from rlpipe.checkpoints import Checkpoint
from rlpipe.component import Component
from rlpipe.errors import Finding, RunError
from rlpipe.policies.base import Actor, Policy
from rlpipe.train.base import Train
from rlpipe.types import Task, TokenRow, Trajectory, TrajectoryGroup, lay_out


@dataclass(frozen=True)
class Job:
    """What a run lends a backend. Steps count from 1; step 0 is the untrained policy."""

    policy: Policy
    train: Train
    seed: int
    temperature: float
    """That the training rollouts are sampled at."""

    max_sampled_tokens: int
    """Upper bound of sampled tokens of one rollout."""

    folder: Path
    """The run folder; for scratch files of the backend's library."""

    batch: Callable[[int], list[Task]]
    """The tasks of a step, in order."""

    collect: Callable[[Actor, Sequence[Task], int], Coroutine[Any, Any, list[TrajectoryGroup]]]
    """Roll out a step's tasks, `train.group_size` times each, score them and record them."""

    teach: Callable[[Sequence[Task], int], Coroutine[Any, Any, list[TrajectoryGroup]]]
    """The same by the teacher; only where `train` learns from its groups. Their turns have neither
    token ids nor log-probabilities: see `lessons` and `supervised_rows`."""

    demonstrate: Callable[[], Coroutine[Any, Any, list[Trajectory]]]
    """The teacher's trajectories; only where `train` asks for a teacher."""

    evaluate: Callable[[Actor, int], Coroutine[Any, Any, None]]
    """Evaluate on held-out tasks after that many steps, and record it."""

    finish_step: Callable[[int, Mapping[str, float]], bool]
    """Say that a step is done, with the trainer's own figures; `tokens/trained` among them are
    those that a service charges for training on. Where it returns true, a limit ends the run before
    its last step: the backend keeps the weights in `checkpoint(step)`, and returns without another
    evaluation."""

    checkpoint: Callable[[int], AbstractContextManager[Path]]
    """Yields the folder to fill with that step's checkpoint, which is there whole or not at all."""

    resume: Checkpoint | None
    """Where an earlier attempt of this run stopped; its steps are done, evaluated and recorded."""

    status: Callable[[str], None]
    """Tell the user in a few words what is going on."""


async def demonstrations(job: Job, keep: Literal["passed", "all"]) -> list[Trajectory]:
    """The teacher's trajectories to learn from.

    Raises:
        RunError: there is none.
    """
    shown = await job.demonstrate()
    sound = [trajectory for trajectory in shown if trajectory.failure is None]
    chosen = [t for t in sound if keep == "all" or (t.score and t.score.passed)]
    if not chosen:
        raise RunError(f"none of the teacher's {len(shown)} trajectories passed")
    return chosen


def lessons(groups: Sequence[TrajectoryGroup], scale: Scaling) -> list[tuple[Trajectory, float]]:
    """What there is to learn from a step's groups: each valid trajectory, and its advantage.

    Groups without a gradient are left out; `groups/trainable` and `groups/zero_variance` count
    them.
    """
    scaled = advantages([group.rewards for group in groups], scale)
    return [
        (trajectory, value)
        for group, values in zip(groups, scaled, strict=True)
        if trainable(group.rewards)
        for trajectory, value in zip(group.trajectories, values, strict=True)
        if value is not None
    ]


def supervised_rows(
    tokenizer: Any, trajectory: Trajectory, *, reasoning: bool = False
) -> list[tuple[list[int], list[int]]]:
    """`(input_ids, labels)` of a teacher's trajectory in the policy's own tokens and template.

    With `reasoning`, what the teacher thought is learned as well.

    Raises:
        RunError: the chat template cannot express it.
    """
    try:
        return chat.supervised_rows(tokenizer, trajectory, reasoning=reasoning)
    except ValueError as error:
        raise RunError(f"the teacher's trajectories cannot be learned: {error}") from error


def sampled_rows(trajectory: Trajectory) -> list[TokenRow]:
    """The rows of a trajectory that the policy itself sampled; none where it never came to a turn.

    Raises:
        RunError: the log-probabilities are not there, so that it cannot be the policy's own.
    """
    try:
        return lay_out(trajectory.turns)
    except ValueError as error:
        raise RunError(
            f"{trajectory.rollout_id}: GRPO needs the log-probabilities of what the policy said "
            f"({error}); another model's rollouts are learned by train=sft (those that passed) or "
            "train=teacher_grpo (each weighed against its group)"
        ) from error


@dataclass(frozen=True)
class TrainSummary:
    """What training came to."""

    steps: int


class Backend(Component):
    """Trains a policy, and serves it for rollouts."""

    honours: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Per kind of `train`, the settings that this backend acts on besides the common ones."""

    losses: ClassVar[tuple[str, ...]] = ()
    """Values of `train.loss_fn` that this backend has, its own default first."""

    common: ClassVar[frozenset[str]] = frozenset(
        {"kind", "steps", "groups_per_batch", "group_size", "eval_every", "save_every"}
    )
    """Settings of `train` that the run itself acts on, whatever the backend."""

    def check_fit(self, policy: Policy, train: Train) -> list[Finding]:
        """What this backend cannot do with these settings, before anything starts.

        A setting that it would ignore is a finding unless it has its default. Keys are full paths.
        """
        kind = train.kind
        if kind not in self.honours:
            known = ", ".join(sorted(self.honours))
            return [
                Finding("train.kind", f"backend {self.kind!r} has no {kind!r} (it has: {known})")
            ]
        honoured = self.honours[kind] | self.common
        defaults = {name: field.get_default() for name, field in type(train).model_fields.items()}
        ignored = [
            name for name, value in train if name not in honoured and value != defaults[name]
        ]
        supported = ", ".join(sorted(honoured - {"kind"}))
        findings = [
            Finding(f"train.{name}", f"backend {self.kind!r} ignores it; it honours: {supported}")
            for name in ignored
        ]
        loss = getattr(train, "loss_fn", None)
        if loss and self.losses and loss not in self.losses:
            has = f"backend {self.kind!r} has only: {', '.join(sorted(self.losses))}"
            findings.append(Finding("train.loss_fn", has))
        return findings

    def loss_fn(self, train: Train) -> str:
        """The loss that these settings train with here."""
        return getattr(train, "loss_fn", None) or self.losses[0]

    def check_fit_online(self, policy: Policy, train: Train | None) -> list[Finding]:
        """What the backend's service refuses of these settings; `train` is None where none is done.

        Keys are full paths.
        """
        return []

    @abstractmethod
    async def train(self, job: Job) -> TrainSummary:
        """Train the policy to the end of `job.train.steps`, or until `job.finish_step` ends it.

        Raises:
            RunError: training cannot go on.
        """

    def serve(self, policy: Policy, seed: int) -> AbstractAsyncContextManager[Actor]:
        """Open the untrained policy for evaluation or collection."""
        raise NotImplementedError
