"""A task that takes two turns and a sandbox: the key is in the file `blue`, and only there."""

import json
import random
from pathlib import Path

from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Task, Trajectory

QUESTION = "Find the key."
FILES = ("red", "green", "blue", "white")
KEPT_IN = "blue"


def write(path: Path, tasks: int) -> Path:
    """A data set of tasks that differ in what their files say: four different digits."""
    rng = random.Random(7)
    rows = []
    for number in range(tasks):
        digits = rng.sample(range(10), len(FILES))
        files = dict(zip(FILES, map(str, digits), strict=True))
        rows.append({"id": f"key-{number}", "prompt": QUESTION, "files": files})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def found(task: Task, trajectory: Trajectory, sandbox: Sandbox) -> float:
    """1 where the last word is the key."""
    return float(trajectory.answer == f"done {task.files[KEPT_IN]}")


def overrides(tasks: Path, model: Path, url: str) -> tuple[str, ...]:
    """The settings that every run of these tests shares."""
    return (
        "backend=tinker",
        f"backend.base_url={url}",
        "policy=trainable",
        f"policy.model={model}",
        "dataset=jsonl",
        f"dataset.path={tasks}",
        "dataset.held_out=4",
        "tools=[read_file]",
        "reward=python",
        "reward.function=tests.tinker.task:found",
        "rollout.max_turns=3",
        "rollout.max_tokens=40",
        "train.lora_rank=8",
        "train.groups_per_batch=4",
        "train.group_size=8",
        "train.learning_rate=3e-3",
    )
