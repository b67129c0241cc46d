"""Sandboxes on this machine: bubblewrap, an agent inside, and a Python that only has to fork.

Not covered: a hole in the kernel, time and load as side channels, and kernel memory such as full
socket buffers. Code whose author is out to break a kernel belongs into a virtual machine.
"""

import asyncio
import errno
import os
import posixpath
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Literal

from rlpipe.errors import Finding, SandboxConfigError, SandboxError, SandboxFileError, SandboxGone
from rlpipe.sandboxes import _bwrap
from rlpipe.sandboxes._agent import wire
from rlpipe.sandboxes._box import Box, Plan, encode, name_folder, pack_variables
from rlpipe.sandboxes._bwrap import Interpreter
from rlpipe.sandboxes._channel import Reply
from rlpipe.sandboxes._streams import Feed, Gather
from rlpipe.sandboxes.base import (
    Capabilities,
    ExecResult,
    Outcome,
    Sandbox,
    SandboxInfo,
    SandboxProvider,
    SandboxSession,
    SandboxSpec,
    SandboxStats,
    Status,
)

EXECUTIONS_AT_ONCE = 8
FILE_SECONDS = 60.0
REMEMBERED = 1000
OUTCOMES: tuple[Outcome, ...] = ("exited", "timeout", "output_limit", "out_of_memory", "killed")
FILE_ERRORS: dict[int, SandboxFileError.Kind] = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.EISDIR: "is_directory",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.EFBIG: "too_large",
}


class Local(SandboxProvider):
    """Sandboxes on this machine."""

    kind: Literal["local"] = "local"

    isolation: Literal["bwrap", "landlock", "none"] = "bwrap"
    """How programs are kept from this machine. There is no silent fallback to a weaker one.

    `landlock` needs no namespaces: programs read `/usr`, the interpreter and `packages`, write one
    folder below the temporary folder, and have no sockets. Not covered: they can find out names and
    sizes of other files; the space that they take is bounded for each file only, and files' kernel
    memory is not counted; unless you are root, processes are counted only now and then, so that a
    fork bomb makes some hundreds before it is ended; before Linux 6.12 they can signal your other
    processes. `none` runs them as plain processes of yours."""

    python: str | None = None
    """Interpreter in the sandbox; by default the system's, else the one that runs rlpipe."""

    packages: str | None = None
    """Folder of installed packages, readable by all, that programs in the sandbox can import."""

    def check(self) -> list[Finding]:
        found = super().check()
        if self.isolation == "bwrap" and _bwrap.find_bwrap() is None:
            found.append(Finding("kind", _bwrap.INSTALL))
        if self.isolation == "landlock" and not _has_landlock():
            found.append(Finding("isolation", "this kernel has no Landlock; use 'bwrap'"))
        if self.packages is not None and not os.path.isdir(self.packages):
            found.append(Finding("packages", f"no folder at {self.packages!r}"))
        if not _bwrap.interpreters(self.python):
            found.append(Finding("python", f"no program at {self.python!r}"))
        if self.network != "none":
            found.append(Finding("network", "a local sandbox has none; use 'none'"))
        if self.cpus is not None:
            found.append(Finding("cpus", "a local sandbox cannot bound them; leave it null"))
        return found

    def warnings(self) -> list[str]:
        missing = {
            "landlock": "isolation: landlock bounds neither disk space nor the view of file names; "
            "bwrap does",
            "none": "isolation: none lets programs read and change what you can; bwrap does not",
        }
        return [missing[self.isolation]] if self.isolation in missing else []

    def open(self) -> AbstractAsyncContextManager[SandboxSession]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[SandboxSession]:
        session = LocalSession(self)
        try:
            yield session
        finally:
            await session.close()


def _has_landlock() -> bool:
    from rlpipe.sandboxes._agent import confine  # loads ctypes, which no other choice needs

    return confine.available()


class LocalSandbox(Sandbox):
    """A box, and the time limits, counters and files of the protocol on top of it."""

    def __init__(self, spec: SandboxSpec, on_end: Callable[["LocalSandbox"], None]) -> None:
        self._on_end = on_end
        self.id = f"local-{secrets.token_hex(6)}"
        self.spec = spec
        self.stats = SandboxStats()
        self.status: Status = "pending"
        self._born = time.monotonic()
        self._slots = asyncio.Semaphore(EXECUTIONS_AT_ONCE)
        self._reason = "the sandbox is stopped"
        self._ending: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._box: Box

    def info(self) -> SandboxInfo:
        return SandboxInfo(self.id, self.status, self.spec.tags, time.monotonic() - self._born)

    async def boot(self, plan: Plan) -> None:
        self.spec = plan.spec
        self._box = Box(plan, self._on_death)
        await self._box.start()
        self.process = self._box.pid
        self.status = "running"
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(self.spec.lifetime, self._die, "its lifetime is over")

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
        arguments = ["bash", "-c", command] if isinstance(command, str) else command
        folder = posixpath.join(self.spec.workdir, cwd or "")
        data = wire.pack([encode(folder), pack_variables(env or {}), *map(encode, arguments)])
        return await self._execute(wire.EXEC, data, stdin, timeout, max_output)

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        data = code.encode("utf-8", "surrogatepass")
        return await self._execute(wire.PYTHON, data, stdin, timeout, max_output)

    async def _execute(
        self,
        operation: int,
        data: bytes,
        stdin: bytes,
        timeout: float | None,
        max_output: int | None,
    ) -> ExecResult:
        seconds = self.spec.exec_timeout if timeout is None else timeout
        limit = self.spec.max_output if max_output is None else max_output
        async with self._slots:
            self.stats.exec_count += 1
            feed = Feed(stdin) if stdin else None
            try:
                reply = await self._request(operation, data, seconds, limit, feed)
            except SandboxError:
                self.stats.exec_failures += 1
                raise
            finally:
                if feed:
                    feed.close()
        result = _result(reply)
        if result.ok:
            self.stats.exec_completed_ok += 1
        else:
            self.stats.exec_completed_nonzero += 1
        return result

    async def _request(
        self, operation: int, data: bytes, seconds: float, limit: int, stream: Feed | Gather | None
    ) -> Reply:
        if stream and self._box.plan.user:
            # A pipe is opened again through /dev/stdin by its owner only.
            os.fchown(stream.program_end, self._box.plan.user, self._box.plan.user)
        file = stream.program_end if stream else None
        channel = self._box.channel
        number, answer = channel.request(operation, data, seconds=seconds, limit=limit, file=file)
        try:
            return await answer
        except asyncio.CancelledError:
            channel.cancel(number)
            raise
        except SandboxGone as error:
            error.sandbox_id = self.id
            raise

    async def read_file(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        async with self._slots:
            gather = Gather(max_bytes)
            try:
                reply = await self._request(
                    wire.READ, encode(path), FILE_SECONDS, max_bytes, gather
                )
                gather.finish()
            finally:
                gather.close()
        if gather.overflowed:
            raise SandboxFileError(path, "too_large")
        _check_file(path, reply)
        return bytes(gather.data)

    async def write_file(self, path: str, data: bytes | str) -> None:
        async with self._slots:
            feed = Feed(encode(data) if isinstance(data, str) else data)
            try:
                reply = await self._request(wire.WRITE, encode(path), FILE_SECONDS, 0, feed)
            finally:
                feed.close()
        _check_file(path, reply)

    async def stop(self) -> None:
        self._die("the sandbox is stopped")
        assert self._ending is not None
        await asyncio.shield(self._ending)

    def _on_death(self, reason: str) -> None:
        if self.status == "running":
            self._die(reason)

    def _die(self, reason: str) -> None:
        if self._ending is None:
            self.status = "stopped"
            self._ending = asyncio.ensure_future(self._end(reason))

    async def _end(self, reason: str) -> None:
        if self._expiry:
            self._expiry.cancel()
        self._box.channel.fail(reason)
        await self._box.end()
        self._on_end(self)


def _result(reply: Reply) -> ExecResult:
    outcome = OUTCOMES[reply.outcome]
    return ExecResult(
        outcome=outcome,
        exit_code=reply.status if outcome == "exited" else None,
        stdout=reply.output.decode("utf-8", "replace"),
        stderr=reply.error.decode("utf-8", "replace"),
        truncated=reply.truncated,
        produced_bytes=reply.produced,
        duration=reply.seconds,
    )


def _check_file(path: str, reply: Reply) -> None:
    if reply.outcome != wire.EXITED or reply.status < 0:
        raise SandboxFileError(path, "io", "interrupted")
    if reply.status:
        kind = FILE_ERRORS.get(reply.status, "io")
        raise SandboxFileError(path, kind, os.strerror(reply.status) if kind == "io" else "")


class LocalSession(SandboxSession):
    """The local sandboxes of one run."""

    def __init__(self, provider: Local) -> None:
        isolation = provider.isolation
        self.capabilities = Capabilities(
            isolation="namespace" if isolation == "bwrap" else isolation
        )
        self._provider = provider
        self._packages = provider.packages and os.path.abspath(provider.packages)
        self._interpreter: Interpreter | None = None
        self._looking = asyncio.Lock()
        self._live: dict[str, LocalSandbox] = {}
        self._ended: deque[LocalSandbox] = deque(maxlen=REMEMBERED)
        self._closed = False

    async def start(self, spec: SandboxSpec) -> Sandbox:
        sandbox = LocalSandbox(spec, self._retire)
        self._live[sandbox.id] = sandbox
        try:
            await sandbox.boot(await self._plan(spec))
        except BaseException:
            self._retire(sandbox)
            raise
        if self._closed:
            await sandbox.stop()
            raise SandboxGone("the session is closed", provider="local", sandbox_id=sandbox.id)
        return sandbox

    async def list(
        self, *, tags: Sequence[str] = (), status: Status | None = None
    ) -> list[SandboxInfo]:
        infos = [sandbox.info() for sandbox in (*self._ended, *self._live.values())]
        return [
            info for info in infos if set(tags) <= set(info.tags) and status in (None, info.status)
        ]

    async def close(self) -> None:
        """Stop every sandbox, and each one that is still being started when it gets ready."""
        self._closed = True
        running = [one for one in self._live.values() if one.status != "pending"]
        await asyncio.gather(*(one.stop() for one in running))

    def _retire(self, sandbox: LocalSandbox) -> None:
        sandbox.status = "stopped"
        if self._live.pop(sandbox.id, None):
            self._ended.append(sandbox)

    async def _plan(self, spec: SandboxSpec) -> Plan:
        if spec.network != "none":
            raise SandboxConfigError("a local sandbox has no network", provider="local")
        if self._provider.isolation != "bwrap":
            return self._plan_without_namespaces(spec)
        _bwrap.check_workdir(spec.workdir)
        bwrap = _bwrap.find_bwrap()
        if bwrap is None:
            raise SandboxConfigError(_bwrap.INSTALL, provider="local")
        users = _bwrap.user_ids()
        async with self._looking:
            if self._interpreter is None:
                look = _bwrap.working_interpreter
                arguments = bwrap, self._provider.python, users is not None
                self._interpreter = await asyncio.to_thread(look, *arguments)
        layout = _bwrap.Layout(
            bwrap=bwrap,
            interpreter=self._interpreter,
            workdir=spec.workdir,
            disk=spec.disk,
            packages=self._packages,
            as_root=users is not None,
        )
        user = secrets.choice(users) if users else 0
        return Plan(
            spec=spec,
            interpreter=self._interpreter,
            layout=layout,
            packages=self._packages,
            user=user,
        )

    def _plan_without_namespaces(self, spec: SandboxSpec) -> Plan:
        interpreters = _bwrap.interpreters(self._provider.python)
        if not interpreters:
            raise SandboxConfigError(f"no program at {self._provider.python!r}", provider="local")
        confined = self._provider.isolation == "landlock"
        users = _bwrap.user_ids() if confined else None
        return Plan(
            spec=replace(spec, workdir=name_folder()),
            interpreter=interpreters[0],
            layout=None,
            packages=self._packages,
            user=secrets.choice(users) if users else 0,
            readable=_bwrap.readable(interpreters[0], self._packages) if confined else (),
        )
