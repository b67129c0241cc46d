"""What a run was made of, for its manifest: code, versions, data, machine."""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from rlpipe.config.schema import Experiment
from rlpipe.policies.base import Policy
from rlpipe.types import Task

PACKAGES = (
    "rlpipe",
    "hydra-core",
    "omegaconf",
    "pydantic",
    "httpx",
    "openai",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "openpipe-art",
    "tinker",
    "cwsandbox",
    "wandb",
    "tensorboard",
    "mlflow-skinny",
    "trackio",
)

NOT_MEANING = {"name", "dry_run", "resume", "output_root"}
"""Parts of a spec that do not change what it means."""


def facts(experiment: Experiment, argv: Iterable[str] = sys.argv) -> dict[str, Any]:
    """Everything that can be said before the run starts."""
    return {
        "name": experiment.name,
        "mode": experiment.mode,
        "seed": experiment.seed,
        "spec_digest": spec_digest(experiment),
        "command": list(argv),
        "git": _git(),
        "versions": _versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "sandbox": {"kind": experiment.sandbox.kind, "image": experiment.sandbox.image},
        "model": _model(experiment.policy),
        "teacher": _model(experiment.teacher) if experiment.teacher else None,
    }


def _model(policy: Policy) -> dict[str, str]:
    names = ("model", "revision")
    return {name: getattr(policy, name) for name in names if hasattr(policy, name)}


def spec_digest(experiment: Experiment) -> str:
    """The same for two specs that mean the same run."""
    text = experiment.model_dump_json(exclude=NOT_MEANING)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(tasks: Iterable[Task]) -> str:
    """The same for two data sets with equal tasks in equal order."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(task.model_dump_json().encode())
    return digest.hexdigest()[:16]


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git() -> dict[str, Any] | None:
    """Commit of the working folder and whether it has changes; None outside a repository."""
    try:
        commit = _ask_git("rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_ask_git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _ask_git(*args: str) -> str:
    done = subprocess.run(["git", *args], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
