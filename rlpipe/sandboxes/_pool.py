"""Sandboxes kept started ahead of need, and handed out before they are even ready."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from types import TracebackType
from typing import Any, Protocol, Self

from rlpipe.errors import SandboxGone
from rlpipe.sandboxes._lazy import LazySandbox, retrieve
from rlpipe.sandboxes._tally import Counters
from rlpipe.sandboxes.base import (
    Capabilities,
    Sandbox,
    SandboxProvider,
    SandboxSession,
    SandboxSpec,
)


class Record(Protocol):
    """Told of what becomes of each sandbox, before anyone can use it."""

    def __call__(self, event: str, **facts: Any) -> None: ...


def unrecorded(event: str, **facts: Any) -> None:
    """For sandboxes that nobody else needs to know of."""


def _promise() -> "asyncio.Future[Sandbox]":
    given: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
    given.add_done_callback(retrieve)
    return given


class SandboxPool:
    """Owns the sandboxes of one spec: hands them out, bounds how many live, counts what they do.

    `warm` are kept ready; at most `max_live` exist, `max_starting` are being started, and
    `max_starts_per_second` are begun. Leaving the context ends all of them.
    """

    def __init__(
        self,
        session: SandboxSession,
        spec: SandboxSpec,
        *,
        warm: int,
        max_live: int,
        max_starting: int,
        max_starts_per_second: float | None = None,
        record: Record = unrecorded,
    ) -> None:
        self._session = session
        self._spec = spec
        self._warm = warm
        self._max_live = max_live
        self._max_starting = max_starting
        self._interval = 1 / max_starts_per_second if max_starts_per_second else 0.0
        self._record = record
        self._numbers = count()
        self._next_start = 0.0
        self._pause: asyncio.TimerHandle | None = None
        self._live = 0
        self._ready: deque[tuple[float, Sandbox]] = deque()
        self._waiting: deque[LazySandbox] = deque()
        self._starts: list[asyncio.Task[None]] = []
        self._stops: set[asyncio.Task[None]] = set()
        self._claims: set[LazySandbox] = set()
        self._counters = Counters()
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
        if self._pause:
            self._pause.cancel()
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
        those of the run, which is what the provider is told. A claim ends by itself when it is as
        old as a sandbox may get.

        Raises:
            SandboxError: the start failed; raised by each use, not here.
        """
        front = self._hand_out(tags, files or {})
        loop = asyncio.get_running_loop()
        age = loop.call_later(self._spec.lifetime, self._take_back, front)
        if ahead:
            self._want(front)
        try:
            yield front
        finally:
            age.cancel()
            self._take_back(front)

    def metrics(self, reset: bool = True) -> dict[str, float]:
        """Counters over all sandboxes; since the last reset, which is now when `reset` is set."""
        return self._counters.report(reset)

    def totals(self) -> dict[str, float]:
        """The same counters since the pool was opened."""
        return self._counters.total.metrics()

    def _hand_out(self, tags: tuple[str, ...], files: Mapping[str, str]) -> LazySandbox:
        front = LazySandbox(
            self._spec,
            tags,
            _promise(),
            files,
            self._counters,
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
        if front.given.done() or front in self._waiting:
            return
        self._waiting.append(front)
        self._discard_old()
        self._serve()
        self._balance()

    def _renew(self, front: LazySandbox) -> None:
        """Give a claim another sandbox, and end the one that it used, in the background."""
        if front in self._claims and front.started:
            for tally in self._counters.both:
                tally.close(front)
            self._end(front.given.result())
            front.take(_promise())
            self._want(front)

    def _take_back(self, front: LazySandbox) -> asyncio.Task[None] | None:
        """End a claim and what was given to it, in the background."""
        front.abandon()
        if front not in self._claims:
            return None
        self._claims.discard(front)
        for tally in self._counters.both:
            tally.close(front)
        if not front.given.done():
            front.given.cancel()
            if front not in self._waiting:
                return None
            self._waiting.remove(front)
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
            front, (_, sandbox) = self._waiting.popleft(), self._ready.popleft()
            self._record("claimed", id=sandbox.id, tags=front.tags)
            front.given.set_result(sandbox)

    def _balance(self) -> None:
        """Start as many as are wanted and allowed."""
        wanted = len(self._waiting) + self._warm - len(self._ready) - len(self._starts)
        allowed = min(self._max_starting - len(self._starts), self._max_live - self._live)
        for _ in range(0 if self._closed else min(wanted, allowed)):
            if not self._in_time():
                return
            self._live += 1
            start = asyncio.ensure_future(self._start(next(self._numbers)))
            self._starts.append(start)
            start.add_done_callback(self._started)

    def _in_time(self) -> bool:
        """Whether one may be started now; where not, all is balanced again once it may."""
        now = time.monotonic()
        if now >= self._next_start:
            self._next_start = now + self._interval
            return True
        if self._pause is None:
            wait = self._next_start - now
            self._pause = asyncio.get_running_loop().call_later(wait, self._go_on)
        return False

    def _go_on(self) -> None:
        self._pause = None
        self._balance()

    async def _start(self, number: int) -> None:
        tallies, began = self._counters.both, time.monotonic()
        for tally in tallies:
            tally.created += 1
        self._record("asked", number=number)
        try:
            sandbox = await self._session.start(self._spec)
        except BaseException:
            self._record("failed", number=number)
            raise
        self._record("started", number=number, id=sandbox.id, process=sandbox.process)
        for tally in tallies:
            tally.startups.add(time.monotonic() - began)
        self._ready.append((time.monotonic(), sandbox))

    def _started(self, start: asyncio.Task[None]) -> None:
        self._starts.remove(start)
        error = None if start.cancelled() else start.exception()
        if start.cancelled() or error:
            self._live -= 1
        if error and self._waiting:
            self._waiting.popleft().given.set_exception(error)
        self._serve()
        # A failure without a claim waits for the next one, rather than being tried for ever.
        if not error or self._waiting:
            self._balance()

    def _discard_old(self) -> None:
        """Stop what has waited so long that its lifetime could end while it is used."""
        while self._ready and time.monotonic() - self._ready[0][0] > self._spec.lifetime / 2:
            self._end(self._ready.popleft()[1])

    def _end(self, sandbox: Sandbox) -> asyncio.Task[None]:
        stop = asyncio.ensure_future(self._stop(sandbox))
        self._stops.add(stop)
        stop.add_done_callback(self._ended)
        return stop

    async def _stop(self, sandbox: Sandbox) -> None:
        await sandbox.stop()
        self._record("stopped", id=sandbox.id)

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
            max_starts_per_second=provider.max_starts_per_second,
        ) as pool,
    ):
        yield pool
