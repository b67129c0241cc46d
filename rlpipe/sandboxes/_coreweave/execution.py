"""One command in a CoreWeave sandbox: its output capped, its time limited, its end understood."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from rlpipe.errors import SandboxUnavailable
from rlpipe.sandboxes._agent.job import STDERR, STDOUT, Output
from rlpipe.sandboxes._coreweave.errors import translated
from rlpipe.sandboxes._coreweave.scripts import BEGUN
from rlpipe.sandboxes.base import ExecResult, Outcome

START_SECONDS = 30.0
"""How long a command may take to begin."""

DRAIN_SECONDS = 5.0
MARGIN_SECONDS = 30.0
"""What the call itself is given beyond our own limits, which are to come first."""

CHUNK = 1 << 20
SIGKILLED = 128 + 9


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, with its output as bytes."""

    outcome: Outcome
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    produced: int
    truncated: bool
    duration: float

    def result(self) -> ExecResult:
        return ExecResult(
            outcome=self.outcome,
            exit_code=self.exit_code,
            stdout=self.stdout.decode("utf-8", "replace"),
            stderr=self.stderr.decode("utf-8", "replace"),
            truncated=self.truncated,
            produced_bytes=self.produced,
            duration=self.duration,
        )


class Execution:
    """A command that was entered through `scripts.enter`.

    The SDK neither caps output nor tells how far a command came, so its streams are read here.
    Their text is decoded piece by piece: in output that is cut, a character may be replaced.
    """

    def __init__(self, machine: Any, *, sandbox_id: str, seconds: float, limit: int) -> None:
        self._machine = machine
        self._sandbox_id = sandbox_id
        self._seconds = seconds
        self._limit = limit
        self._output = Output(limit, STDOUT, STDERR)
        self._heading = bytearray()
        self._flooded = False
        self._began: float | None = None
        self._deadline: asyncio.Timeout | None = None
        self._process: Any = None

    async def run(self, words: list[str], stdin: bytes) -> Ended:
        """Run it to its end.

        Raises:
            SandboxError: the machinery failed.
        """
        seconds = START_SECONDS + self._seconds + MARGIN_SECONDS
        process = self._machine.exec(words, stdin=bool(stdin), timeout_seconds=seconds)
        self._process = process
        asked = time.monotonic()
        readers = [
            asyncio.ensure_future(self._follow(process.stdout, STDOUT)),
            asyncio.ensure_future(self._follow(process.stderr, STDERR)),
        ]
        feeding = asyncio.ensure_future(_feed(process.stdin, stdin))
        try:
            result, outcome = await self._wait()
            duration = time.monotonic() - (self._began or asked)
            if result is None or _size(result) > self._limit:
                await asyncio.wait(readers, timeout=DRAIN_SECONDS)
            return self._ended(result, outcome, duration)
        finally:
            process.cancel()
            for helper in (*readers, feeding):
                helper.cancel()
            process.stdout.close()
            process.stderr.close()

    async def _wait(self) -> tuple[Any, Outcome]:
        """The SDK's result if there is one, and how it came to its end."""
        from cwsandbox import exceptions as sdk

        try:
            async with asyncio.timeout(START_SECONDS) as self._deadline:
                return await self._process, "exited"
        except TimeoutError:
            if self._began is None:
                raise self._never_began() from None
            return None, "timeout"
        except asyncio.CancelledError:
            # The SDK tells us of our own cancelling as if the task had been cancelled.
            task = asyncio.current_task()
            if not self._flooded or (task and task.cancelling()):
                raise
            return None, "output_limit"
        except sdk.SandboxCommandTimeoutError:
            return None, "timeout"
        except sdk.CWSandboxError as error:
            lost_output = isinstance(error, sdk.SandboxStreamTruncatedError)
            # Little output that is lost on its way is no doing of the program.
            flood = isinstance(error, sdk.SandboxStreamBackpressureError)
            if flood or (lost_output and self._output.truncated):
                return None, "output_limit"
            raise translated(error, sandbox_id=self._sandbox_id) from error
        finally:
            self._deadline = None

    def _ended(self, result: Any, outcome: Outcome, duration: float) -> Ended:
        if result is None:
            return self._cut(outcome, None, duration, truncated=outcome == "output_limit")
        if not result.stderr_bytes.startswith(BEGUN):
            raise self._never_began(f"{result.stderr} (exit status {result.returncode})")
        stdout, stderr = result.stdout_bytes, result.stderr_bytes[len(BEGUN) :]
        killed = result.returncode == SIGKILLED
        status = None if killed else result.returncode
        outcome = "killed" if killed else "exited"
        produced = len(stdout) + len(stderr)
        if produced > self._limit:
            return self._cut(outcome, status, duration, truncated=True)
        return Ended(outcome, status, stdout, stderr, produced, False, duration)

    def _cut(self, outcome: Outcome, status: int | None, duration: float, truncated: bool) -> Ended:
        stdout, stderr = map(bytes, self._output.streams.values())
        truncated = truncated or self._output.truncated
        return Ended(outcome, status, stdout, stderr, self._output.produced, truncated, duration)

    def _never_began(self, said: str = "") -> SandboxUnavailable:
        detail = f": {said.strip()}" if said.strip() else ""
        return SandboxUnavailable(
            f"the command never began in the sandbox{detail}",
            retryable=True,
            provider="coreweave",
            sandbox_id=self._sandbox_id,
        )

    async def _follow(self, reader: Any, stream: int) -> None:
        async for text in reader:
            self._take(text.encode(), stream)
            if self._output.floods:
                self._flooded = True
                self._process.cancel()
                return

    def _take(self, data: bytes, stream: int) -> None:
        if stream == STDERR and len(self._heading) < len(BEGUN):
            missing = len(BEGUN) - len(self._heading)
            self._heading += data[:missing]
            data = data[missing:]
            if self._heading == BEGUN:
                self._begin()
        self._output.take(stream, data)

    def _begin(self) -> None:
        self._began = time.monotonic()
        if self._deadline and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._seconds)


async def _feed(writer: Any, data: bytes) -> None:
    from cwsandbox.exceptions import CWSandboxError

    try:
        for start in range(0, len(data), CHUNK):
            await writer.write(data[start : start + CHUNK])
        if data:
            await writer.close()
    except CWSandboxError:
        return  # the program has ended, and what it did not read is no error


def _size(result: Any) -> int:
    return len(result.stdout_bytes) + len(result.stderr_bytes)
