"""A stand-in for CoreWeave's service, on loopback: the unmodified SDK talks to it over gRPC.

Its sandboxes are local ones. Where the real service's behaviour is not known it is unkind: the
end of a call ends no process, and a file is not written into a folder that does not exist.
"""

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

import grpc
from cwsandbox._proto import sandbox_pb2 as proto
from cwsandbox._proto import sandbox_pb2_grpc as services
from google.protobuf import any_pb2, timestamp_pb2
from google.rpc import error_details_pb2, status_pb2

from rlpipe.errors import SandboxError, SandboxFileError
from rlpipe.sandboxes._agent import wire
from rlpipe.sandboxes._local import LocalSandbox
from rlpipe.sandboxes.coreweave import CoreWeave
from rlpipe.sandboxes.local import Local
from tests.sandboxes.relay import CLOSE, COMMAND, ERROR, EXIT, FRAME, OUTPUT, RELAY, STDIN

Code = grpc.StatusCode
Fault = Literal[
    "unavailable",
    "exhausted",
    "refused",
    "missing",
    "lost_reply",
    "cut",
    "gone",
    "killed",
    "hang",
    "silent",
    "STREAM_BACKPRESSURE",
    "STREAM_TRUNCATED",
]
"""What goes wrong in one call.

    unavailable, exhausted, refused, missing   answered at once with that status
    lost_reply                                 done, but the answer is `unavailable`
    cut                                        the stream ends after some output
    gone, killed                               the sandbox ends while the command runs; `killed`
                                               tells of it as of a command that was killed
    hang                                       no answer at all
    silent                                     nothing is run, and that is called a success
    STREAM_...                                 output was lost on its way
"""

PAGE = 10
RETRY_SECONDS = 0.05
MESSAGE_BYTES = 100 << 20
LONGEST = 3600.0
FILE_REASONS = {
    "not_found": (Code.NOT_FOUND, "CWSANDBOX_FILE_NOT_FOUND"),
    "is_directory": (Code.FAILED_PRECONDITION, "CWSANDBOX_FILE_IS_DIRECTORY"),
    "permission": (Code.PERMISSION_DENIED, "CWSANDBOX_FILE_PERMISSION_DENIED"),
    "too_large": (Code.OUT_OF_RANGE, "CWSANDBOX_FILE_TOO_LARGE"),
    "io": (Code.INTERNAL, "CWSANDBOX_FILE_IO_FAILED"),
}


@dataclass
class Machine:
    """One sandbox of the service."""

    id: str
    spec: Any
    box: LocalSandbox
    created: float = field(default_factory=time.time)
    executions: set["asyncio.Future[Any]"] = field(default_factory=set)

    def message(self) -> Any:
        message = proto.Sandbox(sandbox_id=self.id, spec=self.spec)
        message.status.state = proto.STATE_RUNNING if self.live else proto.STATE_TERMINATED
        message.status.create_time.CopyFrom(_timestamp(self.created))
        return message

    @property
    def live(self) -> bool:
        return self.box.status == "running"


class StandIn(services.SandboxServiceServicer):
    """The service; within its context it listens at `url`.

    `fault` is asked at each call, by method, and may say what shall go wrong in it; `injected`
    holds what did, with the sandbox that it befell. `gates` hold calls of a method back.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.machines: dict[str, Machine] = {}
        self.calls: list[str] = []
        self.fault: Callable[[str], Fault | None] = lambda method: None
        self.injected: list[tuple[str, Fault, str]] = []
        self.gates: dict[str, asyncio.Event] = {}
        self._numbers = count(1)
        self._requests: dict[str, asyncio.Future[str]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "StandIn":
        self._local = await self._stack.enter_async_context(Local().open())
        options = [("grpc.max_receive_message_length", MESSAGE_BYTES)]
        server = grpc.aio.server(options=options)
        services.add_SandboxServiceServicer_to_server(self, server)
        self.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        self._stack.push_async_callback(server.stop, 0)
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self._stack.aclose()

    @property
    def live(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.live]

    def fail(self, method: str, *faults: Fault) -> None:
        """Let these go wrong, one after the other, in the next calls of a method."""
        left = deque(faults)
        self.fault = lambda called: left.popleft() if called == method and left else None

    async def CreateSandbox(self, request: Any, context: Any) -> Any:
        fault = await self._begin("CreateSandbox", "", context)
        again = self._requests.get(request.request_id)
        if again is None:
            again = asyncio.ensure_future(self._create(request.sandbox.spec))
            self._requests[request.request_id] = again
        machine = self.machines[await asyncio.shield(again)]
        if fault == "lost_reply":
            await _abort(context, "unavailable")
        return machine.message()

    async def _create(self, spec: Any) -> str:
        container = spec.containers[0]
        # More processes than a command of the test's own needs: each has one more at its side.
        wanted = replace(
            Local().spec(),
            env=dict(container.environment_variables),
            workdir=container.working_dir or "/work",
            lifetime=float(spec.max_lifetime_seconds),
            pids=256,
        )
        box = await self._local.start(wanted)
        assert isinstance(box, LocalSandbox)
        id = f"cw-{next(self._numbers)}"
        self.machines[id] = Machine(id, spec, box)
        return id

    async def GetSandbox(self, request: Any, context: Any) -> Any:
        await self._begin("GetSandbox", request.sandbox_id, context)
        return (await self._machine(request.sandbox_id, context)).message()

    async def ListSandboxes(self, request: Any, context: Any) -> Any:
        await self._begin("ListSandboxes", "", context)
        found = [
            machine
            for machine in self.machines.values()
            if set(request.tags) <= set(machine.spec.tags)
            and (request.show_terminated or machine.live)
        ]
        first = int(request.page_token or 0)
        following = str(first + PAGE) if first + PAGE < len(found) else ""
        page = [machine.message() for machine in found[first : first + PAGE]]
        return proto.ListSandboxesResponse(sandboxes=page, next_page_token=following)

    async def DeleteSandbox(self, request: Any, context: Any) -> Any:
        fault = await self._begin("DeleteSandbox", request.sandbox_id, context)
        machine = await self._machine(request.sandbox_id, context)
        await machine.box.stop()
        if fault == "lost_reply":
            await _abort(context, "unavailable")
        return proto.DeleteSandboxResponse(sandbox=machine.message())

    async def ConnectSandbox(self, request: Any, context: Any) -> Any:
        await context.abort(Code.UNIMPLEMENTED, "there is no direct way to a sandbox")

    async def WriteFile(self, request: Any, context: Any) -> Any:
        machine = await self._machine(request.sandbox_id, context, running=True)
        await self._begin("WriteFile", request.sandbox_id, context)
        folder = await machine.box.exec(["test", "-d", os.path.dirname(request.path)])
        if not folder.ok:
            await _abort_for(context, *FILE_REASONS["not_found"])
        try:
            await machine.box.write_file(request.path, request.content)
        except SandboxFileError as error:
            await _abort_for(context, *FILE_REASONS[error.kind])
        return proto.WriteFileResponse()

    async def StreamExec(self, requests: Any, context: Any) -> Any:
        start = (await anext(aiter(requests))).init
        machine = await self._machine(start.sandbox_id, context, running=True)
        fault = await self._begin("StreamExec", start.sandbox_id, context)
        yield proto.ExecStreamResponse(ready=proto.ExecStreamReady(ready_time=_timestamp()))
        if fault == "silent":
            yield _exit(0)
            return
        line = Line()
        running = asyncio.ensure_future(_run(machine.box, line))
        machine.executions.add(running)
        running.add_done_callback(machine.executions.discard)
        reader, writer = await line.open()
        _send(writer, COMMAND, "\0".join(start.command).encode())
        feeding = asyncio.ensure_future(_feed(requests, writer))
        try:
            async for answer in _answers(reader):
                if answer.HasField("exit") and fault == "STREAM_TRUNCATED":
                    yield _stream_error(fault)
                yield answer
                if fault == "cut":
                    await _abort(context, "unavailable")
                if fault in ("gone", "killed"):
                    await machine.box.stop()
                    break
                if fault == "STREAM_BACKPRESSURE":
                    yield _stream_error(fault)
                if answer.HasField("exit"):
                    return
            if not machine.live and fault != "killed":
                await _abort_for(context, Code.CANCELLED, None)
            yield _exit(137)
        finally:
            feeding.cancel()
            writer.close()

    async def _begin(self, method: str, id: str, context: Any) -> Fault | None:
        """Let a call in; the fault that is to come later in it, if any."""
        self.calls.append(method)
        if method in self.gates:
            await self.gates[method].wait()
        given = dict(context.invocation_metadata()).get("authorization")
        if given != f"Bearer {self.key}":
            await _abort(context, "refused")
        fault = self.fault(method)
        if fault:
            self.injected.append((method, fault, id))
        if fault == "hang":
            await asyncio.Event().wait()
        if fault in ("unavailable", "exhausted", "refused", "missing"):
            await _abort(context, fault)
        return fault

    async def _machine(self, id: str, context: Any, running: bool = False) -> Machine:
        machine = self.machines.get(id)
        if machine is None or (running and not machine.live):
            await _abort(context, "missing")
        assert machine is not None
        return machine


def provider_of(service: StandIn, **options: Any) -> CoreWeave:
    return CoreWeave(base_url=service.url, image="python:3.11", **options)


class Line:
    """A socket between the service and the relay in a sandbox, where it is standard input."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self.program_end = theirs.detach()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(sock=self._ours)


async def _run(box: LocalSandbox, line: Line) -> None:
    with suppress(SandboxError):
        await box._request(wire.PYTHON, RELAY.encode(), LONGEST, 0, line)


async def _feed(requests: Any, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, grpc.RpcError):
        async for request in requests:
            if request.HasField("close"):
                break
            _send(writer, STDIN, request.stdin)
            await writer.drain()
        _send(writer, CLOSE, b"")


def _send(writer: asyncio.StreamWriter, kind: int, data: bytes) -> None:
    writer.write(FRAME.pack(kind, len(data)) + data)


async def _answers(reader: asyncio.StreamReader) -> Any:
    with suppress(asyncio.IncompleteReadError, OSError):
        while True:
            kind, size = FRAME.unpack(await reader.readexactly(FRAME.size))
            data = await reader.readexactly(size)
            if kind == EXIT:
                yield _exit(int(data))
                return
            stream = {
                OUTPUT: proto.ExecStreamOutput.STREAM_STDOUT,
                ERROR: proto.ExecStreamOutput.STREAM_STDERR,
            }[kind]
            yield proto.ExecStreamResponse(output=proto.ExecStreamOutput(stream=stream, data=data))


def _exit(status: int) -> Any:
    return proto.ExecStreamResponse(exit=proto.ExecStreamExit(exit_code=status))


def _stream_error(code: Fault) -> Any:
    return proto.ExecStreamResponse(error=proto.ExecStreamError(message="lost", code=code))


async def _abort(context: Any, fault: Fault) -> None:
    code, reason = {
        "unavailable": (Code.UNAVAILABLE, "CWSANDBOX_BACKEND_UNAVAILABLE"),
        "exhausted": (Code.RESOURCE_EXHAUSTED, "CWSANDBOX_RUNNER_OVERLOADED"),
        "refused": (Code.UNAUTHENTICATED, None),
        "missing": (Code.NOT_FOUND, "CWSANDBOX_SANDBOX_NOT_FOUND"),
    }[fault]
    patient = fault in ("unavailable", "exhausted")
    await _abort_for(context, code, reason, RETRY_SECONDS if patient else None)


async def _abort_for(
    context: Any, code: Code, reason: str | None, retry_after: float | None = None
) -> None:
    details = []
    if reason:
        details.append(error_details_pb2.ErrorInfo(reason=reason, domain="cwsandbox.com"))
    if retry_after is not None:
        hint = error_details_pb2.RetryInfo()
        hint.retry_delay.FromMilliseconds(int(retry_after * 1000))
        details.append(hint)
    status = status_pb2.Status(code=code.value[0], message=code.name)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(code, f"injected {code.name.lower()}")


def _timestamp(seconds: float | None = None) -> Any:
    stamp = timestamp_pb2.Timestamp()
    stamp.FromNanoseconds(int((time.time() if seconds is None else seconds) * 1e9))
    return stamp
