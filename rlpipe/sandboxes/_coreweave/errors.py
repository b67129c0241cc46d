"""What the SDK raises, told in rlpipe's words."""

from datetime import timedelta
from typing import Any

from rlpipe.errors import (
    SandboxAuthError,
    SandboxConfigError,
    SandboxError,
    SandboxFileError,
    SandboxGone,
    SandboxStartError,
    SandboxUnavailable,
)

_FILE_REASONS: dict[str, SandboxFileError.Kind] = {
    "CWSANDBOX_FILE_NOT_FOUND": "not_found",
    "CWSANDBOX_FILE_IS_DIRECTORY": "is_directory",
    "CWSANDBOX_FILE_PERMISSION_DENIED": "permission",
    "CWSANDBOX_FILE_TOO_LARGE": "too_large",
    "CWSANDBOX_FILE_IO_FAILED": "io",
}

_FILE_WORDS: dict[str, SandboxFileError.Kind] = {
    "no such file": "not_found",
    "nonexistent": "not_found",
    "not a directory": "not_found",
    "is a directory": "is_directory",
    "permission denied": "permission",
    "read-only file system": "permission",
}
"""How a shell says it, where the SDK wrote the file through one."""


def translated(error: Exception, *, sandbox_id: str = "", starting: bool = False) -> SandboxError:
    """The error of rlpipe for one of the SDK's."""
    kind, retryable = _kind(error, starting)
    reason = getattr(error, "status_reason", None)
    delay: timedelta | None = getattr(error, "retry_delay", None)
    return kind(
        f"{error} ({reason})" if reason and reason not in str(error) else str(error),
        retryable=retryable,
        retry_after=delay.total_seconds() if delay else None,
        provider="coreweave",
        sandbox_id=sandbox_id,
    )


def _kind(error: Exception, starting: bool) -> tuple[type[SandboxError], bool]:
    from cwsandbox import exceptions as sdk

    # Ahead of what is not running: an unavailable service is a subclass of that.
    busy = (
        sdk.SandboxUnavailableError,
        sdk.SandboxResourceExhaustedError,
        sdk.SandboxRequestTimeoutError,
    )
    ended = (
        sdk.SandboxNotFoundError,
        sdk.SandboxTerminatedError,
        sdk.SandboxFailedError,
        sdk.SandboxNotRunningError,
        sdk.SandboxTerminalStateUnavailableError,
    )
    if isinstance(error, busy):
        return SandboxUnavailable, True
    if isinstance(error, sdk.CWSandboxAuthenticationError):
        return SandboxAuthError, False
    if isinstance(error, sdk.CWSandboxValidationError):
        return SandboxConfigError, False
    if isinstance(error, ended):
        return (SandboxStartError if starting else SandboxGone), False
    if isinstance(error, sdk.SandboxTimeoutError):
        return (SandboxStartError if starting else SandboxUnavailable), True
    # Without a reason it was the transport, and a stream's own errors are the machinery's too.
    if getattr(error, "reason", None) is None or isinstance(error, sdk.SandboxExecutionError):
        return SandboxUnavailable, True
    return (SandboxStartError if starting else SandboxError), False


def file_error(path: str, error: Any, *, sandbox_id: str) -> SandboxError:
    """The error of rlpipe for the SDK's about a file."""
    from cwsandbox.exceptions import CWSandboxError

    # A large file goes through a stream, and the SDK wraps what happened to that.
    if error.reason is None and isinstance(error.__cause__, CWSandboxError):
        return translated(error.__cause__, sandbox_id=sandbox_id)
    kind = _FILE_REASONS.get(error.reason)
    if error.reason is not None and kind is None:  # cut short on its way
        message, name = str(error), "coreweave"
        return SandboxUnavailable(message, retryable=True, provider=name, sandbox_id=sandbox_id)
    if kind in (None, "io"):
        said = str(error).lower()
        kind = next((kind for words, kind in _FILE_WORDS.items() if words in said), "io")
    assert kind is not None
    return SandboxFileError(path, kind, str(error) if kind == "io" else "")
