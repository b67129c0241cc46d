"""A sandbox that is usable at once: what needs the real one waits until it is there."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from rlpipe.errors import SandboxError, SandboxFileError, SandboxGone, SandboxStartError
from rlpipe.sandboxes._tally import Counters, Tally
from rlpipe.sandboxes.base import ExecResult, Sandbox, SandboxSpec, SandboxStats

log = logging.getLogger(__name__)


class LazySandbox(Sandbox):
    """What a claim on a pool is given."""

    def __init__(
        self,
        spec: SandboxSpec,
        tags: tuple[str, ...],
        given: "asyncio.Future[Sandbox]",
        files: Mapping[str, str],
        counters: Counters,
        want: "Callable[[LazySandbox], None]",
        renew: "Callable[[LazySandbox], None]",
        release: "Callable[[LazySandbox], Awaitable[None]]",
    ) -> None:
        self.id = ""
        self.spec = replace(spec, tags=(*spec.tags, *tags))
        self.tags = tags
        """Its own, beside those of the run."""

        self.stats = SandboxStats()
        self.given = given
        self._files = files
        self._counters = counters
        self._want = want
        self._renew = renew
        self._release = release
        self._prepared: asyncio.Task[Sandbox] | None = None
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

    async def preload(self, code: str) -> bool:
        return await (await self._ready()).preload(code)

    async def read_file(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        return await (await self._ready()).read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes | str) -> None:
        await (await self._ready(touches=True)).write_file(path, data)

    async def reset(self) -> None:
        if self._touched:
            self._renew(self)

    def declare_clean(self) -> None:
        self._touched = False

    def take(self, given: "asyncio.Future[Sandbox]") -> None:
        """Be another sandbox from now on."""
        self.given = given
        self._prepared = None
        self._touched = False

    async def stop(self) -> None:
        self.abandon()
        await self._release(self)

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
            self._prepared.add_done_callback(retrieve)
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
        try:
            for path, text in self._files.items():
                await sandbox.write_file(path, text)
        except SandboxFileError as error:  # which a tool would tell the model as its own doing
            message = f"the task's own file could not be written: {error}"
            raise SandboxStartError(message, sandbox_id=self.id) from error
        return sandbox

    async def _counted(self, execution: Awaitable[ExecResult]) -> ExecResult:
        tallies = self._counters.both
        for tally in tallies:
            tally.begin(self)
        try:
            result = await self.stats.count(execution)
        except SandboxError as error:
            self._finish(tallies, None, f"lost: {error}")
            raise
        sizes = f"stdout {len(result.stdout)}, stderr {len(result.stderr)}"
        self._finish(tallies, result, f"{result.outcome} {result.exit_code}, {sizes}")
        return result

    def _finish(self, tallies: Sequence[Tally], result: ExecResult | None, how: str) -> None:
        for tally in tallies:
            tally.finish(result)
        log.info("%s (%s): %s", self.id, ", ".join(self.tags), how)


def retrieve(future: "asyncio.Future[Sandbox]") -> None:
    """Mark an error as seen: who never uses its sandbox never hears of it."""
    if not future.cancelled():
        future.exception()
