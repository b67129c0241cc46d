"""The candidate's process: runs the candidate's code and answers what the harness asks of it.

It is forked before the harness has read any test, so that it has never held one, or an expected
value, in its memory. What the code does to this process, patched built-ins and lying objects
included, only changes the answers, and the harness trusts none of them.

Runs inside a sandbox, so it needs no more than Python 3.9 and its standard library.
"""

from __future__ import annotations

import _operator
import _signal  # type: ignore[import-not-found]  # like `_socket`: the public half is slow
import _socket
import builtins
import os
import resource
import struct
import sys
import types

from rlpipe.grading.libc import address, capset, prctl, syscall
from rlpipe.grading.values import COPIES, MAX_DEPTH, import_module, plain_array, plain_copy
from rlpipe.grading.wire import Gone, Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

MODULE = "solution"
RECURSION = 10_000
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION = 0x20080522
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
LANDLOCK_RULES = (
    struct.pack("QQQ", 0, 0, 0b11),  # scopes: abstract sockets and signals, since Linux 6.12
    struct.pack("Q", 1 << 11),  # making block devices, for the ban on tracing that comes with it
)
PR_SET_SECCOMP, FILTER_MODE = 22, 2
SECCOMP_FAIL, SECCOMP_ALLOW = 0x00050001, 0x7FFF0000  # with EPERM
PRLIMIT = {"x86_64": (0xC000003E, 302), "aarch64": (0xC00000B7, 261)}
"""By machine: its number in an audit, and that of the system call `prlimit64`."""

IMMUTABLE = (int, float, str, tuple)


def run_candidate(connection: _socket.socket) -> NoReturn:
    """Serve one harness until it hangs up."""
    try:
        os.setsid()
        _leave_everything(connection.fileno())
        _drop_privileges()
        _fence()
        _keep_limits_of_others()
        # A child that outlives this process would hide its end from the harness.
        os.register_at_fork(after_in_child=connection.close)
        sys.setrecursionlimit(RECURSION)
        sys.argv = [f"{MODULE}.py"]
        Candidate(connection).serve()
    except BaseException:
        os._exit(1)
    os._exit(0)


def _leave_everything(kept: int) -> None:
    """Close every descriptor except `kept`; what is printed or read goes nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 16)
    os.closerange(3, kept)
    os.closerange(kept + 1, most)


def _drop_privileges() -> None:
    """Give up every capability, since a privileged process may read any other's memory."""
    prctl(PR_SET_PDEATHSIG, _signal.SIGKILL)
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    capset(header, bytes(24))


def _fence() -> None:
    """Forbid this process to signal and to trace what it did not start, where the kernel can."""
    for rules in LANDLOCK_RULES:
        made = syscall(LANDLOCK_CREATE_RULESET, rules, len(rules), 0)
        if made >= 0:
            syscall(LANDLOCK_RESTRICT_SELF, made, 0)
            os.close(made)
            return


def _keep_limits_of_others() -> None:
    """Forbid this process to set limits but its own, where the kernel can.

    The kernel lets any process bound another of its user: without file descriptors or processor
    time, the sandbox would die, which is no score where a low one was due.
    """
    machine = os.uname().machine
    if machine not in PRLIMIT:
        return
    architecture, number = PRLIMIT[machine]
    steps = (
        (0x20, 0, 0, 4),  # load the architecture
        (0x15, 0, 3, architecture),  # of another one, such as x86 in 32 bits, all may fail
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 2, 0, number),
        (0x06, 0, 0, SECCOMP_ALLOW),
        (0x06, 0, 0, SECCOMP_FAIL),
        (0x20, 0, 0, 16),  # load the process that is meant; 0 is this one
        (0x15, 0, 1, 0),
        (0x06, 0, 0, SECCOMP_ALLOW),
        (0x06, 0, 0, SECCOMP_FAIL),
    )
    program = b"".join(struct.pack("HBBI", *step) for step in steps)
    prctl(PR_SET_SECCOMP, FILTER_MODE, struct.pack("HP", len(steps), address(program)))


def _bound_memory(limit: int) -> None:
    # A numeric library reserves a buffer for each of its threads, which would count as well.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class Candidate(Peer):
    """Owns the candidate's module and every object of it that the harness holds a handle of."""

    caught = BaseException

    def __init__(self, connection: _socket.socket) -> None:
        super().__init__(connection)
        self.objects: dict[int, Any] = {}
        self.classes: tuple[type, ...] = ()
        self.module = types.ModuleType(MODULE)
        sys.modules[MODULE] = self.module

    def serve(self) -> None:
        """Answer until the harness hangs up."""
        try:
            while True:
                self.answer(self.wire.receive()[1:])
        except Gone:
            return

    def perform(self, operation: str, arguments: list[Any]) -> Any:
        return OPERATIONS[operation](self, *arguments)

    def load(
        self, source: str, memory: int, classes: list[str], names: list[str]
    ) -> dict[str, Any]:
        """Run the candidate's code; return what it defined under `names`."""
        _bound_memory(memory)
        code = compile(source, f"{MODULE}.py", "exec", dont_inherit=True)
        exec(code, self.module.__dict__)
        defined = self.module.__dict__
        found = (defined.get(name) for name in classes)
        self.classes = tuple(kind for kind in found if isinstance(kind, type))
        return {name: defined[name] for name in names if name in defined}

    def keep(self, value: Any) -> int:
        self.objects[id(value)] = value
        return id(value)

    def give(self, value: Any, depth: int) -> Any:
        array = plain_array(value)
        if array is not value:
            return self.encode(array, depth)
        kind = type(value)
        if issubclass(kind, type) and issubclass(value, BaseException):
            return ["x", *self.lineage(value)]
        if isinstance(value, types.CoroutineType):
            return ["w", self.keep(value)]
        if issubclass(kind, IMMUTABLE):
            return ["p", self.keep(value), self.encode(plain_copy(value), depth)]
        copied = issubclass(kind, tuple(COPIES))
        return ["h", self.keep(value), copied, issubclass(kind, self.classes)]

    def take(self, tag: str, parts: list[Any]) -> Any:
        if tag == "h":
            return self.objects[parts[0]]
        if tag == "q":
            found = import_module(parts[0])
            for name in parts[1].split("."):
                found = getattr(found, name)
            return found
        if tag == "g":
            return Callback(self, parts[0])
        if tag == "a":
            numpy = import_module("numpy")
            return numpy.array(self.decode(parts[0]), dtype=parts[1])
        return super().take(tag, parts)

    def lineage(self, kind: type) -> list[Any]:
        """The classes of an exception down to a built-in one: handles and names, then its name."""
        made: list[list[Any]] = []
        for ancestor in kind.__mro__:
            if getattr(builtins, ancestor.__name__, None) is ancestor:
                return [made, ancestor.__name__]
            made.append([self.keep(ancestor), ancestor.__name__])
        return [made, "Exception"]

    def describe(self, error: BaseException) -> list[Any]:
        try:
            text = str(error)[:500]
        except BaseException:
            text = ""
        try:
            arguments = self.encode(error.args, MAX_DEPTH)
        except BaseException:
            arguments = self.encode((text,))
        return [*self.lineage(type(error)), text, arguments, self.keep(error)]

    def rebuild(self, parts: list[Any]) -> BaseException:
        kind = getattr(builtins, parts[0])
        return kind(parts[1]) if issubclass(kind, Exception) else Exception(parts[1])


class Callback:
    """A function of a test's that the candidate was given."""

    def __init__(self, candidate: Candidate, reference: int) -> None:
        self._candidate = candidate
        self._reference = reference

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._candidate.ask("call", self._reference, list(arguments), named)


def _await(_candidate: Candidate, coroutine: Any) -> Any:
    import asyncio  # slow, and few candidates need it

    return asyncio.run(coroutine)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "load": Candidate.load,
    "call": lambda candidate, function, arguments, named: function(*arguments, **named),
    "copy": lambda candidate, value: plain_copy(value),
    "await": _await,
    "operator": lambda candidate, name, *values: getattr(_operator, name)(*values),
    "builtin": lambda candidate, name, *values: getattr(builtins, name)(*values),
}
