"""The harness: a program that runs in a sandbox and tests one candidate.

It makes the candidate's nursery first, and only then reads the job from standard input: source,
tests, time budgets, and a single-use token for each line of the report. It runs the tests itself
and asks the candidate's process for values. A line counts only with its own token, which no
process but the harness and the grader ever holds.

Needs no more than Python 3.9 and its standard library.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # like `_socket`: the public half is slow
import _socket
import builtins
import os
import struct
import sys
import time

from rlpipe.grading.candidate import run_nursery
from rlpipe.grading.libc import function
from rlpipe.grading.remote import TESTS_MODULE, CandidateError, Link
from rlpipe.grading.wire import Gone, read, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

PR_SET_DUMPABLE = 4
PR_GET_DUMPABLE = 3
PR_SET_CHILD_SUBREAPER = 36
MOST_STARTS = 8
"""Candidate's processes for one job; a test that hangs or kills one costs one."""

MESSAGE = 400
"""Characters of a message."""


class OutOfTime(Gone):
    """The budget of a test, or of the whole job, is used up."""


class Unfit(Exception):
    """This machine cannot grade; nothing is said about the candidate."""


class Stop(Exception):
    """The candidate cannot be tested; `state` says why."""

    def __init__(self, state: str, note: str) -> None:
        super().__init__(note)
        self.state = state


class Clock:
    """The harness's own time, out of the candidate's reach.

    Time that the candidate or the harness waited for a busy processor does not count: how loaded
    a machine is must not decide a reward. By the wall clock, each budget may be used up
    `patience` times over.
    """

    def __init__(self, total: float, patience: float) -> None:
        self.total = total
        self.patience = patience
        self.began = time.monotonic()
        self.process = 0
        self.waited = -_queued(os.getpid())
        self.deadline = self.last_moment = 0.0
        self.seconds = total
        _signal.signal(_signal.SIGALRM, self._ring)

    def watch(self, process: int) -> None:
        """Have this candidate's waits not count, instead of the last one's."""
        self.waited += _queued(self.process)
        self.process = process

    def spent(self) -> float:
        """Seconds since the job began, less those of waiting for a processor."""
        waited = self.waited + _queued(os.getpid()) + _queued(self.process)
        return time.monotonic() - self.began - waited

    def over(self) -> bool:
        return self.spent() >= self.total or self._wall() >= self.total * self.patience

    def limit(self, seconds: float) -> Clock:
        """As a context, raise `OutOfTime` after `seconds`, or earlier at the end of the job."""
        self.seconds = seconds
        return self

    def __enter__(self) -> None:
        if self.over():
            raise OutOfTime("the time of the whole job is used up")
        spent, wall = self.spent(), self._wall()
        self.deadline = min(spent + self.seconds, self.total)
        self.last_moment = min(wall + self.seconds * self.patience, self.total * self.patience)
        # Rings again and again, since a test's bare `except:` may swallow one.
        _signal.setitimer(_signal.ITIMER_REAL, max(self.deadline - spent, 0.001), 0.05)

    def __exit__(self, *_: object) -> None:
        _signal.setitimer(_signal.ITIMER_REAL, 0)

    def _wall(self) -> float:
        return time.monotonic() - self.began

    def _ring(self, *_: Any) -> None:
        if self.spent() >= self.deadline or self._wall() >= self.last_moment:
            raise OutOfTime("time is up")


def _queued(process: int) -> float:
    """Seconds that a process was ready to run and had no processor; 0 where Linux does not say."""
    try:
        with open(f"/proc/{process}/schedstat") as counters:
            return int(counters.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Nursery:
    """Starts candidates from a process that was forked before any test was read."""

    def __init__(self) -> None:
        self.control, theirs = _socket.socketpair()
        self.process = os.fork()
        if self.process == 0:
            run_nursery(theirs)
        theirs.close()

    def start(self) -> Link:
        mine, theirs = _socket.socketpair()
        try:
            rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", theirs.fileno()))
            self.control.sendmsg([b"+"], [rights])
            told = self.control.recv(4)
        except OSError as error:
            raise Gone(str(error)) from None
        finally:
            theirs.close()
        if len(told) < 4:
            raise Gone("no process could be started")
        return Link(mine, struct.unpack("i", told)[0])

    def end(self, link: Link, seconds: float = 1.0) -> None:
        """Kill a candidate's process and every process that it left behind."""
        link.wire.connection.close()
        _kill(os.killpg, link.process)
        _kill(os.kill, link.process)
        # Orphans come to the harness, their subreaper, once their parent is dead. They may fork on.
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            orphans = [child for child in _children() if child != self.process]
            if not orphans and not _alive(link.process):
                return
            for orphan in orphans:
                _kill(os.kill, orphan)
                os.waitpid(orphan, 0)
            time.sleep(0.0002)


def _kill(how: Callable[[int, int], None], process: int) -> None:
    try:
        how(process, _signal.SIGKILL)
    except OSError:  # it is gone
        return


def _children() -> list[int]:
    try:
        with open("/proc/thread-self/children") as listing:
            return [int(child) for child in listing.read().split()]
    except OSError:
        return []


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


class Report:
    """Writes single-use tokens and results to the descriptor that was standard output."""

    def __init__(self, descriptor: int, tokens: list[str]) -> None:
        self.descriptor = descriptor
        self.tokens = tokens

    def begin(self) -> None:
        self._write(-2, ["begin", ""])

    def test(self, index: int, outcome: str, message: str, duration: float, judged: bool) -> None:
        self._write(index, [outcome, _clean(message), round(duration, 6), judged])

    def end(self, state: str, note: str = "") -> None:
        self._write(-1, [state, _clean(note)])

    def _write(self, index: int, record: list[Any]) -> None:
        line = f"{self.tokens[index]} {write(record)}\n".encode()
        while line:
            line = line[os.write(self.descriptor, line) :]


def _clean(text: str) -> str:
    return text[:MESSAGE].encode("utf-8", "backslashreplace").decode()


class Job:
    """The tests of one candidate, run one after the other."""

    def __init__(self, job: dict[str, Any], nursery: Nursery, report: Report) -> None:
        self.source: str = job["source"]
        self.memory: int = job["memory"]
        self.tests: list[str] = job["tests"]
        self.imports: list[list[str]] = job["imports"]
        self.setup: str = job["setup"]
        self.entry_points: list[str] = job["entry_points"]
        self.classes: list[str] = job["classes"]
        self.test_timeout: float = job["test_timeout"]
        self.clock = Clock(job["timeout"], job["patience"])
        self.nursery = nursery
        self.report = report

    def run(self) -> None:
        """Run every test, with a fresh candidate after each one that hangs or kills it."""
        done = 0
        for start in range(MOST_STARTS):
            link = self._start()
            if start == 0:
                self.report.begin()
            try:
                namespace = self._prepare(link)
                done = self._run_tests(link, namespace, done)
            finally:
                self.clock.watch(0)
                self.nursery.end(link)
            if done == len(self.tests):
                return
        raise Stop("stopped", f"the candidate had to be started more than {MOST_STARTS} times")

    def _start(self) -> Link:
        try:
            with self.clock.limit(self.clock.total):  # no code of the candidate's runs yet
                link = self.nursery.start()
        except OutOfTime as error:
            raise Stop("timeout", str(error)) from None
        except Gone as error:
            raise Stop("stopped", str(error)) from None
        self.clock.watch(link.process)
        return link

    def _prepare(self, link: Link) -> dict[str, Any]:
        """Load the candidate, and lay out the names that the tests use."""
        namespace: dict[str, Any] = {"__builtins__": builtins, "__name__": TESTS_MODULE}
        self._import(namespace)
        try:
            with self.clock.limit(self.test_timeout):
                self._load(link)
                for name in self.entry_points:
                    if link.ask("has", name):
                        namespace[name] = link.fetch(name, name in self.classes)
                self._set_up(namespace)
        except OutOfTime:
            raise Stop("timeout", "the candidate did not load in time") from None
        except Gone as error:
            raise Stop("stopped", f"while the candidate was loaded, {error}") from None
        return namespace

    def _import(self, namespace: dict[str, Any]) -> None:
        for line, needed in self.imports:
            try:
                exec(_compile(line, "imports"), namespace)
            except Exception as error:
                if needed:
                    raise Unfit(f"{line!r} fails here: {_said(error)}") from error

    def _load(self, link: Link) -> None:
        try:
            link.ask("load", self.source, self.memory, self.classes)
        except Exception as error:
            exited = isinstance(error, CandidateError) and str(error).startswith("SystemExit")
            state = "stopped" if exited else "does_not_load"
            raise Stop(state, f"the candidate's code raised {_said(error)}") from None

    def _set_up(self, namespace: dict[str, Any]) -> None:
        try:
            exec(_compile(self.setup, "set-up"), namespace)
        except Exception as error:
            raise Stop("setup_failed", f"the tests' set-up failed: {_said(error)}") from None

    def _run_tests(self, link: Link, namespace: dict[str, Any], done: int) -> int:
        """Run tests from number `done` on until one breaks the link; return the next number."""
        for index in range(done, len(self.tests)):
            start = time.monotonic()
            if self.clock.over():
                raise Stop("timeout", "the time of the whole job is used up")
            link.judged, link.last = False, None
            outcome, message = self._run_test(link, namespace, self.tests[index])
            took = time.monotonic() - start
            self.report.test(index, outcome, message, took, link.judged)
            if link.broken or outcome == "timeout":
                return index + 1
        return len(self.tests)

    def _run_test(self, link: Link, namespace: dict[str, Any], test: str) -> tuple[str, str]:
        try:
            with self.clock.limit(self.test_timeout):
                verdict = _execute(link, namespace, test)
        except OutOfTime:
            return "timeout", "time is up"
        except Gone as error:
            return "error", f"during the test, {error}"
        # A test that swallows everything must not swallow this.
        return ("error", f"during the test, {link.broken}") if link.broken else verdict


def _execute(link: Link, namespace: dict[str, Any], test: str) -> tuple[str, str]:
    # What is said of an error is found out in here too: its text may be the candidate's to give.
    try:
        exec(_compile(test, "test"), namespace)
    except Gone:
        raise
    except AssertionError as error:
        return "failed", _text(error) or f"the candidate's last value is {_text(link.last, repr)}"
    except BaseException as error:
        return "error", _said(error)
    return "passed", ""


def _compile(code: str, name: str) -> Any:
    return compile(code, f"<{name}>", "exec", dont_inherit=True)


def _said(error: BaseException) -> str:
    text = _text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(value: Any, form: Callable[[Any], str] = str) -> str:
    try:
        return form(value)[:MESSAGE]
    except Exception:
        return "unprintable"


def _shut() -> None:
    """Keep every other process out of this one's memory and descriptors."""
    prctl = function("prctl")
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit("this process cannot be closed to others")


def _read_job() -> dict[str, Any]:
    data = bytearray()
    while True:
        piece = os.read(0, 1 << 16)
        if not piece:
            job: dict[str, Any] = read(data.decode())
            return job
        data += piece


def main() -> NoReturn:
    """Grade the job on standard input."""
    _shut()
    nursery = Nursery()
    job = _read_job()
    report = Report(os.dup(1), job["tokens"])
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # what a test prints is no report
    try:
        Job(job, nursery, report).run()
        report.end("done")
    except Stop as stop:
        report.end(stop.state, str(stop))
    except Unfit as unfit:
        report.end("unfit", str(unfit))
    os._exit(0)
