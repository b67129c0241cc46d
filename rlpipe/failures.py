"""Errors turned into data, each attributed to the boundary that it crossed."""

import random
import traceback

from rlpipe.errors import InfrastructureError
from rlpipe.types import Failure

LONGEST_PAUSE = 30.0
"""Seconds between two attempts, unless the service asks for more."""


def failure_of(error: Exception, attempt: int = 1, *, grading: bool = False) -> Failure:
    """Turn an error into data.

    Args:
        grading: whether the rollout itself had come to its end.
    """
    if not isinstance(error, InfrastructureError):
        return Failure(
            boundary="grader" if grading else "rollout",
            type=type(error).__name__,
            message=str(error),
            attempt=attempt,
            grading=grading,
            traceback=_trace(error),
        )
    cause = error.__cause__
    # A tool's or a reward's own code broke, which may be a bug.
    unknown = (
        cause is not None
        and not isinstance(cause, InfrastructureError)
        and error.boundary in ("tool", "grader")
    )
    return Failure(
        boundary=error.boundary,
        type=type(cause if unknown else error).__name__,
        message=str(error),
        attempt=attempt,
        retryable=error.retryable,
        retry_after=error.retry_after,
        grading=grading,
        traceback=_trace(error) if unknown else None,
    )


def late(timeout: float, attempt: int = 1, *, grading: bool = False) -> Failure:
    """The failure of a rollout whose time is up."""
    message = f"not done after rollout.timeout={timeout:g} seconds"
    return Failure(
        boundary="rollout", type="timeout", message=message, attempt=attempt, grading=grading
    )


def delay(failure: Failure, attempt: int, seed: int) -> float:
    """Seconds before the next attempt: what the service asked for, or 1, 2, 4 ... with jitter."""
    backoff = min(LONGEST_PAUSE, 2.0 ** (attempt - 1))
    jittered = backoff * random.Random(f"{seed} {attempt}").uniform(0.5, 1.0)
    return max(failure.retry_after or 0.0, jittered)


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))
