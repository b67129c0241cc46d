"""A container without an agent: each execution is a process that the engine starts.

A program's time starts when it does. What it started is found by a variable in its environment,
so that a process which clears that one outlives its execution, though never its sandbox.
"""

import asyncio
import errno
import os
import posixpath
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rlpipe.errors import SandboxError, SandboxFileError, SandboxGone, SandboxUnavailable
from rlpipe.sandboxes._agent_sandbox import FILE_ERRORS, FILE_SECONDS
from rlpipe.sandboxes._box import encode
from rlpipe.sandboxes._container import Container
from rlpipe.sandboxes._engine import Engine, complaint
from rlpipe.sandboxes._living import LivingSandbox, arguments_of
from rlpipe.sandboxes.base import ExecResult, Outcome

MARK = "RLPIPE_EXECUTION"
BEGIN = 'printf "\\0" >&2; cd -- "$1" || exit 126; shift; exec "$@"'
"""Says that it runs, which tells a program's own failure from the engine's."""

READ = (
    '[ -d "$1" ] && exit 121; [ -e "$1" ] || exit 102; [ -r "$1" ] || exit 113; head -c "$2" "$1"'
)
WRITE = '[ -d "$1" ] && exit 121; mkdir -p "${1%/*}" && cat >"$1"'
KILL = (
    "for i in 1 2 3 4 5 6 7 8 9; do found=; for p in /proc/[0-9]*; do "
    'if grep -q "$1" "$p/environ" 2>/dev/null; then kill -9 "${p#/proc/}" && found=1; fi; done; '
    '[ "$found" ] || exit 0; done'
)
FIRST_ERROR = 100  # exit statuses of these scripts from here on are an errno and this
START_SECONDS = 60.0
END_SECONDS = 10.0
FLOOD_FACTOR, FLOOD_BYTES = 8, 1 << 20
CHUNK = 1 << 18
LOST = (125, 137, 255)  # what the engine's program ends with when the container is gone, too


@dataclass(slots=True)
class _Output:
    """What a program wrote, up to a limit."""

    limit: int
    parts: dict[str, bytearray] = field(default_factory=dict)
    produced: int = 0

    def take(self, name: str, data: bytes) -> None:
        self.produced += len(data)
        room = self.limit - sum(map(len, self.parts.values()))
        self.parts.setdefault(name, bytearray()).extend(data[: max(0, room)])

    def of(self, name: str) -> bytes:
        return bytes(self.parts.get(name, b""))

    @property
    def floods(self) -> bool:
        return self.produced > max(self.limit * FLOOD_FACTOR, FLOOD_BYTES)

    @property
    def truncated(self) -> bool:
        return self.produced > sum(map(len, self.parts.values()))


class _Execution:
    """One process that the engine starts in the container, and its client here."""

    def __init__(self, process: asyncio.subprocess.Process, limit: int) -> None:
        self.process = process
        self.output = _Output(limit)
        self.outcome: Outcome = "exited"
        self.status = 0
        self.complaint = b""
        """What the engine said before the program ran."""

        self.begun: float | None = None
        self.ended = 0.0
        self._began = asyncio.Event()
        self._flooded = asyncio.Event()

    async def await_end(self, finishing: "asyncio.Future[None]", seconds: float) -> None:
        """Wait until the program ends, its time is over, or it has written far too much.

        Raises:
            TimeoutError: it never began.
        """
        async with asyncio.timeout(START_SECONDS):
            await self._began.wait()
        flood = asyncio.ensure_future(self._flooded.wait())
        either: set[asyncio.Future[Any]] = {finishing, flood}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        flood.cancel()
        if not finishing.done():
            self.outcome = "output_limit" if self._flooded.is_set() else "timeout"

    async def finish(self, stdin: bytes) -> None:
        """Feed and gather until the program ends."""
        assert self.process.stdout
        assert self.process.stderr
        await asyncio.gather(
            self._feed(stdin),
            self._gather("output", self.process.stdout),
            self._gather("error", self.process.stderr),
        )
        self.status = await self.process.wait()
        self.ended = time.monotonic()
        self._began.set()

    async def _feed(self, data: bytes) -> None:
        pipe = self.process.stdin
        if pipe:
            with suppress(OSError):  # the program need not read it
                pipe.write(data)
                await pipe.drain()
            pipe.close()

    async def _gather(self, name: str, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(CHUNK):
            if name == "error" and self.begun is None:
                before, mark, data = data.partition(b"\0")
                self.complaint += before
                if mark:
                    self.begun = time.monotonic()
                    self._began.set()
            self.output.take(name, data)
            if self.output.floods:
                self._flooded.set()

    def result(self) -> ExecResult:
        if self.begun is None:  # the engine could start no process, for want of room
            return ExecResult("exited", 126, "", self.complaint.decode("utf-8", "replace"))
        outcome: Outcome = "killed" if self.killed else self.outcome
        return ExecResult(
            outcome=outcome,
            exit_code=self.status if outcome == "exited" else None,
            stdout=self.output.of("output").decode("utf-8", "replace"),
            stderr=self.output.of("error").decode("utf-8", "replace"),
            truncated=self.output.truncated,
            produced_bytes=self.output.produced,
            duration=self.ended - self.begun,
        )

    @property
    def killed(self) -> bool:
        return self.outcome == "exited" and self.status == 128 + signal.SIGKILL


class PlainSandbox(LivingSandbox):
    """The protocol of sandboxes in calls of the engine."""

    provider = "docker"
    _engine: Engine
    _container: Container

    def begin(self, engine: Engine, container: Container) -> None:
        self._engine = engine
        self._container = container
        self.live()

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
        seconds = self.spec.exec_timeout if timeout is None else timeout
        limit = self.spec.max_output if max_output is None else max_output
        folder = posixpath.join(self.spec.workdir, cwd or "")
        words = [folder, *arguments_of(command)]
        return await self.counted(lambda: self._run(words, env or {}, stdin, seconds, limit))

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        # Unbuffered, so that what it wrote before it is killed is kept.
        command = ["python3", "-I", "-u", "-c", code]
        return await self.exec(command, stdin=stdin, timeout=timeout, max_output=max_output)

    async def read_file(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        output = await self._script(READ, path, str(max_bytes + 1), limit=max_bytes + CHUNK)
        if len(output) > max_bytes:
            raise SandboxFileError(path, "too_large")
        return output

    async def write_file(self, path: str, data: bytes | str) -> None:
        await self._script(WRITE, path, stdin=encode(data) if isinstance(data, str) else data)

    async def close(self) -> None:
        await self._container.end()

    async def _run(
        self, words: list[str], env: Mapping[str, str], stdin: bytes, seconds: float, limit: int
    ) -> ExecResult:
        try:
            execution = await self._execute(words, env, stdin, seconds, limit)
        except ValueError as error:  # a NUL byte or half a character, which no argument can hold
            return ExecResult("exited", 1, "", f"{error}\n")
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise SandboxUnavailable(str(error), provider=self.provider) from error
            return ExecResult("exited", 126, "", f"{error.strerror}\n")
        return execution.result()

    async def _script(
        self, script: str, path: str, *words: str, stdin: bytes = b"", limit: int = CHUNK
    ) -> bytes:
        """Have a script do something with a file; what it printed."""
        command = ["/", "sh", "-c", script, "sh", posixpath.join(self.spec.workdir, path), *words]
        async with self.slots:
            try:
                execution = await self._execute(command, {}, stdin, FILE_SECONDS, limit)
            except (OSError, ValueError) as error:
                raise SandboxFileError(path, "io", str(error)) from error
        if execution.outcome != "exited":
            raise SandboxFileError(path, "io", "interrupted")
        if execution.status:
            raise _file_error(path, execution)
        return execution.output.of("output")

    async def _execute(
        self, words: list[str], env: Mapping[str, str], stdin: bytes, seconds: float, limit: int
    ) -> "_Execution":
        mark = secrets.token_hex(12)
        if self.status == "stopped":
            raise self._gone()
        execution = _Execution(await self._launch(words, env, mark, bool(stdin)), limit)
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
        return await asyncio.create_subprocess_exec(
            self._engine.name,
            *(word.encode() for word in arguments),
            stdin=asyncio.subprocess.PIPE if interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    async def _kill(self, mark: str) -> None:
        """Kill everything that carries the mark in its environment."""
        plan = self._container.plan
        user = f"{plan.user}:{plan.user}"
        await self._engine.call("exec", "--user", user, plan.name, "sh", "-c", KILL, "sh", mark)

    async def _abandon(self, execution: "_Execution", mark: str) -> None:
        if self.status == "running":
            with suppress(SandboxError):
                await self._kill(mark)
        with suppress(ProcessLookupError):
            execution.process.kill()
        await execution.process.wait()

    async def _check(self, execution: "_Execution") -> None:
        """Raise an error where the container, not the program, is to blame."""
        if self.status == "stopped" or not await self._container.running():
            raise self._lost("the container ended")

    def _lost(self, reason: str) -> SandboxGone:
        self.on_death(reason)
        return self._gone()

    def _gone(self) -> SandboxGone:
        return SandboxGone(self.reason, provider=self.provider, sandbox_id=self.id)


def _file_error(path: str, execution: "_Execution") -> SandboxFileError:
    """The error of a script that failed, by its exit status or by what its programs said."""
    said = execution.output.of("error").decode("utf-8", "replace")
    reasons = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EISDIR)
    number = next((one for one in reasons if os.strerror(one) in said), 0)
    if execution.status > FIRST_ERROR:
        number = execution.status - FIRST_ERROR
    kind = FILE_ERRORS.get(number, "io")
    return SandboxFileError(path, kind, complaint(said) if kind == "io" else "")
