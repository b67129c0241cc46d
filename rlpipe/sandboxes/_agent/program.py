"""What runs in a fork of the agent: a Python program, or one file read or written."""

from __future__ import annotations

import _socket
import atexit
import builtins
import errno
import gc
import os
import stat
import struct
import sys

from .system import OPEN_FILES
from .wire import PYTHON, READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 1 << 18
HANDOVER = struct.Struct(">BQ")  # operation, limit


def perform(operation: int, data: bytes, limit: int) -> int:
    if operation == PYTHON:
        return run_program(data)
    try:
        return send_file(data, limit) if operation == READ else receive_file(data)
    except (OSError, ValueError) as error:
        return getattr(error, "errno", None) or errno.EINVAL


def run_program(code: bytes) -> int:
    """Run the code as `__main__` in this process, a fresh fork; return its exit status."""
    module = type(sys)("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    try:
        source = code.decode("utf-8", "surrogatepass")
        exec(compile(source, "<string>", "exec", dont_inherit=True), module.__dict__)
        status = 0
    except SystemExit as end:
        status = exit_status(end.code)
    except BaseException as error:
        trace = error.__traceback__ and error.__traceback__.tb_next  # without this frame
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status = 1
    finish_program()
    return status


def preload(code: bytes) -> tuple[int, str]:
    """Run the host's own code in the agent, so that later programs are forked with what it made.

    Returns 0, or 1 and why it failed.
    """
    try:
        exec(compile(code, "<preload>", "exec", dont_inherit=True), {"__name__": "preload"})
    except Exception as error:
        return 1, f"{type(error).__name__}: {error}"
    settle()
    return 0, ""


def prepare() -> None:
    """Do once in the agent what would otherwise be done in each of its forks."""
    builtins.__dict__.update(exit=sys.exit, quit=sys.exit)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    compile("", "", "exec")  # makes the types of syntax trees
    settle()


def settle() -> None:
    """Put what there is beyond garbage collection: what is never written to stays shared."""
    gc.collect()
    gc.freeze()


def exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def finish_program() -> None:
    """Do what the interpreter does at its end, which `os._exit` leaves out."""
    threading: Any = sys.modules.get("threading")
    if threading:
        threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError, OSError):
            continue


def send_file(path: bytes, limit: int) -> int:
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(source)
    if stat.S_ISDIR(status.st_mode):
        return errno.EISDIR
    if status.st_size > limit:
        return errno.EFBIG
    while chunk := os.read(source, CHUNK):
        limit -= len(chunk)
        if limit < 0:
            return errno.EFBIG
        write_all(1, chunk)
    return 0


def receive_file(path: bytes) -> int:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    target = os.open(path, flags, 0o644)
    while chunk := os.read(0, CHUNK):
        write_all(target, chunk)
    return 0


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def await_program(channel: _socket.socket) -> int:
    """Be the process that waits for its program."""
    os.dup2(channel.fileno(), 3)
    os.closerange(4, OPEN_FILES)
    waiting = _socket.socket(fileno=3)
    message, ancillary, _, _ = waiting.recvmsg(CHUNK, _socket.CMSG_SPACE(4))
    waiting.detach()
    if not message:
        return 0
    operation, limit = HANDOVER.unpack_from(message)
    for fd in descriptors(ancillary):
        os.dup2(fd, standard_end(operation))
    os.closerange(3, OPEN_FILES)
    return perform(operation, message[HANDOVER.size :], limit)


def standard_end(operation: int) -> int:
    return 1 if operation == READ else 0


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    return [fd for _, _, data in ancillary for (fd,) in struct.iter_unpack("i", data)]
