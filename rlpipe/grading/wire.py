"""Messages between the harness and the candidate's process, and the conversation they make up.

Runs inside a sandbox, so it needs no more than Python 3.9 and its standard library.
"""

from __future__ import annotations

# The public halves of these take 20 ms to import, much longer than most tests take.
import _json
import _socket
from _collections import (  # type: ignore[import-not-found]
    OrderedDict,
    defaultdict,
    deque,
)

from rlpipe.grading.values import Codec, Uncrossable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar

MAX_MESSAGE = 16 << 20
"""Bytes of one message."""

USUAL = 1 << 12
"""Bytes that most messages are shorter than."""

DIGITS = 20


class Gone(BaseException):
    """The other process ended, or it sent what cannot be read.

    Not an `Exception`, so that a test's own `except Exception` does not take it for the
    candidate's error.
    """


def _short_int(text: str) -> int:
    # Reading an integer from decimal digits takes quadratic time.
    if len(text) > DIGITS:
        raise ValueError("a long number")
    return int(text)


def _refuse(value: Any) -> Any:
    raise Uncrossable(f"a {type(value).__name__} is no JSON")


class _Grammar:
    """What the scanner of the module `json` asks its owner for."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = staticmethod(_short_int)


_scan = _json.make_scanner(_Grammar())  # type: ignore[arg-type]
_dump = _json.make_encoder(
    None, _refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, False
)


def read(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError, RecursionError: it is no JSON, or nested too deeply.
    """
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than JSON")
    return value


def write(value: Any) -> str:
    """Write JSON, all in ASCII."""
    return "".join(_dump(value, 0))


class Wire:
    """Whole messages over a stream socket."""

    def __init__(self, connection: _socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()

    def send(self, message: list[Any]) -> None:
        data = write(message).encode()
        if len(data) > MAX_MESSAGE:
            raise Uncrossable(f"{len(data)} bytes are too many to cross")
        try:
            self.connection.sendall(len(data).to_bytes(4, "big") + data)
        except OSError as error:
            raise Gone(str(error)) from None

    def receive(self) -> list[Any]:
        size = int.from_bytes(self._take(4), "big")
        if size > MAX_MESSAGE:
            raise Gone("an oversized message came")
        data = self._take(size)
        try:
            message = read(data.decode())
        except (ValueError, RecursionError):
            raise Gone("a message came that cannot be read") from None
        if not isinstance(message, list) or not message:
            raise Gone("a message came that says nothing")
        return message

    def _take(self, size: int) -> bytes:
        while len(self.received) < size:
            try:
                missing = size - len(self.received)
                piece = self.connection.recv(min(max(missing, USUAL), 1 << 20))
            except OSError as error:
                raise Gone(str(error)) from None
            if not piece:
                raise Gone("the process ended")
            self.received += piece
        taken = bytes(self.received[:size])
        del self.received[:size]
        return taken


class Peer(Codec):
    """One side of the conversation: it asks, and answers questions that come while it waits."""

    caught: ClassVar[type[BaseException]] = Exception
    """What an answer may raise that the other side is told of."""

    def __init__(self, connection: _socket.socket) -> None:
        self.wire = Wire(connection)

    def perform(self, operation: str, arguments: list[Any]) -> Any:
        """Do what the other side asks for."""
        raise NotImplementedError

    def describe(self, error: BaseException) -> list[Any]:
        """Encode an error that `perform` raised."""
        raise NotImplementedError

    def rebuild(self, parts: list[Any]) -> BaseException:
        """Decode an error that the other side raised."""
        raise NotImplementedError

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Have the other side do `operation`, and return or raise what came of it."""
        self.wire.send(["ask", operation, [self.encode(argument) for argument in arguments]])
        while True:
            kind, *parts = self.wire.receive()
            if kind == "ask":
                self.answer(parts)
            elif kind == "ok":
                return self.settle(arguments, parts)
            else:
                raise self.rebuild(parts)

    def settle(self, _arguments: tuple[Any, ...], parts: list[Any]) -> Any:
        return self.decode(parts[0])

    def answer(self, parts: list[Any]) -> None:
        operation, data = parts
        try:
            arguments = [self.decode(item) for item in data]
            result = self.perform(operation, arguments)
            reply = ["ok", self.encode(result), self.changed(operation, data, arguments)]
            self.wire.send(reply)
        except self.caught as error:
            if isinstance(error, Gone):
                raise
            self.wire.send(["error", *self.describe(error)])

    def changed(self, operation: str, data: list[Any], arguments: list[Any]) -> Any:
        """For a call: the positional arguments that it altered in place, by position."""
        if operation != "call":
            return None
        given = data[1][1]
        now = {
            str(place): self.encode(argument)
            for place, argument in enumerate(arguments[1])
            if type(argument) in REFILLS
        }
        return {place: data for place, data in now.items() if data != given[int(place)]}


def _refill_mapping(old: Any, new: Any) -> None:
    old.clear()
    old.update(new)


def _refill_sequence(old: Any, new: Any) -> None:
    old.clear()
    old.extend(new)


REFILLS: dict[type, Callable[[Any, Any], None]] = {
    list: _refill_sequence,
    deque: _refill_sequence,
    bytearray: _refill_sequence,
    dict: _refill_mapping,
    OrderedDict: _refill_mapping,
    defaultdict: _refill_mapping,
    set: _refill_mapping,
}
"""How to make a mutable value of a test equal to what a call made of it."""


def refill(old: Any, new: Any) -> None:
    """Give a test's own value the contents that the candidate's call left it with."""
    if type(old) is type(new) and type(old) in REFILLS:
        REFILLS[type(old)](old, new)
