"""A sandbox with an agent in it, wherever that runs."""

import asyncio
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from rlpipe.errors import SandboxFileError, SandboxGone
from rlpipe.sandboxes._agent import wire
from rlpipe.sandboxes._box import encode, pack_variables
from rlpipe.sandboxes._channel import Channel, Reply
from rlpipe.sandboxes._living import LivingSandbox
from rlpipe.sandboxes._streams import Feed, Gather
from rlpipe.sandboxes.base import ExecResult, Outcome

FILE_SECONDS = 60.0
PRELOAD_SECONDS = 60.0
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


class Body(Protocol):
    """The processes around an agent."""

    @property
    def channel(self) -> Channel: ...

    async def end(self) -> None:
        """Kill them, and wait until they are gone."""


class AgentSandbox(LivingSandbox):
    """The protocol of sandboxes in requests to an agent."""

    _box: Body
    _owner: int
    _preloaded: dict[str, asyncio.Future[Reply]]

    def begin(self, body: Body, *, owner: int = 0) -> None:
        """Live in `body`; `owner` is who has to own the pipes that programs there read from."""
        self._box = body
        self._owner = owner
        self._preloaded = {}
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
        data = wire.pack([encode(folder), pack_variables(env), *map(encode, words)])
        return await self._run(wire.EXEC, data, stdin, seconds, limit)

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        data = code.encode("utf-8", "surrogatepass")
        bounds = self.spec.bounds(timeout, max_output)
        return await self.counted(lambda: self._run(wire.PYTHON, data, stdin, *bounds))

    async def preload(self, code: str) -> bool:
        if code not in self._preloaded:
            loading = self._request(wire.PRELOAD, encode(code), PRELOAD_SECONDS, 0, None)
            self._preloaded[code] = asyncio.ensure_future(loading)
        reply = await asyncio.shield(self._preloaded[code])
        return reply.status == 0

    async def _run(
        self, operation: int, data: bytes, stdin: bytes, seconds: float, limit: int
    ) -> ExecResult:
        with self.on_this_machine():
            feed = Feed(stdin) if stdin else None
        try:
            return _result(await self._request(operation, data, seconds, limit, feed))
        finally:
            if feed:
                feed.close()

    async def _request(
        self, operation: int, data: bytes, seconds: float, limit: int, stream: Feed | Gather | None
    ) -> Reply:
        if stream and self._owner:
            # A pipe is opened again through /dev/stdin by its owner only.
            os.fchown(stream.program_end, self._owner, self._owner)
        file = stream.program_end if stream else None
        channel = self._box.channel
        number, answer = channel.request(operation, data, seconds=seconds, limit=limit, file=file)
        try:
            return await answer
        except asyncio.CancelledError:
            channel.cancel(number)
            raise
        except SandboxGone as error:
            error.provider, error.sandbox_id = self.provider, self.id
            raise

    async def read_file(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        async with self.slots:
            with self.on_this_machine():
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
        async with self.slots:
            with self.on_this_machine():
                feed = Feed(encode(data) if isinstance(data, str) else data)
            try:
                reply = await self._request(wire.WRITE, encode(path), FILE_SECONDS, 0, feed)
            finally:
                feed.close()
        _check_file(path, reply)

    async def close(self) -> None:
        self._box.channel.fail(self.reason)
        await self._box.end()


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
