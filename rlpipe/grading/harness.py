"""The harness: a program that runs in a sandbox and tests one candidate.

It makes the candidate's process first, and only then reads the job from standard input: source,
tests, time budgets, and a single-use token for each line of the report. It runs the tests itself
and asks the candidate's process for values. A line counts only with its own token, which no
process but the harness and the grader ever holds.

Needs no more than Python 3.9 and its standard library.
"""

from __future__ import annotations

import builtins
import os
import time

from rlpipe.grading.clock import Clock, OutOfTime
from rlpipe.grading.process import end, shut, start
from rlpipe.grading.remote import TESTS_MODULE, CandidateError, Link
from rlpipe.grading.wire import Gone, read, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

MESSAGE = 400
"""Characters of a message."""


class Unfit(Exception):
    """This machine cannot grade; nothing is said about the candidate."""


class Stop(Exception):
    """The candidate cannot be tested; `state` says why."""

    def __init__(self, state: str, note: str) -> None:
        super().__init__(note)
        self.state = state


class Report:
    """Writes single-use tokens and results to the descriptor that was standard output."""

    def __init__(self, descriptor: int, tokens: list[str]) -> None:
        self.descriptor = descriptor
        self.tokens = tokens

    def begin(self) -> None:
        self._write(-2, [])

    def test(self, index: int, outcome: str, message: str, duration: float, judged: bool) -> None:
        self._write(index, [outcome, _clean(message), round(duration, 6), judged])

    def end(self, state: str, note: str, spent: float, wall: float) -> None:
        self._write(-1, [state, _clean(note), spent, wall])

    def _write(self, index: int, record: list[Any]) -> None:
        line = f"{self.tokens[index]} {write(record)}\n".encode()
        while line:
            line = line[os.write(self.descriptor, line) :]


def _clean(text: str) -> str:
    return text[:MESSAGE].encode("utf-8", "backslashreplace").decode()


class Job:
    """The tests of one candidate, run one after the other until one hangs or kills it."""

    def __init__(self, job: dict[str, Any], link: Link, clock: Clock, report: Report) -> None:
        self.source: str = job["source"]
        self.memory: int = job["memory"]
        self.tests: list[str] = job["tests"]
        self.imports: list[list[str]] = job["imports"]
        self.setup: str = job["setup"]
        self.entry_points: list[str] = job["entry_points"]
        self.classes: list[str] = job["classes"]
        self.test_timeout: float = job["test_timeout"]
        self.link = link
        self.clock = clock
        self.report = report

    def run(self) -> str:
        """Run the tests; `done`, or `broken` where the rest needs another candidate's process."""
        namespace = self._prepare()
        for index, test in enumerate(self.tests):
            began = time.monotonic()
            if self.clock.over():
                raise Stop("timeout", "the time of the whole job is used up")
            self.link.judged, self.link.last = False, None
            self.link.expects_stop = "StopIteration" in test
            outcome, message = self._run_test(namespace, test)
            took = time.monotonic() - began
            self.report.test(index, outcome, message, took, self.link.judged)
            if self.link.broken or outcome == "timeout":
                return "broken"
        return "done"

    def _prepare(self) -> dict[str, Any]:
        """Load the candidate, and lay out the names that the tests use."""
        namespace: dict[str, Any] = {"__builtins__": builtins, "__name__": TESTS_MODULE}
        self._import(namespace)
        try:
            with self.clock.limit(self.test_timeout):
                namespace.update(self._load())
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

    def _load(self) -> dict[str, Any]:
        try:
            return self.link.load(self.source, self.memory, self.classes, self.entry_points)
        except Exception as error:
            exited = isinstance(error, CandidateError) and str(error).startswith("SystemExit")
            state = "stopped" if exited else "does_not_load"
            raise Stop(state, f"the candidate's code raised {_said(error)}") from None

    def _set_up(self, namespace: dict[str, Any]) -> None:
        try:
            exec(_compile(self.setup, "set-up"), namespace)
        except Exception as error:
            raise Stop("setup_failed", f"the tests' set-up failed: {_said(error)}") from None

    def _run_test(self, namespace: dict[str, Any], test: str) -> tuple[str, str]:
        try:
            with self.clock.limit(self.test_timeout):
                verdict = _execute(self.link, namespace, test)
        except OutOfTime:
            return "timeout", "time is up"
        except Gone as error:
            return "error", f"during the test, {error}"
        # A test that swallows everything must not swallow this.
        broken = self.link.broken
        return ("error", f"during the test, {broken}") if broken else verdict


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


def _read_job() -> dict[str, Any]:
    data = bytearray()
    while piece := os.read(0, 1 << 16):
        data += piece
    job: dict[str, Any] = read(data.decode())
    return job


def main() -> NoReturn:
    """Grade the job on standard input."""
    shut()
    link = start()  # before any test is in this process's memory, which the other one inherits
    job = _read_job()
    report = Report(os.dup(1), job["tokens"])
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # what a test prints is no report
    clock = Clock(job["timeout"], job["wall"], job["patience"], link.process)
    report.begin()
    note = ""
    try:
        state = Job(job, link, clock, report).run()
    except Stop as stop:
        state, note = stop.state, str(stop)
    except Unfit as unfit:
        state, note = "unfit", str(unfit)
    spent, wall = clock.spent(), clock.wall()  # while the candidate's waits can still be asked for
    end(link)
    report.end(state, note, spent, wall)
    os._exit(0)
