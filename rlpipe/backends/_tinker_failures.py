"""What the SDK raises when the service fails, under our own names.

The SDK tries again by itself what could pass, for minutes; what it raises, it has given up on.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import tinker  # noqa: TID253

from rlpipe.errors import ContextOverflow, ProviderError, RunError

PASSING = (408, 409, 429)
"""Statuses below 500 that may go away by themselves."""

LONGEST = 300
"""Characters of the service's own words that an error repeats."""

OVERFLOW = re.compile(
    r"context (?:length|window|size)|(?:prompt|input|sequence)\w* (?:is |are )?too long"
    r"|maximum (?:sequence|prompt|model) length",
    re.IGNORECASE,
)
"""What a refusal says when a conversation is too long for the model."""


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Outside rollouts a failure ends the run."""
    try:
        yield
    except TimeoutError as error:
        raise RunError(f"{what}: no answer") from error
    except Exception as error:
        fault = _at_fault(error)
        if fault is None:
            raise
        raise RunError(f"{what}: {said(fault)}") from error


@contextmanager
def failures() -> Iterator[None]:
    """In rollouts a failure is data, tried again where that may help."""
    try:
        yield
    except Exception as error:
        fault = _at_fault(error)
        if fault is None:
            raise
        raise _named(fault) from error


def said(error: Exception) -> str:
    """An error of the SDK in one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:LONGEST]}" if words else type(error).__name__


def _at_fault(error: Exception) -> Exception | None:
    """What the service did; the SDK hands some of it on as the cause of a ValueError."""
    for found in (error, error.__cause__):
        if isinstance(found, tinker.TinkerError | httpx.HTTPError):
            return found
    return None


def _named(error: Exception) -> ProviderError:
    if isinstance(error, tinker.APIStatusError):
        return _refusal(error)
    if isinstance(error, tinker.RequestFailedError):
        if OVERFLOW.search(error.message):
            return ContextOverflow(error.message)
        ours = str(error.category) == "user"
        return ProviderError(f"the request failed: {error.message}", retryable=not ours)
    lost = isinstance(error, tinker.APIConnectionError | httpx.HTTPError)
    return ProviderError(said(error), retryable=lost)


def _refusal(error: Any) -> ProviderError:
    status: int = error.status_code
    problem = f"the service answers HTTP {status}: {error.message[:LONGEST]}"
    if status in (400, 413, 422) and OVERFLOW.search(error.message):
        return ContextOverflow(problem)
    return ProviderError(
        problem,
        retryable=status in PASSING or status >= 500,
        retry_after=_pause(error.response.headers.get("retry-after")),
    )


def _pause(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:  # a date, which the collector's own pauses stand in for
        return None
