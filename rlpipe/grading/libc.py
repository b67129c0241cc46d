"""Functions of the C library, without the milliseconds that importing `ctypes` takes.

They are found when this is loaded, so that a fork need not look for them.

Runs inside a sandbox, so it needs no more than Python 3.9 and its standard library.
"""

from __future__ import annotations

import _ctypes
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = _Int


class _Text(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "z"


_LIBRARY = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]


def _function(name: str) -> Callable[..., Any]:
    """A function of the C library that takes integers and bytes, and returns an `int`."""
    return _Function(_ctypes.dlsym(_LIBRARY, name))


prctl = _function("prctl")
capset = _function("capset")
syscall = _function("syscall")


def address(data: bytes) -> int:
    """Where `data` lies, for as long as it lives."""
    return int.from_bytes(memoryview(_Text(data)).cast("B"), sys.byteorder)
