"""A container without an agent: each execution is a process that the engine starts.

A program's time starts when it does. What it started is found by a variable in its environment,
so that a process which clears that one outlives its execution, though never its sandbox.
"""

import asyncio
import errno
import os
import posixpath
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rlpipe.errors import SandboxError, SandboxFileError, SandboxGone, SandboxUnavailable
from rlpipe.sandboxes._agent.job import STDERR, STDOUT
from rlpipe.sandboxes._agent_sandbox import FILE_ERRORS, FILE_SECONDS
from rlpipe.sandboxes._box import encode
from rlpipe.sandboxes._container import Container
from rlpipe.sandboxes._engine import Engine, complaint
from rlpipe.sandboxes._engine_execution import CHUNK, Execution
from rlpipe.sandboxes._living import LivingSandbox
from rlpipe.sandboxes._marked import MARK, kill_marked
from rlpipe.sandboxes._python import refused
from rlpipe.sandboxes.base import ExecResult

BEGIN = 'printf "\\0" >&2; cd -- "$1" || exit 126; shift; exec "$@"'
"""Says that it runs, which tells a program's own failure from the engine's."""

READ = (
    '[ -d "$1" ] && exit 121; [ -e "$1" ] || exit 102; [ -r "$1" ] || exit 113; head -c "$2" "$1"'
)
# All of the input is read even where it has no place: Podman loses what a command says that leaves
# some of it.
WRITE = (
    'if [ -d "$1" ]; then cat >/dev/null; exit 121; fi; '
    'mkdir -p "${1%/*}" && cat >"$1"; status=$?; cat >/dev/null; exit $status'
)
KILL_ATTEMPTS = 5
FIRST_ERROR = 100  # exit statuses of these scripts from here on are an errno and this
END_SECONDS = 10.0
LOST = (125, 137, 255)  # what the engine's program ends with when the container is gone, too


class PlainSandbox(LivingSandbox):
    """The protocol of sandboxes in calls of the engine."""

    provider = "docker"
    _engine: Engine
    _container: Container

    def begin(self, engine: Engine, container: Container) -> None:
        self._engine = engine
        self._container = container
        self.live()

    async def run(
        self,
        words: Sequence[str],
        folder: str,
        env: Mapping[str, str],
        stdin: bytes,
        seconds: float,
        limit: int,
    ) -> ExecResult:
        try:
            execution = await self._execute([folder, *words], env, stdin, seconds, limit)
        except ValueError as error:
            return ExecResult("exited", 126, "", f"{error}\n")
        return execution.result()

    async def read_file(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        output = await self._script(READ, path, str(max_bytes + 1), limit=max_bytes + CHUNK)
        if len(output) > max_bytes:
            raise SandboxFileError(path, "too_large")
        return output

    async def write_file(self, path: str, data: bytes | str) -> None:
        await self._script(WRITE, path, stdin=encode(data) if isinstance(data, str) else data)

    async def close(self) -> None:
        await self._container.end()

    async def _script(
        self, script: str, path: str, *words: str, stdin: bytes = b"", limit: int = CHUNK
    ) -> bytes:
        """Have a script do something with a file; what it printed."""
        command = ["/", "sh", "-c", script, "sh", posixpath.join(self.spec.workdir, path), *words]
        async with self.slots:
            try:
                execution = await self._execute(command, {}, stdin, FILE_SECONDS, limit)
            except ValueError as error:
                raise SandboxFileError(path, "not_found") from error
        if execution.outcome != "exited":
            raise SandboxFileError(path, "io", "interrupted")
        if execution.status:
            raise _file_error(path, execution)
        return bytes(execution.output.streams[STDOUT])

    async def _execute(
        self, words: list[str], env: Mapping[str, str], stdin: bytes, seconds: float, limit: int
    ) -> Execution:
        """Run a command to its end.

        Raises:
            ValueError: no argument can hold one of its words.
        """
        mark = secrets.token_hex(12)
        if self.status == "stopped":
            raise self._gone()
        execution = Execution(await self._launch(words, env, mark, bool(stdin)), limit)
        finishing = asyncio.ensure_future(execution.finish(stdin))
        try:
            await execution.await_end(finishing, seconds)
            if not finishing.done():
                await self._kill(mark)
            async with asyncio.timeout(END_SECONDS):
                await finishing
        except TimeoutError:
            raise self._lost("the engine does not answer") from None
        finally:
            if not finishing.done():
                finishing.cancel()
                await asyncio.shield(self._abandon(execution, mark))
        if execution.begun is None or execution.status in LOST:
            await self._check(execution)
        return execution

    async def _launch(
        self, words: list[str], env: Mapping[str, str], mark: str, interactive: bool
    ) -> asyncio.subprocess.Process:
        plan = self._container.plan
        variables = {**plan.environment(), **env, MARK: mark}
        arguments = [
            *("exec", *(["--interactive"] if interactive else [])),
            *("--user", f"{plan.user}:{plan.user}"),
            *(word for item in variables.items() for word in ("--env", "=".join(item))),
            *(plan.name, "sh", "-c", BEGIN, "sh", *words),
        ]
        encoded = [word.encode() for word in arguments]  # not half a character
        if (refusal := refused(arguments)) is not None:
            raise ValueError(refusal)
        with self.on_this_machine():
            return await asyncio.create_subprocess_exec(
                self._engine.name,
                *encoded,
                stdin=asyncio.subprocess.PIPE if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )

    async def _kill(self, mark: str) -> None:
        """Kill everything that carries the mark in its environment."""
        plan = self._container.plan
        user, command = f"{plan.user}:{plan.user}", kill_marked(mark)
        for _ in range(KILL_ATTEMPTS):  # the engine itself may not always find room
            done = await self._engine.call("exec", "--user", user, plan.name, *command)
            if done.status == 0:
                return

    async def _abandon(self, execution: Execution, mark: str) -> None:
        if self.status == "running":
            with suppress(SandboxError):
                await self._kill(mark)
        with suppress(ProcessLookupError):
            execution.process.kill()
        await execution.process.wait()

    async def _check(self, execution: Execution) -> None:
        """Raise an error where the container or its engine, not a program, is to blame."""
        if self.status == "stopped" or not await self._container.running():
            raise self._lost("the container ended")
        if execution.begun is None and not await self._container.crowded():
            raise SandboxUnavailable(
                f"the engine ran no program: {complaint(execution.said) or execution.status}",
                retryable=True,
                provider=self.provider,
                sandbox_id=self.id,
            )

    def _lost(self, reason: str) -> SandboxGone:
        self.on_death(reason)
        return self._gone()

    def _gone(self) -> SandboxGone:
        return SandboxGone(self.reason, provider=self.provider, sandbox_id=self.id)


def _file_error(path: str, execution: Execution) -> SandboxFileError:
    """The error of a script that failed, by its exit status or by what its programs said."""
    said = execution.text(STDERR) or execution.said
    reasons = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EISDIR)
    number = next((one for one in reasons if os.strerror(one) in said), 0)
    if execution.status > FIRST_ERROR:
        number = execution.status - FIRST_ERROR
    kind = FILE_ERRORS.get(number, "io")
    return SandboxFileError(path, kind, complaint(said) if kind == "io" else "")
