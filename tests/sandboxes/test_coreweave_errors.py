"""Every error of CoreWeave's SDK in rlpipe's words."""

import pytest

from rlpipe.errors import (
    SandboxAuthError,
    SandboxConfigError,
    SandboxGone,
    SandboxStartError,
    SandboxUnavailable,
)

pytest.importorskip("cwsandbox", reason="needs: pip install 'rlpipe[coreweave]'")

from cwsandbox import exceptions as sdk

from rlpipe.sandboxes._coreweave.errors import file_error, translated


@pytest.mark.parametrize(
    ("error", "kind", "at_start"),
    [
        (sdk.SandboxUnavailableError("x"), SandboxUnavailable, SandboxUnavailable),
        (sdk.SandboxResourceExhaustedError("x"), SandboxUnavailable, SandboxUnavailable),
        (sdk.SandboxRequestTimeoutError("x"), SandboxUnavailable, SandboxUnavailable),
        (sdk.SandboxTimeoutError("x"), SandboxUnavailable, SandboxStartError),
        (sdk.SandboxNotRunningError("x"), SandboxGone, SandboxStartError),
        (sdk.SandboxNotFoundError("x"), SandboxGone, SandboxStartError),
        (sdk.SandboxTerminatedError("x"), SandboxGone, SandboxStartError),
        (sdk.SandboxFailedError("x"), SandboxGone, SandboxStartError),
        (sdk.SandboxExecutionError("x"), SandboxUnavailable, SandboxUnavailable),
        (sdk.SandboxError("Internal error from Core"), SandboxUnavailable, SandboxUnavailable),
        (sdk.CWSandboxAuthenticationError("x"), SandboxAuthError, SandboxAuthError),
        (sdk.SandboxValidationError("x"), SandboxConfigError, SandboxConfigError),
    ],
)
def test_each_error_of_the_sdk(error, kind, at_start):
    assert type(translated(error)) is kind
    assert type(translated(error, starting=True)) is at_start


def test_the_reason_of_a_failed_start_is_told():
    error = sdk.SandboxFailedError("it failed", status_reason="ImagePullBackOff")
    assert "ImagePullBackOff" in str(translated(error, starting=True))


@pytest.mark.parametrize(
    ("reason", "text", "kind"),
    [
        ("CWSANDBOX_FILE_NOT_FOUND", "", "not_found"),
        ("CWSANDBOX_FILE_IS_DIRECTORY", "", "is_directory"),
        ("CWSANDBOX_FILE_PERMISSION_DENIED", "", "permission"),
        ("CWSANDBOX_FILE_TOO_LARGE", "", "too_large"),
        ("CWSANDBOX_FILE_IO_FAILED", "", "io"),
        (None, "sh: 3: cannot create /x: Is a directory", "is_directory"),
        (None, "sh: 3: cannot create /x: Directory nonexistent", "not_found"),
    ],
)
def test_each_file_error_of_the_sdk(reason, text, kind):
    error = file_error("/x", sdk.SandboxFileError(text, reason=reason), sandbox_id="s")
    assert (error.kind, error.path) == (kind, "/x")
    lost = sdk.SandboxFileError("x", reason="CWSANDBOX_FILE_TRUNCATED")
    assert isinstance(file_error("/x", lost, sandbox_id="s"), SandboxUnavailable)
