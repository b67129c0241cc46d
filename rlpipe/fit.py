"""Whether an experiment can run: its parts, how they fit each other, and what it would take."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlpipe.config.schema import Experiment
from rlpipe.errors import Finding
from rlpipe.rewards.base import CodeReward


def check(experiment: Experiment) -> list[Finding]:
    """Everything that is wrong with a spec, found without network and without heavy imports."""
    findings = [
        Finding(f"{key}.{found.key}" if found.key else key, found.problem)
        for key, component in experiment.components().items()
        if key != "backend" or uses_backend(experiment)
        for found in component.check()
    ]
    return findings + list(misfits(experiment))


def check_online(experiment: Experiment) -> list[Finding]:
    """What only the network can tell: endpoints, models, keys, data sets, images."""
    return [
        Finding(f"{key}.{found.key}" if found.key else key, found.problem)
        for key, component in experiment.components().items()
        for found in component.check_online()
    ]


def misfits(experiment: Experiment) -> Iterator[Finding]:
    """What is wrong between components that are right by themselves."""
    yield from _policy(experiment)
    yield from _teacher(experiment)
    yield from _reward(experiment)
    if experiment.mode == "eval" and not (
        experiment.evaluate.greedy or experiment.evaluate.samples
    ):
        yield Finding("evaluate", "nothing to evaluate; set evaluate.greedy=true or samples")


def uses_backend(experiment: Experiment) -> bool:
    """Whether the run trains, or needs the backend to serve the policy."""
    return experiment.mode == "train" or experiment.policy.in_training


def needs_teacher(experiment: Experiment) -> bool:
    return experiment.mode == "train" and experiment.train.demonstrations > 0


def _policy(experiment: Experiment) -> Iterator[Finding]:
    policy, train = experiment.policy, experiment.train
    if experiment.mode == "train" and not policy.in_training:
        yield Finding(
            "policy.kind",
            f"{policy.kind!r} cannot be trained; choose a policy that can (policy=trainable), "
            "or mode=collect",
        )
    elif uses_backend(experiment):
        yield from experiment.backend.check_fit(policy, train)
    if experiment.mode == "train" and train.samples_policy and not experiment.rollout.temperature:
        yield Finding("rollout.temperature", "0 makes the rollouts of a group alike; take 1.0")


def _teacher(experiment: Experiment) -> Iterator[Finding]:
    teacher = experiment.teacher
    if needs_teacher(experiment) and teacher is None:
        why = "train.warmup_steps" if experiment.train.samples_policy else "train=sft"
        yield Finding("teacher", f"{why} needs a teacher; choose one with teacher=...")
    if teacher is not None and teacher.in_training:
        yield Finding("teacher.kind", f"{teacher.kind!r} is the model in training, not a teacher")


def _reward(experiment: Experiment) -> Iterator[Finding]:
    dataset, gives = experiment.dataset, experiment.dataset.gives
    submits = any(tool.submits for tool in experiment.tools.values())
    for reward in experiment.reward.each():
        for need in reward.needs_task:
            if gives is not None and need not in gives:
                problem = f"{reward.kind!r} needs tasks with {need}; {dataset.kind!r} has none"
                yield Finding("reward.kind", problem)
        if isinstance(reward, CodeReward) and reward.answer == "submitted" and not submits:
            yield Finding("reward.answer", "no tool submits; add tools=[...,submit_solution]")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do at most."""

    tasks: int | None
    """None where only reading the data set would tell."""

    groups: int | None
    rollouts: int | None
    evaluations: int
    demonstrations: int
    sandboxes: int | None
    model_calls: int | None
    sampled_tokens: int | None

    def lines(self) -> list[str]:
        def shown(number: int | None) -> str:
            return "as many as the data set has" if number is None else f"{number:,}"

        return [
            f"tasks           {shown(self.tasks)}",
            f"groups          {shown(self.groups)}",
            f"rollouts        {shown(self.rollouts)}, of which {self.evaluations:,} to evaluate, "
            f"{self.demonstrations:,} by the teacher",
            f"sandboxes       {shown(self.sandboxes)}",
            f"model calls     at most {shown(self.model_calls)}",
            f"sampled tokens  at most {shown(self.sampled_tokens)}",
        ]


def plan(experiment: Experiment) -> Plan:
    """Upper bounds, from the spec alone."""
    train, dataset = experiment.train, experiment.dataset
    known = dataset.count()
    held_out = dataset.held_out if known is None else min(dataset.held_out, known)
    evaluations = demonstrations = 0
    tasks: int | None
    groups: int | None
    if experiment.mode == "train":
        tasks = groups = train.total_tasks if train.samples_policy else 0
        per_group = train.group_size
        evaluations = _evaluations(experiment) * held_out * _per_task(experiment)
        demonstrations = train.demonstrations
    elif experiment.mode == "eval":
        tasks = groups = held_out
        per_group = evaluations = 0
        evaluations = held_out * _per_task(experiment)
    else:
        tasks = groups = _collected(experiment, known, held_out)
        per_group = experiment.collect.group_size
    rollouts = None if groups is None else groups * per_group + evaluations + demonstrations
    rollout = experiment.rollout
    return Plan(
        tasks=tasks,
        groups=groups,
        rollouts=rollouts,
        evaluations=evaluations,
        demonstrations=demonstrations,
        sandboxes=None if rollouts is None else _sandboxes(experiment, rollouts),
        model_calls=None if rollouts is None else rollouts * rollout.max_model_calls(),
        sampled_tokens=None if rollouts is None else rollouts * rollout.max_sampled_tokens(),
    )


def _sandboxes(experiment: Experiment, rollouts: int) -> int:
    """One for each rollout that needs it, and another where tools ran before code is judged."""
    judged_anew = sum(isinstance(reward, CodeReward) for reward in experiment.reward.each())
    first = 1 if experiment.tools else min(1, judged_anew)
    again = judged_anew if experiment.tools else max(0, judged_anew - 1)
    return rollouts * (first + again) - _without_sandbox(experiment)


def _without_sandbox(experiment: Experiment) -> int:
    """Rollouts that neither call a tool nor are scored."""
    idle = needs_teacher(experiment) and not (experiment.tools or experiment.train.judges_teacher)
    return experiment.train.demonstrations if idle else 0


def _per_task(experiment: Experiment) -> int:
    return int(experiment.evaluate.greedy) + experiment.evaluate.samples


def _evaluations(experiment: Experiment) -> int:
    """Times that the held-out tasks are evaluated: before, in between, at the end."""
    train = experiment.train
    between = (train.steps - 1) // train.eval_every if train.eval_every else 0
    return 2 + between


def _collected(experiment: Experiment, known: int | None, held_out: int) -> int | None:
    if experiment.collect.tasks == "held_out":
        return held_out
    if experiment.collect.tasks == "train":
        return experiment.dataset.limit or known
    return known
