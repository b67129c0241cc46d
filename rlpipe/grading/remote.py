"""The harness's view of what belongs to the candidate: handles, and the link they work through.

An object that could see an expected value, or say by itself whether it equals one, would judge
itself. So a handle meets no plain value of a test in a comparison or in arithmetic, and another
handle only where both are of classes that the tests want. What a test itself made of such a class
does meet plain values, as in `Vector(1, 2) * 3`: there is no other way to test it.

Runs inside a sandbox, so it needs no more than Python 3.9 and its standard library.
"""

from __future__ import annotations

import _operator
import _socket
import builtins
import sys

from rlpipe.grading.values import plain_array, plain_copy
from rlpipe.grading.wire import Gone, Peer, refill

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

COMPARISONS = frozenset({"eq", "lt", "le", "gt", "ge"})

MOST_ITEMS = 100_000
"""Items that are taken from one iterator of the candidate's."""

TESTS_MODULE = "tests"

UNASKED = ("__array", "__cuda_array", "__dlpack")
"""Attributes by which numpy and its kin find an array's memory: an address of the harness's."""


class CandidateError(Exception):
    """The candidate raised what has no built-in type, or did what a test cannot follow."""


class Remote:
    """A handle of an object that stays in the candidate's process."""

    __slots__ = ("_copied", "_link", "_own", "_reference")

    def __init__(self, link: Link, reference: int, copied: bool, own: bool) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_reference", reference)
        # Whether it is seen as the plain value that its class derives from.
        object.__setattr__(self, "_copied", copied)
        # Whether the candidate says that it is of a class that the tests want.
        object.__setattr__(self, "_own", own)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._link.ask("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        return _attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("builtin", "setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._link.ask("builtin", "delattr", self, name)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._link.ask("builtin", "iter", self)
        for _ in range(MOST_ITEMS):
            try:
                item = self._link.ask("builtin", "next", iterator)
            except StopIteration:
                return
            yield item
        raise CandidateError(f"an iterator gives more than {MOST_ITEMS} items")

    def __contains__(self, item: Any) -> bool:
        # By looking at the items, since an object could contain everything it is asked for.
        return any(item is other or item == other for other in self)

    def __eq__(self, other: object) -> Any:
        return True if self is other else _reckon("eq", self, other)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        if self._own:
            return int(self._link.ask("builtin", "hash", self))
        return id(self)

    def __instancecheck__(self, value: Any) -> bool:
        mine = isinstance(value, (Remote, *TWINS)) or hasattr(value, "_reference")
        return mine and bool(self._link.ask("builtin", "isinstance", value, self))

    def __exit__(self, *_error: Any) -> bool:
        return bool(self.__getattr__("__exit__")(None, None, None))


class Made(Remote):
    """A handle of what a test made itself, by calling a class that it wants or by reckoning."""

    __slots__ = ()

    def __contains__(self, item: Any) -> bool:
        self._link.judged = True
        return bool(self._link.ask("operator", "contains", self, item))


class Constructor(Remote):
    """A class that the tests want, under the name by which they want it.

    The same class under another name makes nothing that may meet plain values, or a candidate
    would put it in the place of a function.
    """

    __slots__ = ()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._link.made(super().__call__(*arguments, **named))


def _attribute(owner: Any, name: str) -> Any:
    """Ask the candidate for an attribute, unless a library would take it for code or an address."""
    if name.startswith(UNASKED):
        raise AttributeError(name)
    value = owner._link.ask("builtin", "getattr", owner, name)
    if name == "__annotations__" and _holds_text(value):
        raise AttributeError(f"{name} that are text, which would be run as code")
    return value


def _holds_text(annotations: Any) -> bool:
    return type(annotations) is not dict or any(isinstance(v, str) for v in annotations.values())


def _reckon(name: str, left: Any, right: Any) -> Any:
    """Apply an operator where the candidate may do so by itself, else to plain values alone."""
    handles = [side for side in (left, right) if isinstance(side, Remote)]
    link, first = handles[0]._link, handles[0]
    copied = all(handle._copied for handle in handles)
    own = link.wants_classes and all(handle._own for handle in handles)
    if own and (len(handles) == 2 or type(first) is Made) and not (copied and name == "eq"):
        link.judged = link.judged or name in COMPARISONS
        result = link.ask("operator", name, left, right)
        return link.made(result) if all(type(handle) is Made for handle in handles) else result
    if copied:
        return getattr(_operator, name)(link.plain(left), link.plain(right))
    return NotImplemented


def _unary(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: Any) -> Any:
        return self._link.ask("builtin", name, self, *arguments)

    return method


def _binary(name: str, swapped: bool = False) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        return _reckon(name, other, self) if swapped else _reckon(name, self, other)

    return method


def _subscript(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: Any) -> Any:
        return self._link.ask("operator", name, self, *arguments)

    return method


def _add_special_methods() -> None:
    # `__instancecheck__`, `__int__` and the like must stand on the class for Python to find them.
    for name in ("len", "bool", "str", "repr", "int", "float", "complex", "round", "abs",
                 "format", "reversed", "next", "dir"):  # fmt: skip
        setattr(Remote, f"__{name}__", _unary(name))
    for name in ("getitem", "setitem", "delitem", "neg", "pos", "invert", "index"):
        setattr(Remote, f"__{name}__", _subscript(name))
    for name in ("lt", "le", "gt", "ge"):
        setattr(Remote, f"__{name}__", _binary(name))
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift",
                 "rshift", "and_", "or_", "xor"):  # fmt: skip
        plain = name.rstrip("_")
        setattr(Remote, f"__{plain}__", _binary(name))
        setattr(Remote, f"__r{plain}__", _binary(name, swapped=True))
    setattr(Remote, "__enter__", lambda self: self.__getattr__("__enter__")())  # noqa: B010


_add_special_methods()


def _twin(base: type) -> type:
    def ask_candidate(self: Any, name: str) -> Any:
        if name in ("_link", "_reference"):
            raise AttributeError(name)
        return _attribute(self, name)

    return type(base.__name__, (base,), {"__getattr__": ask_candidate})


TWINS: tuple[type, ...] = tuple(map(_twin, (int, float, str, tuple)))
"""Plain types whose instances stand for an instance of a candidate's subclass.

They are compared as what they are, plain data; other attributes, such as a named tuple's fields,
are asked of the candidate.
"""


class Link(Peer):
    """The harness's end of the conversation with one candidate's process."""

    def __init__(self, connection: _socket.socket, process: int) -> None:
        super().__init__(connection)
        self.process = process
        self.broken = ""
        """Why this candidate cannot be asked any more."""

        self.judged = False
        """Whether the candidate's own `__eq__` decided a comparison."""

        self.last: Any = None
        """The latest value that the candidate gave, for a message to a person."""

        self.wants_classes = False
        """Whether the tests want classes of the candidate's, and it has them."""

        self.expects_stop = False
        """Whether the test names `StopIteration`."""

        self._known: dict[int, Any] = {}
        self._made: dict[int, Made] = {}
        self._callbacks: list[Callable[..., Any]] = []

    def ask(self, operation: str, *arguments: Any) -> Any:
        if self.broken:
            raise Gone(self.broken)
        try:
            return super().ask(operation, *arguments)
        except Gone as error:
            self.broken = str(error)
            raise
        except StopIteration as error:
            if self.expects_stop or arguments[0] == "next":
                raise
            # It would end a `map` or `zip` of the test's early, with no comparison made.
            raise RuntimeError("the candidate raised StopIteration") from error

    def settle(self, arguments: tuple[Any, ...], parts: list[Any]) -> Any:
        try:
            self.last = self.decode(parts[0])
            for place, data in (parts[1] or {}).items():
                refill(arguments[1][int(place)], self.decode(data))
        except Exception as error:
            raise Gone(f"a value came that cannot be read: {error!r}") from None
        return self.last

    def load(
        self, source: str, memory: int, classes: list[str], names: list[str]
    ) -> dict[str, Any]:
        """Have the candidate's code run; return what it defined under `names`, and no more."""
        found = self.ask("load", source, memory, classes, names)
        if type(found) is not dict:
            raise Gone("a message came that says nothing")
        wanted = {name: found[name] for name in classes if type(found.get(name)) is Remote}
        self.wants_classes = bool(wanted)
        for name, kind in wanted.items():
            found[name] = Constructor(self, kind._reference, kind._copied, kind._own)
        return {name: found[name] for name in names if name in found}

    def made(self, value: Any) -> Any:
        """Let a test that made `value` use it as its own values."""
        if not isinstance(value, Remote) or not value._own:
            return value
        made = Made(self, value._reference, value._copied, True)
        return self._made.setdefault(value._reference, made)

    def plain(self, value: Any) -> Any:
        return self.ask("copy", value) if isinstance(value, Remote) else value

    def perform(self, operation: str, arguments: list[Any]) -> Any:
        reference, values, named = arguments
        return self._callbacks[reference](*values, **named)

    def describe(self, error: BaseException) -> list[Any]:
        kind = type(error)
        known = getattr(builtins, kind.__name__, None) is kind
        return [kind.__name__ if known else "Exception", str(error)[:500]]

    def give(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if issubclass(kind, Remote) or kind in TWINS or hasattr(value, "_reference"):
            return ["h", value._reference]
        array = plain_array(value)
        if array is not value:
            data = self.encode(array, depth)
            return ["a", data, str(value.dtype)] if isinstance(array, list) else data
        path = _import_path(value)
        if path is not None:
            return ["q", *path]
        if callable(value):
            self._callbacks.append(value)
            return ["g", len(self._callbacks) - 1]
        copy = plain_copy(value)
        return super().give(value, depth) if copy is value else self.encode(copy, depth)

    def take(self, tag: str, parts: list[Any]) -> Any:
        if tag == "h":
            reference, copied, own = parts
            return self._known.setdefault(reference, Remote(self, reference, copied, own))
        if tag == "x":
            return self._exception_type(*parts)
        if tag == "w":
            return self._coroutine(Remote(self, parts[0], False, False))
        if tag == "p":
            plain = self.decode(parts[1])
            (twin,) = (twin for twin in TWINS if twin.__base__ is type(plain))
            value: Any = twin(plain)
            value._link, value._reference = self, parts[0]
            return value
        return super().take(tag, parts)

    async def _coroutine(self, remote: Remote) -> Any:
        return self.ask("await", remote)

    def _exception_type(self, made: list[Any], base_name: str) -> type[Exception]:
        """A class of the harness's that stands for an exception class of the candidate's."""
        base = getattr(builtins, base_name)
        kind: type[Exception] = base if issubclass(base, Exception) else CandidateError
        for reference, name in reversed(made):
            if reference not in self._known:
                members = {"_reference": reference, "_link": self, "__getattr__": _ask_error}
                self._known[reference] = type(name, (kind,), members)
            kind = self._known[reference]
        return kind

    def rebuild(self, parts: list[Any]) -> BaseException:
        try:
            made, base_name, text, arguments, reference = parts
            kind = self._exception_type(made, base_name)
            if kind is CandidateError:
                return CandidateError(f"{base_name}: {text}")
            error = _instance(kind, self.decode(arguments))
        except Exception as problem:
            raise Gone(f"an error came that cannot be read: {problem!r}") from None
        if made:
            vars(error)["_reference"] = reference
        return error


def _instance(kind: type[Exception], arguments: tuple[Any, ...]) -> Exception:
    try:
        return kind(*arguments)
    except TypeError:  # some built-in ones are particular about their arguments
        return kind()


def _ask_error(self: Any, name: str) -> Any:
    if "_reference" not in vars(self) or name.startswith("__"):
        raise AttributeError(name)
    return self._link.ask("builtin", "getattr", self, name)


def _import_path(value: Any) -> tuple[str, str] | None:
    """Where the candidate finds a class or function of the standard library that a test passes."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or module == TESTS_MODULE:
        return None
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return (module, path) if found is value else None
