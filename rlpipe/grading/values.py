"""How values cross between the harness and the candidate's process.

Plain data is copied: none, truth values, small integers, finite floats and strings stand for
themselves, everything else is a list whose first item is its tag. Nothing that arrives can name
code to run, so data is safe to read whoever wrote it.

Runs inside a sandbox, so it needs no more than Python 3.9 and its standard library.
"""

from __future__ import annotations

import builtins
import sys
from _collections import (  # type: ignore[import-not-found]  # `collections` is slow to import
    OrderedDict,
    defaultdict,
    deque,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # so is `typing`
    from collections.abc import Callable
    from typing import Any

MOST_ITEMS = 8 << 20
"""Items of one collection."""

MAX_DEPTH = 100
"""How deeply data may be nested. The reader recurses, and its stack has an end."""

EXACT = 1 << 53
BY_TEXT: dict[str, Callable[[Any], str]] = {
    "decimal.Decimal": str,
    "fractions.Fraction": str,
    "uuid.UUID": str,
    "datetime.date": lambda value: str(value.isoformat()),
    "datetime.time": lambda value: str(value.isoformat()),
    "datetime.datetime": lambda value: str(value.isoformat()),
    "datetime.timedelta": lambda value: f"{value.days} {value.seconds} {value.microseconds}",
}
"""Types of the standard library whose values their text gives back."""


class Uncrossable(TypeError):
    """A value that has no form on the wire."""


def import_module(name: str) -> Any:
    """`importlib.import_module`, which is slow to import itself."""
    __import__(name)
    return sys.modules[name]


class Codec:
    """Turns values into JSON and back; subclasses say what happens to values that are not plain."""

    def give(self, value: Any, depth: int) -> Any:
        """Encode a value that is not plain data."""
        raise Uncrossable(f"a {type(value).__name__} cannot cross")

    def take(self, tag: str, parts: list[Any]) -> Any:
        """Decode what only the other side's `give` writes."""
        raise ValueError(f"unknown tag {tag!r}")

    def encode(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        if value is None or value is True or value is False:
            return value
        if depth <= 0:
            raise Uncrossable("data that is nested so deeply cannot cross")
        kind = type(value)
        encoder = _ENCODERS.get(kind)
        if encoder is not None:
            return encoder(self, value, depth - 1)
        key = f"{kind.__module__}.{kind.__qualname__}"
        if key == "collections.Counter":
            return ["C", self.pairs(value.items(), depth - 1)]
        if key in BY_TEXT:
            return ["n", key, BY_TEXT[key](value)]
        return self.give(value, depth - 1)

    def decode(self, data: Any) -> Any:
        if not isinstance(data, list):
            return data
        tag, *parts = data
        decoder = _DECODERS.get(tag)
        return decoder(self, parts) if decoder is not None else self.take(tag, parts)

    def items(self, values: Any, depth: int) -> list[Any]:
        _count(values)
        return [self.encode(value, depth) for value in values]

    def pairs(self, values: Any, depth: int) -> list[Any]:
        _count(values)
        return [[self.encode(key, depth), self.encode(value, depth)] for key, value in values]

    def decoded(self, data: Any) -> list[Any]:
        return [self.decode(item) for item in data]

    def mapping(self, data: Any) -> dict[Any, Any]:
        return {self.decode(key): self.decode(value) for key, value in data}


def _count(values: Any) -> None:
    if len(values) > MOST_ITEMS:
        raise Uncrossable(f"{len(values)} items are too many to cross")


def _encode_int(_codec: Codec, value: int, _depth: int) -> Any:
    # In base 16, since Python refuses to write long integers in base 10.
    return value if -EXACT < value < EXACT else ["i", format(value, "x")]


def _encode_float(_codec: Codec, value: float, _depth: int) -> Any:
    return value if value - value == 0 else ["f", repr(value)]


def _encode_type(codec: Codec, value: type, depth: int) -> Any:
    if getattr(builtins, value.__name__, None) is value:
        return ["k", value.__name__]
    return codec.give(value, depth)


def _decode_builtin(_codec: Codec, parts: list[Any]) -> type:
    found = getattr(builtins, parts[0])
    if not isinstance(found, type):
        raise ValueError("not a type")
    return found


def _decode_text(_codec: Codec, parts: list[Any]) -> Any:
    key, text = parts
    if key not in BY_TEXT:
        raise ValueError(f"unknown type {key!r}")
    module, name = key.split(".")
    kind = getattr(import_module(module), name)
    if name == "timedelta":
        return kind(*map(int, text.split()))
    return kind.fromisoformat(text) if module == "datetime" else kind(text)


_ENCODERS: dict[type, Callable[[Codec, Any, int], Any]] = {
    str: lambda codec, value, depth: value,
    int: _encode_int,
    float: _encode_float,
    complex: lambda codec, value, depth: ["c", repr(value.real), repr(value.imag)],
    bytes: lambda codec, value, depth: ["b", value.hex()],
    bytearray: lambda codec, value, depth: ["B", value.hex()],
    list: lambda codec, value, depth: ["l", codec.items(value, depth)],
    tuple: lambda codec, value, depth: ["t", codec.items(value, depth)],
    set: lambda codec, value, depth: ["S", codec.items(value, depth)],
    frozenset: lambda codec, value, depth: ["F", codec.items(value, depth)],
    deque: lambda codec, value, depth: ["d", codec.items(value, depth), value.maxlen],
    dict: lambda codec, value, depth: ["D", codec.pairs(value.items(), depth)],
    OrderedDict: lambda codec, value, depth: ["O", codec.pairs(value.items(), depth)],
    defaultdict: lambda codec, value, depth: [
        "E",
        codec.encode(value.default_factory, depth),
        codec.pairs(value.items(), depth),
    ],
    type({}.keys()): lambda codec, value, depth: ["K", codec.items(value, depth)],
    type({}.items()): lambda codec, value, depth: ["I", codec.pairs(value, depth)],
    range: lambda codec, value, depth: [
        "r", *codec.items((value.start, value.stop, value.step), depth)
    ],
    type(...): lambda codec, value, depth: ["e"],
    type: _encode_type,
}  # fmt: skip

_DECODERS: dict[str, Callable[[Codec, list[Any]], Any]] = {
    "i": lambda codec, parts: int(parts[0], 16),
    "f": lambda codec, parts: float(parts[0]),
    "c": lambda codec, parts: complex(float(parts[0]), float(parts[1])),
    "b": lambda codec, parts: bytes.fromhex(parts[0]),
    "B": lambda codec, parts: bytearray.fromhex(parts[0]),
    "l": lambda codec, parts: codec.decoded(parts[0]),
    "t": lambda codec, parts: tuple(codec.decoded(parts[0])),
    "S": lambda codec, parts: set(codec.decoded(parts[0])),
    "F": lambda codec, parts: frozenset(codec.decoded(parts[0])),
    "d": lambda codec, parts: deque(codec.decoded(parts[0]), parts[1]),
    "D": lambda codec, parts: codec.mapping(parts[0]),
    "O": lambda codec, parts: OrderedDict(codec.mapping(parts[0])),
    "C": lambda codec, parts: import_module("collections").Counter(codec.mapping(parts[0])),
    "E": lambda codec, parts: defaultdict(codec.decode(parts[0]), codec.mapping(parts[1])),
    "K": lambda codec, parts: dict.fromkeys(codec.decoded(parts[0])).keys(),
    "I": lambda codec, parts: codec.mapping(parts[0]).items(),
    "r": lambda codec, parts: range(*codec.decoded(parts)),
    "e": lambda codec, parts: ...,
    "k": _decode_builtin,
    "n": _decode_text,
}

COPIES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    tuple: lambda value: tuple(tuple.__iter__(value)),
    list: lambda value: list(list.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    bytes: lambda value: bytes(bytes.__iter__(value)),
}
"""How to see an instance of a subclass as its base type sees it."""


def plain_copy(value: Any) -> Any:
    """A copy of the plain part of a value whose class derives from a plain type, else the value."""
    for base, copy in COPIES.items():
        if isinstance(value, base):
            return copy(value)
    return value


def plain_array(value: Any) -> Any:
    """A numpy array or number as lists and numbers; every other value as it is."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    return value
