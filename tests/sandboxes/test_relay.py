"""What crosses a container's standard streams, in either direction; no engine is needed."""

import asyncio
import os
import socket

import pytest

from rlpipe.sandboxes._agent.relay import BYTES, CHUNK, END, FRAME, READER, TALK, WRITER, Relay
from rlpipe.sandboxes._bridge import Bridge


class End:
    """A relay with a test at its control socket and at the other end of its streams."""

    def __init__(self, make):
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        source, self.to_relay = os.pipe()
        self.from_relay, sink = os.pipe()
        os.set_blocking(self.from_relay, False)
        self.relay = make(theirs, source, sink)

    def send(self, kind, number, data=b""):
        os.write(self.to_relay, FRAME.pack(kind, number, len(data)) + data)
        self.relay.serve([self.relay.source])

    def frames(self):
        """What the relay has written since the last time."""
        data, found = os.read(self.from_relay, CHUNK), []
        while data:
            kind, number, size = FRAME.unpack_from(data)
            found.append((kind, number, data[FRAME.size : FRAME.size + size]))
            data = data[FRAME.size + size :]
        return found

    def heard(self):
        try:
            return socket.recv_fds(self.control, CHUNK, 16)[:2]
        except BlockingIOError:
            return b"", []


@pytest.fixture
def outer():
    return End(lambda *ends: Relay(*ends, inner=False))


@pytest.fixture
def inner():
    return End(lambda *ends: Relay(*ends, inner=True))


def test_a_pipe_is_continued_on_the_other_side(outer, inner):
    read_end, write_end = os.pipe()
    socket.send_fds(outer.control, [b"run"], [read_end])
    outer.relay.serve([outer.relay.control.fileno()])
    os.write(write_end, b"input")
    os.close(write_end)
    for _ in range(2):
        outer.relay.serve(list(outer.relay.inlets))
    frames = outer.frames()
    assert frames == [(READER, 1, b""), (TALK, 0, b"run"), (BYTES, 1, b"input"), (END, 1, b"")]
    for frame in frames:
        inner.send(*frame)
    words, (program_end,) = inner.heard()
    assert (words, os.read(program_end, 100), os.read(program_end, 1)) == (b"run", b"input", b"")


def test_what_a_program_wrote_comes_before_the_news_of_its_end(inner):
    inner.send(WRITER, 7)
    inner.send(TALK, 0, b"run")
    _, (program_end,) = inner.heard()
    os.write(program_end, b"written")
    inner.control.send(b"ended")
    inner.relay.serve([inner.relay.control.fileno()])  # as if only that had been noticed
    assert inner.frames() == [(BYTES, 7, b"written"), (TALK, 0, b"ended")]


def test_an_answer_waits_for_the_bytes_that_came_before_it(outer):
    read_end, write_end = os.pipe()
    socket.send_fds(outer.control, [b"x"], [write_end])
    outer.relay.serve([outer.relay.control.fileno()])
    for _ in range(3):
        outer.send(BYTES, 1, b"x" * 40_000)  # more than the pipe takes
    outer.send(TALK, 0, b"complete")
    assert outer.heard() == (b"", [])
    assert len(os.read(read_end, CHUNK)) < 120_000
    outer.relay.serve([])
    assert outer.heard()[0] == b"complete"


def test_input_that_is_not_read_holds_up_no_request(inner):
    inner.send(READER, 1)
    for _ in range(3):
        inner.send(BYTES, 1, b"x" * 40_000)
    inner.send(TALK, 0, b"another")
    assert inner.heard()[0] == b"another"


def test_a_reader_that_is_gone_is_forgotten(inner):
    inner.send(READER, 1)
    inner.send(TALK, 0, b"run")
    _, (program_end,) = inner.heard()
    os.close(program_end)
    inner.send(BYTES, 1, b"more")
    inner.send(BYTES, 1, b"more")
    assert inner.relay.outlets == {}


@pytest.mark.parametrize(("kind", "size"), [(TALK, CHUNK + 1), (READER, 0), (WRITER, 0), (99, 0)])
def test_a_container_cannot_break_the_outer_relay(outer, kind, size):
    os.write(outer.to_relay, FRAME.pack(kind, 1, size))
    with pytest.raises(ValueError, match="frame"):
        outer.relay.serve([outer.relay.source])


def test_bytes_for_nobody_are_dropped(outer):
    outer.send(BYTES, 5, b"x")
    outer.send(END, 5)
    assert outer.relay.interests().keys() == {outer.relay.source, outer.relay.control.fileno()}


def test_the_end_of_a_side_is_noticed(outer, inner):
    os.close(outer.to_relay)
    with pytest.raises(EOFError):
        outer.relay.serve([outer.relay.source])
    inner.control.close()
    with pytest.raises(EOFError):
        inner.relay.serve([inner.relay.control.fileno()])


async def test_a_descriptor_s_number_may_come_again_at_once():
    end = End(lambda *ends: Bridge(*ends, first=b""))
    for data in (b"one", b"two"):
        read_end, write_end = os.pipe()
        socket.send_fds(end.control, [b"x"], [read_end])
        os.close(read_end)
        # The end of the first pipe and the second are noticed in one step.
        end.relay._step(end.relay.control.fileno())
        os.write(write_end, data)
        async with asyncio.timeout(5):
            while not any(frame[2] == data for frame in await frames(end)):
                pass
        os.close(write_end)
    end.relay.close()
    assert end.control.recv(1) == b""


async def frames(end):
    await asyncio.sleep(0.01)
    try:
        return end.frames()
    except BlockingIOError:
        return []
