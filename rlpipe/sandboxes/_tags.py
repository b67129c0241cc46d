"""Labels by which a run's sandboxes are found again, here and in a cluster's own tools."""

import os
import re
from collections.abc import Mapping

LONGEST = 63
"""Characters of a value: what Kubernetes takes as a label's."""

OURS = "rlpipe"
"""What every sandbox of every run carries."""


def tag(name: str, value: str) -> str:
    """`name:value`, with the value cut and spelt so that every provider takes it.

    Example: `tag("model", "Qwen/Qwen3-8B")` is `model:qwen-qwen3-8b`.
    """
    safe = re.sub(r"[^a-z0-9._-]+", "-", value.lower())
    # The end of a long path tells more than its beginning.
    return f"{name}:{safe[-LONGEST:].strip('-._') or 'none'}"


def run_tag(run: str) -> str:
    """The one that no other run has."""
    return tag("run", run)


def run_tags(
    *, run: str, project: str, model: str, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """What every sandbox of a run carries, from the run and from where it was started."""

    def said(name: str, otherwise: str) -> str:
        return environ.get(name) or otherwise

    return (
        OURS,
        run_tag(run),
        tag("project", said("RLPIPE_PROJECT", project)),
        tag("training-run", said("TRAINING_RUN_ID", "local")),
        tag("slurm-job", said("SLURM_JOB_ID", "interactive")),
        tag("model", model),
        tag("env", said("RLPIPE_ENV", "dev")),
    )
