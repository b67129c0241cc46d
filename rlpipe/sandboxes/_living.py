"""What the sandboxes that this process itself runs have in common, however they run a command."""

import asyncio
import posixpath
import secrets
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

from rlpipe.errors import SandboxUnavailable
from rlpipe.sandboxes.base import (
    ExecResult,
    Sandbox,
    SandboxInfo,
    SandboxSpec,
    SandboxStats,
    Status,
)

EXECUTIONS_AT_ONCE = 8


class LivingSandbox(Sandbox):
    """Lifetime, end, counters and the number of executions at once."""

    provider: ClassVar[str]

    def __init__(
        self, spec: SandboxSpec, on_end: "Callable[[LivingSandbox], None]", id: str | None = None
    ) -> None:
        self._on_end = on_end
        self.id = id or f"{self.provider}-{secrets.token_hex(6)}"
        self.spec = spec
        self.stats = SandboxStats()
        self.status: Status = "pending"
        self.reason = ""
        """Why it ended."""

        self.slots = asyncio.Semaphore(EXECUTIONS_AT_ONCE)
        self._born = time.monotonic()
        self._ending: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def info(self) -> SandboxInfo:
        return SandboxInfo(self.id, self.status, self.spec.tags, time.monotonic() - self._born)

    def live(self) -> None:
        """From now on it can be used, and its lifetime counts."""
        self.status = "running"
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(self.spec.lifetime, self.die, "its lifetime is over")

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
        bounds = self.spec.bounds(timeout, max_output)
        return await self.counted(lambda: self.run(words, folder, env or {}, stdin, *bounds))

    @abstractmethod
    async def run(
        self,
        words: Sequence[str],
        folder: str,
        env: Mapping[str, str],
        stdin: bytes,
        seconds: float,
        limit: int,
    ) -> ExecResult:
        """Run a command, for which there is a slot."""

    async def counted(self, execution: Callable[[], Awaitable[ExecResult]]) -> ExecResult:
        """Await an execution when it is its turn."""
        async with self.slots:
            return await self.stats.count(execution())

    @contextmanager
    def on_this_machine(self) -> Iterator[None]:
        """What this machine refuses, such as one more descriptor, is no doing of a program."""
        try:
            yield
        except OSError as error:
            raise SandboxUnavailable(
                f"this machine cannot serve a sandbox: {error}",
                retryable=True,
                provider=self.provider,
                sandbox_id=self.id,
            ) from error

    async def stop(self) -> None:
        self.die("the sandbox is stopped")
        assert self._ending is not None
        await asyncio.shield(self._ending)

    def on_death(self, reason: str) -> None:
        if self.status == "running":
            self.die(reason)

    def die(self, reason: str) -> None:
        if self._ending is None:
            self.status, self.reason = "stopped", reason
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        if self._expiry:
            self._expiry.cancel()
        await self.close()
        self._on_end(self)

    @abstractmethod
    async def close(self) -> None:
        """End what it consists of; every use, now and later, is answered with `reason`."""
