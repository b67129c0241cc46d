"""Whether an experiment can run: its parts, how they fit each other, and what it would take."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlpipe.component import Section
from rlpipe.config.schema import Experiment
from rlpipe.errors import Finding, did_you_mean
from rlpipe.policies.base import Policy
from rlpipe.rewards.base import CodeReward
from rlpipe.spending import Role


def check(experiment: Experiment) -> list[Finding]:
    """Everything that is wrong with a spec, found without network and without heavy imports."""
    findings = [
        found.under(key)
        for key, component in _used(experiment).items()
        for found in component.check()
    ]
    return findings + list(misfits(experiment))


def check_online(experiment: Experiment) -> list[Finding]:
    """What only the network can tell: endpoints, models, keys, data sets, images."""
    findings = [
        found.under(key)
        for key, component in _used(experiment).items()
        for found in component.check_online()
    ]
    if uses_backend(experiment):
        train = experiment.train if experiment.mode == "train" else None
        findings += experiment.backend.check_fit_online(experiment.policy, train)
    return findings


def _used(experiment: Experiment) -> dict[str, Any]:
    """The components that the run works with: nobody needs a key for a teacher that rests."""
    idle = set()
    if not uses_backend(experiment):
        idle.add("backend")
    if not needs_teacher(experiment):
        idle.add("teacher")
    if acting(experiment) is not experiment.policy:
        idle.add("policy")
    return {key: part for key, part in experiment.components().items() if key not in idle}


def misfits(experiment: Experiment) -> Iterator[Finding]:
    """What is wrong between components that are right by themselves."""
    yield from _policy(experiment)
    yield from _teacher(experiment)
    yield from _reward(experiment)
    yield from _held_out(experiment)
    yield from _objective(experiment.objective)
    yield from _limits(experiment)
    if experiment.mode == "train":
        yield from _without_effect(experiment)


def uses_backend(experiment: Experiment) -> bool:
    """Whether the run trains, or needs the backend to serve the policy."""
    return experiment.mode == "train" or acting(experiment).in_training


def needs_teacher(experiment: Experiment) -> bool:
    if experiment.mode == "train":
        return experiment.train.demonstrations > 0
    return _who(experiment) == "teacher"


def acting(experiment: Experiment) -> Policy:
    """Whose rollouts the run is about: the policy's, or a teacher's that is evaluated."""
    teacher = experiment.teacher
    return teacher if teacher and _who(experiment) == "teacher" else experiment.policy


def _who(experiment: Experiment) -> str:
    """As the mode's section says it; training is always about the policy."""
    asked = {"eval": experiment.evaluate.who, "collect": experiment.collect.who}
    return asked.get(experiment.mode, "policy")


def models(experiment: Experiment) -> list[tuple[Role, Policy, int]]:
    """Whose tokens the run uses, each in its role, and how many it may write for one rollout."""
    acts, teacher = acting(experiment), experiment.teacher
    most = experiment.rollout.max_sampled_tokens()
    found: list[tuple[Role, Policy, int]] = [
        ("teacher" if acts is teacher else "policy", acts, most)
    ]
    if experiment.mode == "train" and teacher and needs_teacher(experiment):
        found.append(("teacher", teacher, most))
    asked = (reward.asks() for reward in experiment.reward.each())
    return found + [("judge", *judge) for judge in asked if judge]


def _limits(experiment: Experiment) -> Iterator[Finding]:
    """A limit on costs that leaves out what costs something."""
    if experiment.limits.cost is None:
        return
    used = {policy.name: (role, policy.metered) for role, policy, _ in models(experiment)}
    lacking = {name: known for name, known in used.items() if name not in experiment.prices}
    for name, (role, metered) in lacking.items():
        if metered or len(lacking) == len(used):
            free = ", {input: 0, output: 0} for a server of your own" if metered else ""
            yield Finding(
                "limits.cost", f"the {role} {name!r} has no price; set it in prices{free}"
            )


def _policy(experiment: Experiment) -> Iterator[Finding]:
    policy, train = experiment.policy, experiment.train
    if experiment.mode == "train" and not policy.in_training:
        yield Finding(
            "policy.kind",
            f"{policy.kind!r} cannot be trained; choose a policy that can (policy=trainable), "
            "or mode=collect; to learn from it, make it the teacher of train=sft or teacher_grpo",
        )
    elif uses_backend(experiment):
        yield from experiment.backend.check_fit(policy, train)
    if experiment.mode == "train" and train.compares_groups and not experiment.rollout.temperature:
        yield Finding("rollout.temperature", "0 makes the rollouts of a group alike; take 1.0")


def _teacher(experiment: Experiment) -> Iterator[Finding]:
    teacher = experiment.teacher
    if not needs_teacher(experiment):
        return
    if teacher is None:
        why = (
            "train.warmup_steps"
            if experiment.train.samples_policy
            else f"train={experiment.train.kind}"
        )
        if experiment.mode != "train":
            section = "evaluate" if experiment.mode == "eval" else "collect"
            why = f"{section}.who=teacher"
        yield Finding("teacher", f"{why} needs a teacher; choose one with teacher=...")
    elif teacher.in_training:
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


def _held_out(experiment: Experiment) -> Iterator[Finding]:
    """Whether there is something to evaluate where that is asked for."""
    evaluate, mode = experiment.evaluate, experiment.mode
    periodic = mode == "train" and experiment.train.eval_every is not None
    rolled = evaluate.greedy or evaluate.samples
    if mode == "eval" and not rolled:
        yield Finding("evaluate", "nothing to evaluate; set evaluate.greedy=true or samples")
    if periodic and not rolled:
        yield Finding("train.eval_every", "nothing to evaluate; set evaluate.greedy=true")
    if experiment.dataset.held_out:
        return
    if mode == "eval":
        yield Finding("dataset.held_out", "0 leaves nothing to evaluate on")
    if periodic:
        yield Finding("train.eval_every", "nothing to evaluate on; set dataset.held_out")
    if mode == "collect" and experiment.collect.tasks == "held_out":
        yield Finding("collect.tasks", "no task is held out; set dataset.held_out")


def _without_effect(experiment: Experiment) -> Iterator[Finding]:
    """Settings that were changed and that another one turns off."""
    train, backend = experiment.train, experiment.backend
    if "lora_alpha" in _changed(backend) and not train.lora_rank:
        yield Finding("backend.lora_alpha", "has no effect; set train.lora_rank")
    if experiment.evaluate.who == "teacher":
        yield Finding("evaluate.who", "training evaluates its policy; use mode=eval")


def notes(experiment: Experiment) -> list[str]:
    """What is not wrong but worth a line. A recipe's warm-up may be turned off by its steps alone,
    as an ablation does, so what is left of it is no mistake."""
    train, trackers = experiment.train, experiment.tracker.items()
    said = [f"tracker {name}: {why}" for name, one in trackers if (why := one.resting())]
    if experiment.mode != "train" or getattr(train, "warmup_steps", True):
        return said
    idle = [f"train.{name}" for name in _changed(train) if name.startswith("warmup_")]
    return said + ([f"no effect with train.warmup_steps=0: {', '.join(idle)}"] if idle else [])


def _changed(section: Section) -> list[str]:
    """The options that do not have their default."""
    fields = type(section).model_fields
    return [name for name, value in section if value != fields[name].get_default()]


OBJECTIVES = ("val/pass_rate", "val/pass@1", "val/reward", "train/reward", "train/pass_rate")
"""What is optimised most; for the hint."""


def _objective(name: str) -> Iterator[Finding]:
    """A sweep over a name that is never recorded would optimise nothing."""
    score = r"(reward(_std|_parts/.+)?|pass_rate)"
    counted = r"(failures|tokens|costs)/.+"
    # A trainer names figures of its own, and sandboxes and tools theirs.
    trainer = r"train/(?!rew|pass)\w+|(rollout|groups|tools|time|stop|completions|cwsandbox)/.+"
    rates = r"(pass_rate|pass@\d+)(_low|_high)?"
    known = (
        rf"val/({rates}|reward|failed|{counted})|train/{score}|collect/{score}"
        rf"|teacher/({score}|{counted})|judge/{counted}|{counted}|{trainer}"
    )
    if not re.fullmatch(known, name):
        hint = did_you_mean(name, OBJECTIVES) or f", such as {OBJECTIVES[0]}"
        yield Finding("objective", f"no metric is called {name!r}{hint}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do at most."""

    steps: int
    """Optimizer steps, a warm-up's included."""

    tasks: int | None
    """None where only reading the data set would tell."""

    groups: int | None
    rollouts: int | None
    evaluations: int
    demonstrations: int
    sandboxes: int | None
    model_calls: int | None
    sampled_tokens: int | None
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        def shown(number: int | None) -> str:
            return "as many as the data set has" if number is None else f"{number:,}"

        trained = [f"optimizer steps {self.steps:,}"] if self.steps else []
        return [
            *trained,
            f"tasks           {shown(self.tasks)}",
            f"groups          {shown(self.groups)}",
            f"rollouts        {shown(self.rollouts)}, of which {self.evaluations:,} to evaluate, "
            f"{self.demonstrations:,} by the teacher",
            f"sandboxes       {shown(self.sandboxes)}",
            f"model calls     at most {shown(self.model_calls)}",
            f"sampled tokens  at most {shown(self.sampled_tokens)}",
            *self.notes,
        ]


def plan(experiment: Experiment) -> Plan:
    """Upper bounds, from the spec alone."""
    train, dataset, rollout = experiment.train, experiment.dataset, experiment.rollout
    training = experiment.mode == "train"
    known = dataset.count()
    held_out = dataset.held_out if known is None else min(dataset.held_out, known)
    tasks: int | None
    evaluations, per_group = held_out * _per_task(experiment), 0
    if training:
        tasks = train.total_tasks
        per_group = train.group_size if train.samples_policy else 0
        evaluations *= _evaluations(experiment)
    elif experiment.mode == "eval":
        tasks = held_out
    else:
        tasks, evaluations = _collected(experiment, known, held_out), 0
        per_group = experiment.collect.group_size
    demonstrations = train.demonstrations if training else 0
    rollouts = None if tasks is None else tasks * per_group + evaluations + demonstrations
    return Plan(
        steps=train.steps + getattr(train, "warmup_steps", 0) if training else 0,
        tasks=tasks,
        groups=tasks,
        rollouts=rollouts,
        evaluations=evaluations,
        demonstrations=demonstrations,
        sandboxes=None if rollouts is None else _sandboxes(experiment, rollouts),
        model_calls=None if rollouts is None else rollouts * rollout.max_model_calls(),
        sampled_tokens=None if rollouts is None else rollouts * rollout.max_sampled_tokens(),
        notes=tuple(notes(experiment)),
    )


def _sandboxes(experiment: Experiment, rollouts: int) -> int:
    """One for each rollout that needs it, and another where tools ran before code is judged."""
    judged_anew = sum(isinstance(reward, CodeReward) for reward in experiment.reward.each())
    first = 1 if experiment.tools else min(1, judged_anew)
    again = judged_anew if experiment.tools else max(0, judged_anew - 1)
    return rollouts * (first + again) - _without_sandbox(experiment)


def _without_sandbox(experiment: Experiment) -> int:
    """Rollouts that neither call a tool nor are scored."""
    if experiment.mode != "train" or experiment.tools or experiment.train.judges_teacher:
        return 0
    return experiment.train.demonstrations


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
