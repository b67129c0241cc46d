"""One process that a container's engine starts, and the engine's client for it on this machine."""

import asyncio
import signal
import time
from contextlib import suppress
from typing import Any

from rlpipe.sandboxes._agent.job import STDERR, STDOUT, Output
from rlpipe.sandboxes.base import ExecResult, Outcome

START_SECONDS = 60.0
CHUNK = 1 << 18


class Execution:
    """One process that the engine starts in the container, and its client here."""

    def __init__(self, process: asyncio.subprocess.Process, limit: int) -> None:
        self.process = process
        self.output = Output(limit, STDOUT, STDERR)
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
            self._gather(STDOUT, self.process.stdout),
            self._gather(STDERR, self.process.stderr),
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

    async def _gather(self, stream: int, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            if stream == STDERR and self.begun is None:
                before, mark, data = data.partition(b"\0")
                self.complaint += before
                if mark:
                    self.begun = time.monotonic()
                    self._began.set()
            self.output.take(stream, data)
            if self.output.floods:
                self._flooded.set()

    def text(self, stream: int) -> str:
        return self.output.streams[stream].decode("utf-8", "replace")

    @property
    def said(self) -> str:
        """What the engine said in place of running the program."""
        return self.complaint.decode("utf-8", "replace")

    def result(self) -> ExecResult:
        """What it did; one that never began found no room among the others in its sandbox."""
        if self.begun is None:
            return ExecResult("exited", 126, "", self.said)
        outcome: Outcome = "killed" if self.killed else self.outcome
        return ExecResult(
            outcome=outcome,
            exit_code=self.status if outcome == "exited" else None,
            stdout=self.text(STDOUT),
            stderr=self.text(STDERR),
            truncated=self.output.truncated,
            produced_bytes=self.output.produced,
            duration=self.ended - self.begun,
        )

    @property
    def killed(self) -> bool:
        return self.outcome == "exited" and self.status == 128 + signal.SIGKILL
