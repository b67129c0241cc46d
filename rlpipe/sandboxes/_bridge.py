"""The outer end of the relays: what crosses a container's standard input and output."""

import asyncio
import os
import select
import socket
from contextlib import suppress
from pathlib import Path

from rlpipe.sandboxes._agent.relay import Relay

AGENT = Path(__file__).parent / "_agent"
MODULES = ("wire", "system", "program", "job", "launch", "loop", "relay")
LOADER = """
import sys
package = sys.modules["_agent"] = type(sys)("_agent")
package.__path__ = []
for name, text in modules:
    module = sys.modules["_agent." + name] = type(sys)("_agent." + name)
    module.__package__ = "_agent"
    exec(compile(text, "<rlpipe " + name + ">", "exec"), module.__dict__)
"""
BOOT = """
import os, sys
if sys.version_info < (3, 9):
    os.execvp("sh", ["sh", "-c", sys.argv[1]])
def read(size):
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return data
os.write(1, b"agent\\n")
exec(compile(read(int(read(8))), "<rlpipe>", "exec"))
"""
"""What Python runs in the container: the program that is sent, whose length comes first."""


def agent_program(relay_user: int, lifetime: float) -> bytes:
    """The agent with its modules, as `BOOT` reads it."""
    modules = [(name, (AGENT / f"{name}.py").read_text("utf-8")) for name in MODULES]
    start = f"sys.modules['_agent.relay'].main({relay_user}, {lifetime})"
    program = f"modules = {modules!r}\n{LOADER}\n{start}\n".encode()
    return b"%08d" % len(program) + program


class Bridge(Relay):
    """The outer relay, moved by the event loop; it owns its descriptors."""

    def __init__(self, control: socket.socket, source: int, sink: int, *, first: bytes) -> None:
        """`first` is sent before everything else."""
        super().__init__(control, source, sink, inner=False)
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, int] = {}
        self._open = True
        self.sink.left += first
        self._step()

    def release(self, fd: int) -> None:
        # Before its number goes to another descriptor, which would not be waited for.
        self._watch(fd, 0)
        super().release(fd)

    def close(self) -> None:
        """Let go of both sides, which each takes for the end of the other."""
        if not self._open:
            return
        self._open = False
        for fd in list(self._watched):
            self._watch(fd, 0)
        pipes = (*self.inlets, *(outlet.fd for outlet in self.outlets.values()))
        for fd in (*pipes, self.source, self.sink.fd):
            os.close(fd)
        self.control.close()

    def _step(self, *ready: int) -> None:
        if not self._open:
            return
        try:
            self.serve(ready)
        except (EOFError, ValueError, OSError):
            self.close()
            return
        wanted = self.interests()
        for fd in [*self._watched.keys() - wanted.keys(), *wanted]:
            self._watch(fd, wanted.get(fd, 0))

    def _watch(self, fd: int, events: int) -> None:
        before = self._watched.pop(fd, 0)
        if events:
            self._watched[fd] = events
        added, dropped = events & ~before, before & ~events
        if added & select.POLLIN:
            self._loop.add_reader(fd, self._step, fd)
        if added & select.POLLOUT:
            self._loop.add_writer(fd, self._step)
        with suppress(OSError):
            if dropped & select.POLLIN:
                self._loop.remove_reader(fd)
            if dropped & select.POLLOUT:
                self._loop.remove_writer(fd)
