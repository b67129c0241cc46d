"""One CoreWeave sandbox: the protocol's calls on a sandbox of the SDK."""

import asyncio
import logging
import posixpath
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlpipe.errors import SandboxError, SandboxFileError, SandboxGone, SandboxUnavailable
from rlpipe.sandboxes._coreweave import scripts
from rlpipe.sandboxes._coreweave.errors import file_error, translated
from rlpipe.sandboxes._coreweave.execution import Ended, Execution
from rlpipe.sandboxes._marked import MARK, kill_marked
from rlpipe.sandboxes._python import python_command, refused
from rlpipe.sandboxes.base import ExecResult, Sandbox, SandboxSpec, SandboxStats

log = logging.getLogger(__name__)

EXECUTIONS_AT_ONCE = 8
FILE_SECONDS = 300.0
SHORT_SECONDS = 15.0
SHORT_OUTPUT = 1 << 14
LARGEST_FILE = 256 << 20
STOP_SECONDS = 60.0
ATTEMPTS = 5
PAUSES = (0.1, 0.4, 1.6, 6.4)
"""Seconds between the attempts at what may be repeated."""

FILE_STATUSES: dict[int, SandboxFileError.Kind] = {
    scripts.NOT_FOUND: "not_found",
    scripts.IS_DIRECTORY: "is_directory",
    scripts.PERMISSION: "permission",
    scripts.TOO_LARGE: "too_large",
}


class CoreWeaveSandbox(Sandbox):
    """A sandbox of CoreWeave's."""

    def __init__(
        self, spec: SandboxSpec, machine: Any, on_end: Callable[["CoreWeaveSandbox"], None]
    ) -> None:
        self.id = ""
        self.spec = spec
        self.stats = SandboxStats()
        self._machine = machine
        self._on_end = on_end
        self._slots = asyncio.Semaphore(EXECUTIONS_AT_ONCE)
        self._creation: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Future[Any]] = set()
        self._clearing: set[asyncio.Task[None]] = set()

    async def boot(self) -> None:
        """Create it and wait until it runs."""
        from cwsandbox import exceptions as sdk

        # Not to be interrupted: what is created without that its id is known can't be stopped.
        self._creation = asyncio.ensure_future(self._create())
        await asyncio.shield(self._creation)
        try:
            await self._machine
        except sdk.CWSandboxError as error:
            raise translated(error, sandbox_id=self.id, starting=True) from error

    async def _create(self) -> None:
        # The SDK sends the same request id again, so that none is created twice.
        await _repeated(lambda: self._machine.start(), starting=True)
        self.id = str(self._machine.sandbox_id)

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        words = ["bash", "-c", command] if isinstance(command, str) else command
        folder = posixpath.join(self.spec.workdir, cwd or "")
        return await self._execute(words, folder, env or {}, stdin, timeout, max_output)

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        words, stdin = python_command(code, stdin)
        return await self._execute(words, self.spec.workdir, {}, stdin, timeout, max_output)

    async def _execute(
        self,
        words: Sequence[str],
        folder: str,
        env: Mapping[str, str],
        stdin: bytes,
        timeout: float | None,
        max_output: int | None,
    ) -> ExecResult:
        bounds = self.spec.bounds(timeout, max_output)
        async with self._slots:
            return await self.stats.count(self._result(words, folder, env, stdin, *bounds))

    async def _result(
        self,
        words: Sequence[str],
        folder: str,
        env: Mapping[str, str],
        stdin: bytes,
        seconds: float,
        limit: int,
    ) -> ExecResult:
        refusal = refused([*words, folder, *env.values()])
        if refusal is not None:
            return ExecResult("exited", 126, "", f"{words[0]}: {refusal}\n")
        mark = secrets.token_hex(8)
        entered = scripts.enter(
            words,
            folder=folder,
            variables={**env, MARK: mark},
            stdin=len(stdin) if stdin else scripts.NO_STDIN,
        )
        try:
            ended = await self._run(entered, stdin, seconds, limit)
        except asyncio.CancelledError:
            if self._ending is None:
                _keep(self._clear(mark), self._clearing)
            raise
        if ended.outcome in ("timeout", "output_limit"):
            await self._clear(mark)
        if ended.outcome == "killed":
            await self._check_alive()
        return ended.result()

    async def _run(self, words: list[str], stdin: bytes, seconds: float, limit: int) -> Ended:
        if self._ending is not None:
            raise self._gone()
        machine, readable = self._machine, [_readable(word) for word in words]
        execution = Execution(machine, sandbox_id=self.id, seconds=seconds, limit=limit)
        call = asyncio.ensure_future(execution.run(readable, stdin))
        self._calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._ending is None or (task and task.cancelling()):
                raise
            raise self._gone() from None
        finally:
            self._calls.discard(call)

    async def _clear(self, mark: str) -> None:
        """Kill what an execution has left: the end of a call need not end its processes."""
        words = scripts.enter(kill_marked(mark), folder="/", variables={})
        with suppress(SandboxError):
            await self._run(words, b"", SHORT_SECONDS, SHORT_OUTPUT)

    async def _check_alive(self) -> None:
        """Raise where it was the sandbox that ended, which kills its programs too."""
        words = scripts.enter(["true"], folder="/", variables={})
        await self._run(words, b"", SHORT_SECONDS, SHORT_OUTPUT)

    async def read_file(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        # The SDK's own reading has no bound of ours, and what is read is the agent's.
        words = scripts.enter(
            scripts.read(self._absolute(path), max_bytes), folder="/", variables={}
        )
        async with self._slots:
            ended = await self._run(words, b"", FILE_SECONDS, max_bytes + 1 + SHORT_OUTPUT)
        if ended.outcome != "exited" or ended.exit_code != 0:
            kind = FILE_STATUSES.get(ended.exit_code or 0, "io")
            said = ended.stderr.decode("utf-8", "replace") if kind == "io" else ""
            raise SandboxFileError(path, kind, said.strip())
        if len(ended.stdout) > max_bytes:
            raise SandboxFileError(path, "too_large")
        if len(ended.stdout) < int(ended.stderr.split()[0]):
            message = f"{path}: only a part of it came"
            raise SandboxUnavailable(
                message, retryable=True, provider="coreweave", sandbox_id=self.id
            )
        return ended.stdout

    async def write_file(self, path: str, data: bytes | str) -> None:
        content = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        target = self._absolute(path)
        if len(content) > LARGEST_FILE:
            raise SandboxFileError(path, "too_large")
        async with self._slots:
            try:
                await self._write(target, content)
            except SandboxFileError as error:
                if error.kind not in ("not_found", "io"):
                    raise
                # Only then, since most files are written into a folder that exists.
                words = ["mkdir", "-p", posixpath.dirname(target)]
                entered = scripts.enter(words, folder="/", variables={})
                await self._run(entered, b"", SHORT_SECONDS, SHORT_OUTPUT)
                await self._write(target, content)

    async def _write(self, path: str, content: bytes) -> None:
        from cwsandbox import exceptions as sdk

        if self._ending is not None:
            raise self._gone()
        try:
            await self._machine.write_file(path, content, timeout_seconds=FILE_SECONDS)
        except sdk.SandboxFileError as error:
            raise file_error(path, error, sandbox_id=self.id) from error
        except sdk.CWSandboxError as error:
            raise translated(error, sandbox_id=self.id) from error

    def _absolute(self, path: str) -> str:
        if refused([path]) or _readable(path) != path:
            raise SandboxFileError(path, "not_found", "no name that a file can have")
        return posixpath.join(self.spec.workdir, path)

    def _gone(self) -> SandboxGone:
        return SandboxGone("the sandbox is stopped", provider="coreweave", sandbox_id=self.id)

    async def stop(self) -> None:
        self.end()
        assert self._ending is not None
        await asyncio.shield(self._ending)

    def end(self) -> None:
        """Begin to stop it, in the background."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        for call in (*self._calls, *self._clearing):
            call.cancel()
        if self._creation is not None:
            await asyncio.wait([self._creation])
        if await stop_machine(self._machine):
            self._on_end(self)


async def stop_machine(machine: Any) -> bool:
    """Stop a sandbox of the SDK; whether it could be."""
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await _repeated(lambda: machine.stop(graceful_shutdown_seconds=0, missing_ok=True))
    except (SandboxError, TimeoutError) as error:
        # Closing the session tries again, and its lifetime ends it in any case.
        log.warning("sandbox %s could not be stopped: %s", machine.sandbox_id, error)
        return False
    return True


async def _repeated(call: Callable[[], Awaitable[Any]], *, starting: bool = False) -> None:
    """Make a call that may be repeated, again while the service is unavailable.

    Raises:
        SandboxError: it failed for another reason, or too often.
    """
    from cwsandbox.exceptions import CWSandboxError

    for pause in (*PAUSES, None):
        try:
            await call()
            return
        except CWSandboxError as error:
            found = translated(error, starting=starting)
            if pause is None or not isinstance(found, SandboxUnavailable):
                raise found from error
        await asyncio.sleep(max(pause, found.retry_after or 0.0))


def _keep(work: Coroutine[Any, Any, None], tasks: "set[asyncio.Task[None]]") -> None:
    """Let it run in the background, held by `tasks` until it ends."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _readable(word: str) -> str:
    """What a message of the service can hold of a word."""
    return word.encode("utf-8", "replace").decode()
