"""Sandboxes kept started ahead of need, and handed out before they are even ready."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from rlpipe.errors import SandboxError, SandboxGone
from rlpipe.sandboxes.base import (
    Capabilities,
    ExecResult,
    Sandbox,
    SandboxProvider,
    SandboxSession,
    SandboxSpec,
    SandboxStats,
)


@dataclass(slots=True)
class _Tally:
    """What happened since the last report."""

    created: int = 0
    completed_ok: int = 0
    completed_nonzero: int = 0
    failures: int = 0
    startups: list[float] = field(default_factory=list)
    executions: Counter[object] = field(default_factory=Counter)
    """By a token of the claim."""

    def metrics(self) -> dict[str, float]:
        executions = self.executions.total()
        completed = self.completed_ok + self.completed_nonzero
        counts = list(self.executions.values())
        numbers: dict[str, float] = {
            "sandboxes_created": self.created,
            "executions": executions,
            "exec_completed_ok": self.completed_ok,
            "exec_completed_nonzero": self.completed_nonzero,
            "exec_failures": self.failures,
            "exec_completion_rate": completed / executions if executions else 0.0,
            "exec_failure_rate": self.failures / executions if executions else 0.0,
            "startup_count": len(self.startups),
            **_summary("startup_seconds", self.startups),
            **_summary("execs_per_sandbox", counts),
        }
        return {f"cwsandbox/{name}": float(number) for name, number in numbers.items()}


def _summary(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"avg_{name}": sum(values) / len(values) if values else 0.0,
        f"min_{name}": min(values, default=0.0),
        f"max_{name}": max(values, default=0.0),
    }


class LazySandbox(Sandbox):
    """A sandbox that is usable at once: what needs the real one waits until it is there."""

    def __init__(
        self,
        spec: SandboxSpec,
        given: "asyncio.Future[Sandbox]",
        files: Mapping[str, str],
        tally: Callable[[], _Tally],
        want: "Callable[[LazySandbox], None]",
        renew: "Callable[[LazySandbox], None]",
        release: "Callable[[LazySandbox], Awaitable[None]]",
    ) -> None:
        self.id = ""
        self.spec = spec
        self.stats = SandboxStats()
        self.given = given
        self._files = files
        self._tally = tally
        self._want = want
        self._renew = renew
        self._release = release
        self._prepared: asyncio.Task[Sandbox] | None = None
        self._token = object()
        self._touched = False
        self._released = False

    @property
    def started(self) -> bool:
        """Whether the real sandbox was there when it was last asked for, without an error."""
        return self.given.done() and not self.given.cancelled() and not self.given.exception()

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
        sandbox = await self._ready(touches=True)
        return await self._counted(
            sandbox.exec(
                command, cwd=cwd, env=env, stdin=stdin, timeout=timeout, max_output=max_output
            )
        )

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        sandbox = await self._ready(touches=True)
        return await self._counted(
            sandbox.run_python(code, stdin=stdin, timeout=timeout, max_output=max_output)
        )

    async def read_file(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        return await (await self._ready()).read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes | str) -> None:
        await (await self._ready(touches=True)).write_file(path, data)

    async def reset(self) -> None:
        if self._touched:
            self._renew(self)

    async def stop(self) -> None:
        self.abandon()
        await self._release(self)

    def declare_clean(self) -> None:
        self._touched = False

    def take(self, given: "asyncio.Future[Sandbox]") -> None:
        """Be another sandbox from now on."""
        self.given = given
        self._prepared = None
        self._token = object()
        self._touched = False

    def abandon(self) -> None:
        """Let no use begin or wait any more."""
        self._released = True
        if self._prepared:
            self._prepared.cancel()

    async def _ready(self, touches: bool = False) -> Sandbox:
        if self._released:
            raise SandboxGone("the sandbox was given back", sandbox_id=self.id)
        self._touched = self._touched or touches
        if self._prepared is None:
            self._want(self)
            self._prepared = asyncio.ensure_future(self._prepare())
            self._prepared.add_done_callback(_retrieve)
        try:
            return await asyncio.shield(self._prepared)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._released or (task and task.cancelling()):
                raise
            raise SandboxGone("the sandbox was given back", sandbox_id=self.id) from None

    async def _prepare(self) -> Sandbox:
        sandbox = await asyncio.shield(self.given)
        self.id = sandbox.id
        self.spec = replace(self.spec, workdir=sandbox.spec.workdir)
        for path, text in self._files.items():
            await sandbox.write_file(path, text)
        return sandbox

    async def _counted(self, execution: Awaitable[ExecResult]) -> ExecResult:
        tally = self._tally()
        tally.executions[self._token] += 1
        self.stats.exec_count += 1
        try:
            result = await execution
        except SandboxError:
            self.stats.exec_failures += 1
            tally.failures += 1
            raise
        if result.ok:
            self.stats.exec_completed_ok += 1
            tally.completed_ok += 1
        else:
            self.stats.exec_completed_nonzero += 1
            tally.completed_nonzero += 1
        return result


def _retrieve(future: "asyncio.Future[Sandbox]") -> None:
    """Mark an error as seen: who never uses its sandbox never hears of it."""
    if not future.cancelled():
        future.exception()


def _promise() -> "asyncio.Future[Sandbox]":
    given: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
    given.add_done_callback(_retrieve)
    return given


class SandboxPool:
    """Hands out sandboxes of one spec, bounds how many live, and counts what they do.

    `warm` are kept ready; at most `max_live` exist and `max_starting` are being started.
    """

    def __init__(
        self,
        session: SandboxSession,
        spec: SandboxSpec,
        *,
        warm: int,
        max_live: int,
        max_starting: int,
    ) -> None:
        self._session = session
        self._spec = spec
        self._warm = warm
        self._max_live = max_live
        self._max_starting = max_starting
        self._live = 0
        self._ready: deque[tuple[float, Sandbox]] = deque()
        self._waiting: deque[asyncio.Future[Sandbox]] = deque()
        self._starts: list[asyncio.Task[None]] = []
        self._stops: set[asyncio.Task[None]] = set()
        self._claims: set[LazySandbox] = set()
        self._tally = _Tally()
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return self._session.capabilities

    async def __aenter__(self) -> Self:
        self._balance()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed = True
        for front in list(self._claims):
            self._take_back(front)
        for start in self._starts:
            start.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        while self._ready:
            self._end(self._ready.popleft()[1])
        await asyncio.gather(*self._stops, return_exceptions=True)

    @asynccontextmanager
    async def claim(
        self,
        *,
        tags: tuple[str, ...] = (),
        files: Mapping[str, str] | None = None,
        ahead: bool = True,
    ) -> AsyncIterator[LazySandbox]:
        """A sandbox for one rollout; entering does not wait, and leaving does not either.

        Its start goes on in the background, or only begins with its first use when `ahead` is
        false. `files` are written before its first use. `tags` are recorded in its `spec` beside
        those of the run, which is what the provider is told.

        Raises:
            SandboxError: the start failed; raised by each use, not here.
        """
        front = self._hand_out(tags, files or {})
        if ahead:
            self._want(front)
        try:
            yield front
        finally:
            self._take_back(front)

    def metrics(self, reset: bool = True) -> dict[str, float]:
        """Counters over all sandboxes; since the last reset, which is now when `reset` is set."""
        metrics = self._tally.metrics()
        if reset:
            self._tally = _Tally()
        return metrics

    def _hand_out(self, tags: tuple[str, ...], files: Mapping[str, str]) -> LazySandbox:
        spec = replace(self._spec, tags=(*self._spec.tags, *tags))
        front = LazySandbox(
            spec,
            _promise(),
            files,
            tally=lambda: self._tally,
            want=self._want,
            renew=self._renew,
            release=self._stop_claim,
        )
        if self._closed:
            front.given.set_exception(SandboxGone("the pool of sandboxes is closed"))
        else:
            self._claims.add(front)
        return front

    def _want(self, front: LazySandbox) -> None:
        """See to it that the claim is given a sandbox; asking again changes nothing."""
        if front.given.done() or front.given in self._waiting:
            return
        self._waiting.append(front.given)
        self._discard_old()
        self._serve()
        self._balance()

    def _renew(self, front: LazySandbox) -> None:
        """Give a claim another sandbox, and end the one that it used, in the background."""
        if front in self._claims and front.started:
            self._end(front.given.result())
            front.take(_promise())
            self._want(front)

    def _take_back(self, front: LazySandbox) -> asyncio.Task[None] | None:
        """End a claim and what was given to it, in the background."""
        front.abandon()
        if front not in self._claims:
            return None
        self._claims.discard(front)
        if not front.given.done():
            front.given.cancel()
            if front.given not in self._waiting:
                return None
            self._waiting.remove(front.given)
            surplus = len(self._starts) + len(self._ready) - len(self._waiting) - self._warm
            if surplus > 0 and self._starts:
                self._starts[-1].cancel()
        elif front.started:
            return self._end(front.given.result())
        return None

    async def _stop_claim(self, front: LazySandbox) -> None:
        stop = self._take_back(front)
        if stop:
            await asyncio.shield(stop)

    def _serve(self) -> None:
        """Give what is ready to those who wait, first come first served."""
        while self._ready and self._waiting:
            self._waiting.popleft().set_result(self._ready.popleft()[1])

    def _balance(self) -> None:
        """Start as many as are wanted and allowed."""
        wanted = len(self._waiting) + self._warm - len(self._ready) - len(self._starts)
        allowed = min(self._max_starting - len(self._starts), self._max_live - self._live)
        for _ in range(0 if self._closed else min(wanted, allowed)):
            self._live += 1
            start = asyncio.ensure_future(self._start())
            self._starts.append(start)
            start.add_done_callback(self._started)

    async def _start(self) -> None:
        tally, began = self._tally, time.monotonic()
        tally.created += 1
        sandbox = await self._session.start(self._spec)
        tally.startups.append(time.monotonic() - began)
        self._ready.append((time.monotonic(), sandbox))

    def _started(self, start: asyncio.Task[None]) -> None:
        self._starts.remove(start)
        error = None if start.cancelled() else start.exception()
        if start.cancelled() or error:
            self._live -= 1
        if error and self._waiting:
            self._waiting.popleft().set_exception(error)
        self._serve()
        # A failure without a claim waits for the next one, rather than being tried for ever.
        if not error or self._waiting:
            self._balance()

    def _discard_old(self) -> None:
        """Stop what has waited so long that its lifetime could end while it is used."""
        while self._ready and time.monotonic() - self._ready[0][0] > self._spec.lifetime / 2:
            self._end(self._ready.popleft()[1])

    def _end(self, sandbox: Sandbox) -> asyncio.Task[None]:
        stop = asyncio.ensure_future(sandbox.stop())
        self._stops.add(stop)
        stop.add_done_callback(self._ended)
        return stop

    def _ended(self, stop: asyncio.Task[None]) -> None:
        self._stops.discard(stop)
        self._live -= 1
        self._balance()


@asynccontextmanager
async def open_pool(provider: SandboxProvider) -> AsyncIterator[SandboxPool]:
    """A provider's sandboxes, within the numbers that its options give."""
    async with (
        provider.open() as session,
        SandboxPool(
            session,
            provider.spec(),
            warm=provider.warm,
            max_live=provider.max_live,
            max_starting=provider.max_starting,
        ) as pool,
    ):
        yield pool
