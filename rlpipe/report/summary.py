"""Four answers: did it learn, what did it try, what failed and by whose fault, what did it cost.

Each is plain data for the page, its `headline` a sentence.
"""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from math import comb
from statistics import fmean
from typing import Any

from rlpipe.report.data import Brief, RunData

RATES = ("val/pass_rate", "val/pass@1")
"""Metrics that tell what was learned, the better one first."""

SURE = 0.05
"""Chance, without any change, of as many tasks gained or lost: below it a change is believed."""

PHASES = ("train", "collect", "eval", "sample", "teacher")
"""What rollouts are for; the first of these that a run has is what it is about."""

CUT = ("max_tokens", "max_trajectory_tokens", "context_overflow", "max_turns", "max_tool_calls")


def answers(data: RunData, now: float | None = None) -> dict[str, Any]:
    """The four answers; `now` is in seconds since the epoch."""
    return {
        "learned": learned(data),
        "tried": tried(data),
        "failed": failed(data),
        "cost": cost(data, time.time() if now is None else now),
    }


def percent(share: float) -> str:
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def main_phase(data: RunData) -> str:
    return next(iter(phases(data)), "train")


def phases(data: RunData) -> list[str]:
    """What the run's rollouts are for; purposes of a plugin's own come last."""
    there = {item.phase for item in data.trajectories}
    return [phase for phase in PHASES if phase in there] + sorted(there.difference(PHASES))


def evaluations(data: RunData) -> list[dict[str, float]]:
    """Held-out pass rates by step, with the bounds of their intervals where there are any."""
    name = next((rate for rate in RATES if data.series(rate)), RATES[0])
    bounds = {end: dict(data.series(f"{name}_{end}")) for end in ("low", "high")}
    return [
        {"step": step, "value": value}
        | {end: by_step[step] for end, by_step in bounds.items() if step in by_step}
        for step, value in data.series(name)
    ]


def learned(data: RunData) -> dict[str, Any]:
    """Whether the held-out pass rate rose, and how sure that is."""
    rates = evaluations(data)
    answer: dict[str, Any] = {"evaluations": rates, "verdict": "none"}
    if data.manifest.get("mode", "train") != "train":
        return answer | {"headline": _untrained(data, rates)}
    if not rates:
        return answer | {"headline": _training_reward(data)}
    if len(rates) == 1:
        first = f"{percent(rates[0]['value'])} after step {rates[0]['step']:.0f}"
        return answer | {"headline": f"Not known yet: held-out pass rate {first}"}
    before, after = rates[0], rates[-1]
    gained, lost = _changed(data, int(before["step"]), int(after["step"]))
    chance = mcnemar(gained, lost) if gained + lost else None
    sure = chance < SURE if chance is not None else _apart(before, after)
    better = after["value"] > before["value"]
    verdict = ("yes" if better else "worse") if sure else "unclear"
    words = {"yes": "Yes", "worse": "No", "unclear": "Not clearly"}[verdict]
    moved = f"from {percent(before['value'])} to {percent(after['value'])}"
    verb = "stayed" if before["value"] == after["value"] else "rose" if better else "fell"
    moved = f"at {percent(after['value'])}" if verb == "stayed" else moved
    return answer | {
        "verdict": verdict,
        "headline": f"{words}: held-out pass rate {verb} {moved}",
        "gained": gained,
        "lost": lost,
        "chance": chance,
        "best": max(rates, key=lambda rate: rate["value"]),
    }


def _untrained(data: RunData, rates: Sequence[dict[str, float]]) -> str:
    if rates:
        return f"Nothing was trained: held-out pass rate {percent(rates[-1]['value'])}"
    scored = [item for item in data.trajectories if item.scored]
    if not scored:
        return "Nothing was trained, and no rollout has a score"
    share = percent(fmean(item.passed for item in scored))
    return f"Nothing was trained: {share} of {len(scored):,} rollouts passed"


def _training_reward(data: RunData) -> str:
    rewards = [value for _, value in data.series("train/reward")]
    if not rewards:
        yet = data.manifest.get("status") == "running"
        return "Not known yet: nothing is measured" if yet else "Not known: nothing was measured"
    few = max(1, len(rewards) // 5)
    first, last = fmean(rewards[:few]), fmean(rewards[-few:])
    return f"Not measured on held-out tasks: training reward went from {first:.3f} to {last:.3f}"


def _changed(data: RunData, first: int, last: int) -> tuple[int, int]:
    """Held-out tasks whose greedy rollout passed only at the last, or only at the first step."""
    passed = {step: {i.task_id: i.passed for i in _evaluated(data, step)} for step in (first, last)}
    both = passed[first].keys() & passed[last].keys()
    gained = sum(passed[last][task] and not passed[first][task] for task in both)
    lost = sum(passed[first][task] and not passed[last][task] for task in both)
    return gained, lost


def _evaluated(data: RunData, step: int) -> list[Brief]:
    return [i for i in data.trajectories if i.phase == "eval" and i.step == step and i.scored]


def mcnemar(gained: int, lost: int) -> float:
    """Chance of a split at least as uneven, if gains and losses were equally likely.

    The exact test of McNemar (1947): a two-sided binomial test of the tasks that changed.
    """
    changed, fewer = gained + lost, min(gained, lost)
    tail: float = sum(comb(changed, k) for k in range(fewer + 1)) / 2**changed
    return min(1.0, 2 * tail)


def _apart(before: dict[str, float], after: dict[str, float]) -> bool:
    """Whether two intervals do not touch."""
    lower, upper = sorted((before, after), key=lambda rate: rate["value"])
    return upper.get("low", 0.0) > lower.get("high", 1.0)


def tried(data: RunData) -> dict[str, Any]:
    """How rollouts of the main phase ended, and what they called."""
    phase = main_phase(data)
    items = [item for item in data.trajectories if item.phase == phase]
    stops = Counter(item.stop_reason for item in items)
    calls: Counter[str] = Counter()
    for item in items:
        calls.update(item.tool_calls)
    scored = [item for item in items if item.scored]
    answer: dict[str, Any] = {
        "phase": phase,
        "rollouts": len(items),
        "scored": len(scored),
        "passed": sum(item.passed for item in scored),
        "stops": stops.most_common(),
        "tools": calls.most_common(),
        "turns": fmean(item.turns for item in items) if items else 0.0,
    }
    if not items:
        return answer | {"headline": "No rollout has ended yet"}
    most = stops.most_common(2)
    ended = ", ".join(f"{percent(n / len(items))} {why.replace('_', ' ')}" for why, n in most)
    return answer | {"headline": f"{len(items):,} rollouts: {ended}"}


def failed(data: RunData) -> dict[str, Any]:
    """What the machinery lost, by boundary and type; and how the model's own answers fell short."""
    lost = Counter(item.failure for item in data.trajectories if item.failure)
    attempts = Counter(f"{f.get('boundary', '?')}/{f.get('type', '?')}" for f in data.failures)
    messages = {f"{f.get('boundary')}/{f.get('type')}": f.get("message") for f in data.failures}
    names = sorted(lost.keys() | attempts.keys(), key=lambda n: (-lost[n], -attempts[n], n))
    phase, total = main_phase(data), len(data.trajectories)
    own = [item for item in data.trajectories if item.phase == phase]
    scored = [item for item in own if item.scored]
    wrong = [item for item in scored if not item.passed]
    gone = sum(lost.values())
    machinery = (
        f"lost {gone:,} of {total:,} rollouts ({percent(gone / total)})" if gone else "lost nothing"
    )
    model = f"{percent(len(wrong) / len(scored))} of answers did not pass" if scored else "no score"
    return {
        "headline": f"Machinery: {machinery}. Model:\N{NO-BREAK SPACE}{model}.",
        "phase": phase,
        "total": total,
        "lost": gone,
        "machinery": [
            {
                "name": name,
                "lost": lost[name],
                # A folder that lacks failures.jsonl still has the rollouts that were lost.
                "attempts": max(attempts[name], lost[name]),
                "message": messages.get(name) or "",
            }
            for name in names
        ],
        "scored": len(scored),
        "wrong": len(wrong),
        "outcomes": Counter(item.outcome or "not_passed" for item in wrong).most_common(),
        "malformed": sum(item.malformed for item in own),
        "cut": Counter(i.stop_reason for i in own if i.stop_reason in CUT).most_common(),
    }


def cost(data: RunData, now: float) -> dict[str, Any]:
    """Seconds by what they went into, tokens by phase, and money where the metrics know it."""
    wall = wall_seconds(data, now)
    tokens = [_tokens(data, phase) for phase in phases(data)]
    sampled = sum(row["completion"] for row in tokens)
    money = _money(data)
    headline = f"{duration(wall)}, {sampled:,} tokens sampled"
    if money:
        headline += f", ${money['total']:,.2f}"
    return {
        "headline": headline,
        "seconds": wall,
        "time": time_split(data, wall),
        "tokens": tokens,
        "money": money,
        "sandboxes": _sandboxes(data),
    }


def wall_seconds(data: RunData, now: float) -> float:
    """From the first start to the end, or as far as the run has come; pauses are counted too."""
    began = _moment(data.manifest.get("started"))
    if began is None:
        return 0.0
    if data.manifest.get("status") == "running":
        ended: float | None = now  # one that was taken up has an end of before
    else:
        ended = _moment(data.manifest.get("ended")) or data.last_written()
    return max(0.0, (ended or began) - began)


def time_split(data: RunData, wall: float) -> list[tuple[str, float]]:
    """Wall seconds by kind of work; rollouts wait side by side, so theirs are shared out."""
    kinds = ("sampling", "tools", "grading")
    if any("time/rollouts" in figures for figures in data.metrics.values()):
        parts = dict.fromkeys((*kinds, "training"), 0.0)
        for figures in data.metrics.values():
            rollouts = figures.get("time/rollouts", 0.0)
            busy = sum(figures.get(f"time/{kind}", 0.0) for kind in kinds)
            for kind in kinds:
                parts[kind] += rollouts * figures.get(f"time/{kind}", 0.0) / busy if busy else 0.0
            parts["training"] += max(0.0, figures.get("time/training", 0.0))
    else:
        spent = {k: sum(i.seconds.get(k, 0.0) for i in data.trajectories) for k in kinds}
        busy = sum(spent.values())
        parts = {kind: wall * spent[kind] / busy if busy else 0.0 for kind in kinds}
    rest = wall - sum(parts.values())
    return [*parts.items(), ("other", max(0.0, rest))]


def _tokens(data: RunData, phase: str) -> dict[str, Any]:
    items = [item for item in data.trajectories if item.phase == phase]
    return {
        "phase": phase,
        "rollouts": len(items),
        "prompt": sum(item.prompt_tokens for item in items),
        "cached": sum(item.cached_tokens for item in items),
        "completion": sum(item.completion_tokens for item in items),
    }


def _money(data: RunData) -> dict[str, Any] | None:
    """What the models have cost by role: these figures are totals, so the latest one tells."""
    parts: dict[str, float] = {}
    for _, figures in sorted(data.metrics.items()):
        for name, value in figures.items():
            if name.startswith("costs/") and value == value:
                parts[name.removeprefix("costs/")] = value
    parts.pop("step", None)
    if not parts:
        return None
    total = parts.pop("total", None)
    shown = sorted(parts.items(), key=lambda part: -part[1])
    return {"total": sum(parts.values()) if total is None else total, "parts": shown}


def _sandboxes(data: RunData) -> dict[str, float]:
    """The run's own totals; sums over its steps while it goes on."""
    names = ("sandboxes_created", "executions", "exec_completed_nonzero", "exec_failures")
    totals = data.manifest.get("sandbox_totals") or {}
    return {
        name: totals.get(f"cwsandbox/{name}")
        or sum(value for _, value in data.series(f"cwsandbox/{name}"))
        for name in names
    }


def duration(seconds: float) -> str:
    """`3 min 12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _moment(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None
