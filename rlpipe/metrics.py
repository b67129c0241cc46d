"""Figures of a step, from its groups. Names are the field's; shares lie between 0 and 1."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from rlpipe.advantages import trainable, zero_variance
from rlpipe.types import StopReason, Trajectory, TrajectoryGroup, Usage

CUT = (StopReason.MAX_TOKENS, StopReason.MAX_TRAJECTORY_TOKENS, StopReason.CONTEXT_OVERFLOW)


def summarise(
    groups: Sequence[TrajectoryGroup], prefix: str = "train", *, teacher: bool = False
) -> dict[str, float]:
    """Figures over the trajectories of `groups`; a failed one counts in no reward.

    The tokens of a teacher's, which are paid for, are counted apart from the policy's.
    """
    everyone = [t for group in groups for t in group.trajectories]
    scored = [t for t in everyone if t.valid]
    rewards = [t.score.value for t in scored if t.score]
    figures = {
        "rollout/count": float(len(everyone)),
        "rollout/valid": float(len(scored)),
        "rollout/infra_failure_rate": _share(t.failure is not None for t in everyone),
        "rollout/turns": _mean(len(t.turns) for t in scored),
        "rollout/tool_calls": _mean(sum(t.tool_calls.values()) for t in scored),
        "tools/malformed": float(sum(t.malformed for t in everyone)),
        "completions/clipped_ratio": _share(t.stop_reason in CUT for t in scored),
        "groups/count": float(len(groups)),
        "groups/trainable": _share(trainable(group.rewards) for group in groups),
        "groups/zero_variance": _share(zero_variance(group.rewards) for group in groups),
    }
    if rewards:
        figures[f"{prefix}/reward"] = fmean(rewards)
        figures[f"{prefix}/reward_std"] = pstdev(rewards)
        figures[f"{prefix}/pass_rate"] = _share(t.score.passed for t in scored if t.score)
    figures |= _tokens(everyone, "teacher/tokens" if teacher else "tokens")
    return figures | _parts(scored, prefix) | _counts(everyone) | _seconds(everyone)


def aside(
    groups: Sequence[TrajectoryGroup], prefix: str, *, teacher: bool = False
) -> dict[str, float]:
    """Failures by type and tokens of rollouts beside training, under names that no step has."""
    everyone = [t for group in groups for t in group.trajectories]
    figures = {
        f"{prefix}/{name}": times
        for name, times in _counts(everyone).items()
        if name.startswith("failures/")
    }
    return figures | _tokens(everyone, "teacher/tokens" if teacher else f"{prefix}/tokens")


def _tokens(everyone: Sequence[Trajectory], prefix: str) -> dict[str, float]:
    """Tokens that models were asked to read, had read before, and wrote."""
    used = sum((t.usage for t in everyone), Usage())
    return {
        f"{prefix}/prompt": float(used.prompt_tokens),
        f"{prefix}/cached": float(used.cached_tokens),
        f"{prefix}/completion": float(used.completion_tokens),
    }


def _parts(scored: Sequence[Trajectory], prefix: str) -> dict[str, float]:
    names = {name for t in scored if t.score for name in t.score.parts}
    return {
        f"{prefix}/reward_parts/{name}": _mean(
            t.score.parts[name] for t in scored if t.score and name in t.score.parts
        )
        for name in sorted(names)
    }


def _counts(everyone: Sequence[Trajectory]) -> dict[str, float]:
    calls: Counter[str] = Counter()
    for trajectory in everyone:
        calls.update(trajectory.tool_calls)
    stops = Counter(t.stop_reason.value for t in everyone)
    failures = Counter(f"{t.failure.boundary}/{t.failure.type}" for t in everyone if t.failure)
    return (
        {f"tools/{name}/calls": float(times) for name, times in sorted(calls.items())}
        | {f"stop/{name}": float(times) for name, times in sorted(stops.items())}
        | {f"failures/{name}": float(times) for name, times in sorted(failures.items())}
    )


def _seconds(everyone: Sequence[Trajectory]) -> dict[str, float]:
    """Seconds summed over rollouts, which wait side by side: their shares tell where time goes."""
    return {
        "time/sampling": sum(t.timing.sampling for t in everyone),
        "time/tools": sum(t.timing.tools for t in everyone),
        "time/grading": sum(t.timing.grading for t in everyone),
    }


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else 0.0


def _share(flags: Iterable[bool]) -> float:
    return _mean(map(float, flags))
