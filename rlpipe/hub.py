"""Ask the Hugging Face hub whether something is there."""

import os
from typing import Literal


def problem(kind: Literal["model", "dataset"], name: str, revision: str | None) -> str | None:
    """Why a repository cannot be read at that revision, in one sentence; None when it can be."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        return "asking the hub needs: pip install 'rlpipe[hub]'"
    where = f"{name!r} at {revision}" if revision else repr(name)
    try:
        HfApi(endpoint=os.environ.get("HF_ENDPOINT")).repo_info(
            name, repo_type=kind, revision=revision, timeout=10
        )
    except Exception as error:  # its client raises what its transport does, too
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return f"the hub does not give {where}: {type(error).__name__}: {reason}"
    return None
