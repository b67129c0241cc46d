"""The host's end of a sandbox's socket. An agent is hostile: whatever it sends, its sandbox is lost
and nothing else."""

import asyncio
import socket

import pytest

from rlpipe.errors import SandboxGone
from rlpipe.sandboxes._agent import wire
from rlpipe.sandboxes._channel import Channel


@pytest.fixture
async def ends():
    ours, theirs = socket.socketpair()
    reasons = []
    channel = Channel(ours, reasons.append)
    yield channel, theirs, reasons
    channel.fail("over")
    theirs.close()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((5, 0, 0, 0, 0, 0.0, 0, 0), "protocol"),
        ((1, 0, 0, 0, 0, 0.0, 1 << 31, 0), "protocol"),
        ((1, 0, 0, 0, 0, 0.0, 1 << 16, 1001), "protocol"),
        ((1, 99, 0, 0, 0, 0.0, 0, 0), "protocol"),
        ((0, 0, 0, 0, 0, 0.0, 0, 0), "died"),
    ],
)
async def test_a_wrong_answer(ends, reply, reason):
    channel, theirs, reasons = ends
    channel.request(wire.EXEC, b"", seconds=5)[1].cancel()
    theirs.send(wire.REPLY.pack(0, 0, 0, 0, 0, 0.0, 0, 0))
    _, answer = channel.request(wire.EXEC, b"", seconds=5, limit=1000)
    theirs.send(wire.REPLY.pack(*reply))
    with pytest.raises(SandboxGone, match=reason):
        await answer
    assert len(reasons) == 1
    _, later = channel.request(wire.EXEC, b"", seconds=5)
    with pytest.raises(SandboxGone, match=reason):
        await later


async def test_odd_numbers_are_harmless(ends):
    channel, theirs, _ = ends
    _, answer = channel.request(wire.EXEC, b"", seconds=5)
    theirs.send(wire.REPLY.pack(0, 0, -(1 << 31), 7, 1 << 63, float("nan"), 0, 0))
    reply = await answer
    assert (reply.seconds, reply.truncated) == (0.0, True)


async def test_an_answer_in_pieces(ends):
    channel, theirs, _ = ends
    _, answer = channel.request(wire.EXEC, b"", seconds=5, limit=10)
    for byte in wire.REPLY.pack(0, 0, 3, 0, 5, 0.5, 2, 3) + b"ab" + b"cde":
        theirs.send(bytes([byte]))
        await asyncio.sleep(0)
    reply = await answer
    assert (reply.status, reply.output, reply.error) == (3, b"ab", b"cde")


async def test_patience_with_a_busy_processor_is_no_silence(ends, monkeypatch):
    monkeypatch.setattr("rlpipe.sandboxes._channel.GRACE_SECONDS", 0.0)
    channel, theirs, _ = ends
    _, answer = channel.request(wire.EXEC, b"", seconds=1.0)
    loop = asyncio.get_running_loop()
    reply = wire.REPLY.pack(0, 0, 0, 0, 0, 2.0, 0, 0)
    loop.call_later(2.0, theirs.send, reply)  # the agent may wait for five times as long
    assert (await answer).seconds == 2.0


async def test_silence(ends, monkeypatch):
    monkeypatch.setattr("rlpipe.sandboxes._channel.GRACE_SECONDS", 0.0)
    channel, _, _ = ends
    _, answer = channel.request(wire.EXEC, b"", seconds=0.01)
    with pytest.raises(SandboxGone, match="does not answer"):
        await answer
