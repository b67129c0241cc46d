"""What the sandboxes that this process itself runs have in common, however they run a command."""

import asyncio
import secrets
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from rlpipe.errors import SandboxError
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

    async def counted(self, execution: Callable[[], Awaitable[ExecResult]]) -> ExecResult:
        """Await an execution when it is its turn."""
        async with self.slots:
            self.stats.exec_count += 1
            try:
                result = await execution()
            except SandboxError:
                self.stats.exec_failures += 1
                raise
        if result.ok:
            self.stats.exec_completed_ok += 1
        else:
            self.stats.exec_completed_nonzero += 1
        return result

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


def arguments_of(command: Sequence[str] | str) -> Sequence[str]:
    return ["bash", "-c", command] if isinstance(command, str) else command
