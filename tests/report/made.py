"""Run folders as an agent's runs leave them, made by the code that writes those."""

import base64
import gzip
import json
import random
import re
from pathlib import Path

from rlpipe.config.compose import load_experiment
from rlpipe.evaluation import Evaluation, greedy_rate
from rlpipe.metrics import summarise
from rlpipe.store import RunFolder
from rlpipe.types import (
    Failure,
    SandboxRecord,
    Score,
    StopReason,
    TestResult,
    Timing,
    Trajectory,
    TrajectoryGroup,
    Turn,
    Usage,
)

CODE = """def largest(numbers):
    # An empty list has no largest number.
    best = None
    for number in numbers:
        if best is None or number > best:
            best = number
    return best
"""
PROMPT = "Write a function `largest` that returns the largest number of a list, or None."
VOCABULARY = ["def", "\u0120largest", "(", "numbers", "):", "\u010a", "\u0120return", "<|im_end|>"]


def create(path: Path, *settings: str) -> RunFolder:
    """A new run folder with its first notes."""
    folder = RunFolder.create(load_experiment("quickstart", *settings), path)
    folder.note(
        name="largest", mode="train", seed=0, status="running", started="2026-01-02T03:04:05+00:00"
    )
    return folder


def agent_run(
    path: Path,
    *settings: str,
    steps: int = 6,
    groups: int = 4,
    size: int = 4,
    held_out: int = 16,
    done: bool = True,
) -> RunFolder:
    """A training run that gets better, loses some rollouts to the machinery, and is evaluated."""
    folder, chance = create(path, *settings), random.Random(7)
    evaluate(folder, 0, held_out, 0.25, chance)
    for step in range(1, steps + 1):
        skill = 0.25 + 0.6 * step / steps
        made = [group(f"train-{step}-{n}", step, size, skill, chance) for n in range(groups)]
        for trajectory in (t for one in made for t in one.trajectories):
            folder.add_trajectory(f"step_{step}", trajectory)
            if trajectory.failure:
                folder.add_failure(trajectory)
        folder.add_metrics(step, summarise(made) | seconds(step) | sandboxes(made))
    evaluate(folder, steps, held_out, 0.85, chance)
    if done:
        folder.note(status="done", ended="2026-01-02T03:24:35+00:00", result={"train/reward": 0.8})
    return folder


def evaluate(folder: RunFolder, step: int, tasks: int, skill: float, chance: random.Random) -> None:
    made = []
    for n in range(tasks):
        t = trajectory(f"eval-{step}-{n}", 0, step, skill, chance, phase="eval", task=f"held/{n}")
        made.append(TrajectoryGroup(group_id=t.group_id, task_id=t.task_id, trajectories=(t,)))
        folder.add_trajectory(f"eval_{step}", t)
    folder.add_metrics(step, Evaluation(step, greedy_rate(made)).metrics())


def group(id: str, step: int, size: int, skill: float, chance: random.Random) -> TrajectoryGroup:
    members = tuple(trajectory(id, n, step, skill, chance) for n in range(size))
    return TrajectoryGroup(group_id=id, task_id=members[0].task_id, trajectories=members)


def trajectory(
    group_id: str,
    index: int,
    step: int,
    skill: float,
    chance: random.Random,
    phase: str = "train",
    task: str = "",
    code: str = CODE,
) -> Trajectory:
    """A rollout that tries its code once, then submits it; or one that the machinery lost."""
    lost = phase == "train" and chance.random() < 0.06
    passed = not lost and chance.random() < skill
    stop = (
        StopReason.SUBMITTED
        if passed
        else chance.choice((StopReason.SUBMITTED, StopReason.FINAL_ANSWER, StopReason.MAX_TOKENS))
    )
    failure = Failure(
        boundary="sandbox", type="SandboxGone", message="the sandbox died: out of memory"
    )
    return Trajectory(
        rollout_id=f"{group_id}-{index}",
        group_id=group_id,
        task_id=task or f"mbpp/{group_id.rpartition('-')[2]}",
        phase=phase,
        step=step,
        index=index,
        seed=chance.randrange(2**31),
        policy="tiny",
        messages=conversation(code, passed),
        turns=turns(chance),
        submission=code if stop is StopReason.SUBMITTED else None,
        tool_calls={"execute_code": 1, "submit_solution": int(stop is StopReason.SUBMITTED)},
        malformed=int(chance.random() < 0.05),
        stop_reason=StopReason.FAILED if lost else stop,
        score=None if lost else score(passed),
        failure=failure if lost else None,
        timing=Timing(total=9.5, sampling=6.5, tools=1.0, grading=2.0),
        sandbox=SandboxRecord(id="local-1", executions=2, completed_ok=2),
    )


def conversation(code: str, passed: bool) -> tuple[dict[str, object], ...]:
    call = {
        "name": "execute_code",
        "arguments": json.dumps({"code": f"{code}\nprint(largest([3, 9, 4]))"}),
    }
    submit = {"name": "submit_solution", "arguments": json.dumps({"code": code})}
    return (
        {"role": "system", "content": "Solve the task. Try your code before you submit it."},
        {"role": "user", "content": PROMPT},
        {
            "role": "assistant",
            "content": "I try it first.",
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "9" if passed else "None"},
        {
            "role": "assistant",
            "content": f"It works:\n```python\n{code}```\nI submit it.",
            "tool_calls": [{"id": "call_2", "type": "function", "function": submit}],
        },
        {"role": "tool", "tool_call_id": "call_2", "content": "submitted"},
    )


def turns(chance: random.Random) -> tuple[Turn, ...]:
    first = tuple(range(len(VOCABULARY)))
    logprobs = tuple(-4 * chance.random() ** 6 for _ in first)
    usage = Usage(prompt_tokens=120, cached_tokens=64, completion_tokens=len(first))
    one = Turn(
        message_index=2, prompt_ids=(0, 1), completion_ids=first, logprobs=logprobs, usage=usage
    )
    again = (0, 1, *first, 5)
    two = one.model_copy(update={"message_index": 4, "prompt_ids": again})
    return one, two


def score(passed: bool) -> Score:
    outcomes = ("passed", "passed", "passed" if passed else "failed")
    tests = tuple(
        TestResult(
            name=f"assert largest([{n}, 2]) == 2",
            outcome=outcome,
            message="" if outcome == "passed" else "AssertionError: got None",
            duration=0.01,
        )
        for n, outcome in enumerate(outcomes)
    )
    value = sum(test.outcome == "passed" for test in tests) / 3
    return Score(
        value=value,
        parts={"tests": value},
        tests=tests,
        passed=passed,
        outcome="passed" if passed else "tests_failed",
        note="" if passed else "1 of 3 tests fails",
    )


def seconds(step: int) -> dict[str, float]:
    return {"time/rollouts": 20.0, "time/training": 8.0 + step, "time/step": 28.0 + step}


def sandboxes(made: list[TrajectoryGroup]) -> dict[str, float]:
    count = sum(len(one.trajectories) for one in made)
    figures = {
        "sandboxes_created": count,
        "executions": 2 * count,
        "exec_completed_ok": 2 * count - 3,
        "exec_completed_nonzero": 2,
        "exec_failures": 1,
        "avg_startup_seconds": 0.3,
        "min_startup_seconds": 0.1,
        "max_startup_seconds": 0.9,
    }
    return {f"cwsandbox/{name}": float(value) for name, value in figures.items()}


def add_tokenizer(folder: Path) -> None:
    """The file that transformers leaves beside a checkpoint, as far as it is needed."""
    place = folder / "checkpoints" / "step_6"
    place.mkdir(parents=True)
    words = {word: id for id, word in enumerate(VOCABULARY[:-1])}
    special = {"id": len(words), "content": VOCABULARY[-1], "special": True}
    tokenizer = {
        "added_tokens": [special],
        "model": {"type": "BPE", "vocab": words},
        "decoder": {"type": "ByteLevel"},
    }
    (place / "tokenizer.json").write_text(json.dumps(tokenizer))


HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "<!--<script>",
    "<img src=x onerror='window.hacked = 3'>",
    "<svg onload=window.hacked=4>",
    "javascript:window.hacked=5",
    ']]>" onmouseover="window.hacked=6" \'',
    "{{ 7 * 7 }} {% raw %}",
    "\u202egnp.exe \u2066x\u2069 \u200b",
    "nul \x00 bell \x07 escape \x1b[31m",
    "\U000e0041 tag, \u2028 line",
)
EVIL = " ".join(HOSTILE)


def hostile_run(path):
    """Every text that a model, a tool, a task or a library may write is hostile."""
    folder = create(path)
    folder.note(name=EVIL, status="failed", error=EVIL, command=[EVIL], versions={EVIL: EVIL})
    call = {"name": EVIL, "arguments": json.dumps({EVIL: f"{EVIL}\n", "code": EVIL})}
    row = {
        "rollout_id": EVIL,
        "group_id": EVIL,
        "task_id": EVIL,
        "phase": EVIL,
        "step": 1,
        "messages": [
            {"role": EVIL, "content": EVIL, "reasoning_content": EVIL},
            {"role": "user", "content": f"```python\n{EVIL}\n```\n<answer>{EVIL}</answer>"},
            {"role": "assistant", "content": "\\ud800"},
            {"role": "assistant", "tool_calls": [{"id": "1", "function": call}]},
            {"role": "assistant", "tool_calls": [{"id": "2", "function": {"arguments": EVIL}}]},
            {"role": "tool", "tool_call_id": "1", "content": EVIL},
        ],
        "turns": [{"prompt_ids": [0], "completion_ids": [1], "logprobs": [-1.0]}],
        "submission": EVIL,
        "stop_reason": EVIL,
        "outcome": EVIL,
        "note": EVIL,
        "reward": 0.5,
        "reward_parts": {EVIL: 1.0},
        "tests": [{"name": EVIL, "outcome": EVIL, "message": EVIL}],
        "tool_calls": {EVIL: 1},
    }
    failure = {"boundary": EVIL, "type": EVIL, "message": EVIL, "traceback": EVIL}
    lost = row | {"rollout_id": "lost", "failure": failure, "reward": None}
    lines = [json.dumps(one).replace('"\\\\ud800"', '"\\ud800"') for one in (row, lost)]
    (path / "trajectories").mkdir()
    (path / "trajectories" / "step_1.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (path / "failures.jsonl").write_text(json.dumps(failure) + "\n")
    for step in (1, 2):
        folder.add_metrics(step, {f"{EVIL}/x": 1.0, "costs/</script>": 2.0})
    add_tokenizer(path)
    tokenizer = path / "checkpoints" / "step_6" / "tokenizer.json"
    spoken = {"added_tokens": [{"id": 1, "content": EVIL}], "model": {"vocab": {}}}
    tokenizer.write_text(json.dumps(spoken))
    return folder


def blocks(path):
    """The compressed blocks of a report, inflated, by name."""
    found = re.findall(r'octet-stream" id="([\w-]+)">([^<]*)<', path.read_text())
    return {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in found}
