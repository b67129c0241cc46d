"""A model service on a real socket that answers as a test tells it to."""

import asyncio
import contextlib
import json
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

NOW = 1_700_000_000.0
"""The time that retries count dates from: Tue, 14 Nov 2023 22:13:20 GMT."""

EXECUTE = {
    "type": "function",
    "function": {
        "name": "execute_code",
        "description": "Run it.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}},
            "required": ["code"],
            "additionalProperties": False,
        },
    },
}
"""A tool that a request may offer."""


@dataclass(frozen=True)
class Reply:
    """How one request is answered; `body` is JSON unless it is bytes."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    act: Literal["answer", "reset", "cut", "hang", "trickle"] = "answer"
    delay: float = 0.0

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Asked:
    """A request that arrived."""

    path: str
    headers: dict[str, str]
    body: Any


class Server:
    """Plays its replies in order, and the last one for ever."""

    def __init__(self) -> None:
        self.replies: deque[Reply] = deque()
        self.asked: list[Asked] = []
        self.connections = 0
        self.busy = 0
        self.most_busy = 0
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()
        self.url = ""

    def reply(self, *replies: Reply) -> None:
        self.replies.extend(replies)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while asked := await _read(reader):
                self.asked.append(asked)
                self.arrived.set()
                self.busy += 1
                self.most_busy = max(self.most_busy, self.busy)
                reply = self.replies.popleft() if len(self.replies) > 1 else self.replies[0]
                await asyncio.sleep(reply.delay)
                await self.play(reply, reader, writer)
                self.busy -= 1
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def play(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        content = reply.content()
        if reply.act == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        elif reply.act == "hang":
            await reader.read()
            self.left.set()
        elif reply.act == "trickle":
            writer.write(_head(reply, 1 << 20))
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.01)
        else:
            cut = reply.act == "cut"
            writer.write(_head(reply, len(content) + cut) + content)
            await writer.drain()
            if cut:
                writer.close()


def _head(reply: Reply, length: int) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} Told So", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    content = await reader.readexactly(int(headers.get("content-length", 0)))
    # Names of headers are compared in lower case, but a key is not.
    kept = {name: line.split(": ", 1)[1] for name, line in zip(headers, lines, strict=True)}
    return Asked(first.split(" ")[1], kept, json.loads(content) if content else None)


@asynccontextmanager
async def running() -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{port}/v1"
    async with listener:
        yield server
        listener.close()


def completion(
    content: str | None = "Hello.",
    *,
    finish_reason: str | None = "stop",
    message: dict[str, Any] | None = None,
    choice: dict[str, Any] | None = None,
    **top: Any,
) -> Reply:
    """A chat completion, with further keys of its message, its choice and itself."""
    said = {"role": "assistant", "content": content, **(message or {})}
    first = {"index": 0, "message": said, "finish_reason": finish_reason, **(choice or {})}
    return Reply({"id": "c1", "object": "chat.completion", "choices": [first], **top})


def calling(*calls: tuple[str | None, str, Any]) -> Reply:
    """A chat completion that calls tools, each given as id, name and arguments."""
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return completion(None, finish_reason="tool_calls", message={"tool_calls": tool_calls})


def response(*output: dict[str, Any], status: str = "completed", **top: Any) -> Reply:
    """A response of the Responses API."""
    return Reply({"id": "r1", "object": "response", "status": status, "output": output, **top})


def failing(status: int, message: str = "no", code: Any = None, **headers: str) -> Reply:
    """An error in OpenAI's form."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply({"error": {"message": message, "code": code}}, status, named)
