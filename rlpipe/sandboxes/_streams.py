"""Bytes that flow between the host and one program through a pipe that only these two have."""

import asyncio
import fcntl
import os
from contextlib import suppress

PIPE_BYTES = 1 << 20
USUAL_BYTES = 1 << 16
"""What a pipe takes that nobody has enlarged, which costs time."""

CHUNK = 1 << 18


def _pipe(size: int) -> tuple[int, int]:
    """A pipe for `size` bytes, which takes them at once where that is allowed."""
    read_end, write_end = os.pipe()
    if size > USUAL_BYTES:
        with suppress(OSError):  # an ordinary user may be refused the larger size
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_end, write_end


class Feed:
    """Writes `data` into a pipe as fast as the program at `program_end` reads."""

    def __init__(self, data: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = memoryview(data)
        self.program_end, self._end = _pipe(len(data))
        self._open = True
        os.set_blocking(self._end, False)
        self._write()
        if self._open:
            self._loop.add_writer(self._end, self._write)

    def _write(self) -> None:
        try:
            self._left = self._left[os.write(self._end, self._left[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
        if not self._left:
            self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_writer(self._end)
            os.close(self._end)


class Gather:
    """Collects what the program at `program_end` writes, up to a little over `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._end, self.program_end = _pipe(limit)
        self._open = True
        self.data = bytearray()
        os.set_blocking(self._end, False)
        self._loop.add_reader(self._end, self._read)

    @property
    def overflowed(self) -> bool:
        return len(self.data) > self._limit

    def _read(self) -> bool:
        try:
            chunk = os.read(self._end, CHUNK)
        except BlockingIOError:
            return False
        self.data += chunk
        if not chunk or self.overflowed:
            self.close()
        return self._open

    def finish(self) -> None:
        """Take what is left in the pipe, once the program has ended."""
        while self._open and self._read():
            pass
        self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._end)
            os.close(self._end)
