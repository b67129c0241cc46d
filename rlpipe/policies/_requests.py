"""A request to a model service: tried again where that helps, and its failures given a name."""

import email.utils
import logging
import math
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from rlpipe.errors import ContextOverflow, ProviderError

if TYPE_CHECKING:
    import httpx  # 100 ms, spared where no request is made

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
TRANSIENT = (408, 409, 429)
"""Statuses below 500 that may go away by themselves."""

SHOWN = 300
"""Characters of a server's own words that an error message repeats."""

OVERFLOW = re.compile(
    "|".join(
        (
            r"context_length_exceeded",  # OpenAI's code
            r"exceed_context_size_error",  # llama.cpp's type
            r"maximum (?:context|model|prompt) length",  # OpenAI, vLLM, SGLang, Mistral, xAI
            r"context length is only",  # vLLM
            r"too long to fit into the model",  # vLLM
            r"longer than the model's context length",  # SGLang
            r"exceed\w* .{0,40}context (?:size|window|length|limit)",  # llama.cpp, OpenAI
            r"context (?:size|window|length|limit) .{0,20}exceed",  # llama.cpp
            r"(?:prompt|input) is too long",  # Anthropic, Bedrock
            r"`inputs` tokens \+ `max_new_tokens` must be",  # TGI
        )
    ),
    re.IGNORECASE,
)
"""What servers say when a conversation is too long for the model."""


@dataclass(frozen=True, slots=True)
class Service:
    """A model service, as error messages name it."""

    url: str
    model: str
    key_variable: str
    key: str

    def quote(self, words: str) -> str:
        """A server's own words, short and without the key, which some servers repeat."""
        hidden = words.replace(self.key, "***")
        return hidden if len(hidden) <= SHOWN else f"{hidden[:SHOWN]}..."


async def retrying(
    attempt: Callable[[], Awaitable[Result]], max_retries: int, sleep: Sleep
) -> Result:
    """Await `attempt()`, again and again where it fails with a retryable error.

    Raises:
        ProviderError: the last attempt's, or the first that is not retryable.
    """
    for retry in range(max_retries):
        try:
            return await attempt()
        except ProviderError as error:
            if not error.retryable:
                raise
            pause = backoff(retry) if error.retry_after is None else error.retry_after
            log.info("retry %d of %d in %.1f s: %s", retry + 1, max_retries, pause, error)
        await sleep(pause)
    return await attempt()


def backoff(retry: int) -> float:
    """Seconds before that retry, counted from 0, where the server names none.

    Half of it is chance, so that rollouts which failed together do not come back together.
    """
    # 2.0 ** 1024 overflows, and the ceiling is reached long before.
    ceiling = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(retry, 16))
    return random.uniform(ceiling / 2, ceiling)


def requested_pause(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a server asks to be left alone for, or None where it names none.

    `now` is the time since the epoch, which a date is counted from.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    return seconds if seconds is not None else _until(text, now)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _until(date: str | None, now: float) -> float | None:
    try:
        then = email.utils.parsedate_to_datetime(date or "")
    except ValueError:
        return None
    # HTTP dates are in GMT even where they do not say so; Python would take local time.
    return max(0.0, (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp() - now)


def reason(error: Exception) -> str:
    """Why an answer cannot be read, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'answer'}: {first['msg']}"
    return str(error)


def refusal(service: Service, response: "httpx.Response", now: float) -> ProviderError:
    """The error that an HTTP status of 300 or more stands for."""
    status = response.status_code
    code, words = _explanation(response)
    said = f"HTTP {status}: {service.quote(words)}"
    if status in (401, 403):
        variable = f"the environment variable {service.key_variable}"
        return ProviderError(f"{service.url} wants a valid key in {variable} (HTTP {status})")
    if status == 404:
        return ProviderError(f"{service.url} does not serve the model {service.model!r} ({said})")
    if status != 429 and OVERFLOW.search(f"{code} {words}"):
        return ContextOverflow(f"the conversation is too long for {service.model!r} ({said})")
    # An account without credit is also told 429, and no wait fills it.
    passing = (status in TRANSIENT or status >= 500) and "insufficient_quota" not in code
    return ProviderError(
        f"{service.url} failed on the model {service.model!r} ({said})",
        retryable=passing,
        retry_after=requested_pause(response.headers, now) if passing else None,
    )


def _explanation(response: "httpx.Response") -> tuple[str, str]:
    """The code and the message of an error body, in the forms that servers are known to use."""
    try:
        body: Any = response.json()
    except (ValueError, RecursionError):
        return "", response.text
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return "", str(error)
    words = error.get("message") or error.get("detail") or response.text
    return f"{error.get('code')} {error.get('type')}", str(words)
