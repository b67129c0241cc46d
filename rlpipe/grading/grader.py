"""Grades a candidate inside a sandbox, with the harness as the program that the sandbox runs."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlpipe.errors import GraderError
from rlpipe.grading.names import (
    classes_called,
    imports,
    modules_imported,
    names_used,
    names_wanted,
)
from rlpipe.grading.program import COMMON, RUN, modules
from rlpipe.sandboxes.base import ExecResult, Sandbox
from rlpipe.types import PythonTests, TestResult

NAME = 100
"""Characters of a test's name."""

PATIENCE = 5.0
"""Times its budget that a test may take by the wall clock, on a machine that is busy."""

SLACK = 5.0
"""Seconds beyond the time budget for the harness to start, to clean up and to report."""

MOST_STARTS = 8
"""Candidate's processes for one grading; a test that hangs or kills one costs one."""

_Record = list[Any]
"""A line of the harness's: outcome, message, seconds, whether the candidate's own `__eq__` decided.
"""

_OUTCOMES = {"does_not_load": "does_not_load", "timeout": "timeout"}


@dataclass(frozen=True, slots=True)
class Report:
    """How a candidate fared, test by test, in the order of `PythonTests.all`."""

    tests: tuple[TestResult, ...]
    note: str
    """One sentence for a person; empty where the tests say everything."""

    outcome: str
    """`passed`, `tests_failed`, `does_not_load`, `timeout`, or `tests_not_completed`."""

    @property
    def total(self) -> int:
        return len(self.tests)

    @property
    def ran(self) -> int:
        """Tests that came to an end of their own."""
        return sum(test.outcome != "not_run" for test in self.tests)

    @property
    def passed_tests(self) -> int:
        return sum(test.outcome == "passed" for test in self.tests)

    @property
    def passed(self) -> bool:
        """Whether there are tests, and every one of them passed."""
        return self.total > 0 and self.passed_tests == self.total


async def grade(
    sandbox: Sandbox,
    source: str,
    tests: PythonTests,
    *,
    timeout: float = 10.0,
    test_timeout: float = 5.0,
) -> Report:
    """Run each of `tests` on its own against the code `source`.

    The candidate's process never holds a test or an expected value, and what it does to itself,
    to its output or to its exit status has no part in the verdict. The sandbox must hold no
    process and no changed file of an earlier program's that could reach the harness: grade in a
    sandbox of its own what an agent wrote with tools.

    Args:
        timeout: seconds for everything; waits for a busy processor do not count, up to
            `PATIENCE` times as long.
        test_timeout: seconds for loading the candidate, and again for each test, likewise.

    Raises:
        GraderError: the harness cannot work in this sandbox; it says nothing about the candidate.
        SandboxError: the sandbox failed.
    """
    job = _job(source, tests)
    job |= {"memory": sandbox.spec.memory * 3 // 4, "test_timeout": test_timeout}
    job |= {"timeout": timeout, "wall": timeout * PATIENCE, "patience": PATIENCE}
    program = await _program(sandbox, tests)
    records: list[_Record | None] = []
    for _ in range(MOST_STARTS):
        run = await _run(sandbox, program, job | {"tests": tests.all[len(records) :]})
        if run.state == "unfit" or not (run.begun or records):
            raise GraderError(
                f"the harness cannot work in this sandbox: {run.note}",
                retryable=run.state != "unfit",
            )
        records += run.records
        if run.state != "broken" or len(records) == len(tests.all):
            return _report(tests.all, records, run.state, run.note)
        job |= {"timeout": job["timeout"] - run.spent, "wall": job["wall"] - run.wall}
    note = f"the candidate had to be started more than {MOST_STARTS} times"
    return _report(tests.all, records, "stopped", note)


def _job(source: str, tests: PythonTests) -> dict[str, Any]:
    statements = (*tests.all, tests.setup)
    used = names_used(statements)
    entry_points = set(names_wanted(tests))
    classes = tests.classes if tests.entry_points else classes_called(entry_points)
    lines = "\n".join(tests.imports)
    return {
        "source": source,
        # Each with whether the tests cannot do without it.
        "imports": [(line, bool(names & used - entry_points)) for line, names in imports(lines)],
        "setup": tests.setup,
        "entry_points": sorted(entry_points),
        "classes": sorted(classes),
    }


class _Run(NamedTuple):
    """What the harness says of one process of the candidate's."""

    begun: bool
    state: str
    note: str
    records: list[_Record | None]
    """Of each test that was to be run; after `broken` only of those before and at that point."""

    spent: float
    """Seconds without those of waiting for a processor, and with them in `wall`."""

    wall: float


async def _program(sandbox: Sandbox, tests: PythonTests) -> str:
    """The program for the sandbox, which is short where its parts can be loaded beforehand."""
    if not await sandbox.preload(modules()):
        return modules() + RUN
    for name in sorted(COMMON & modules_imported(tests.imports)):
        await sandbox.preload(f"import {name}")
    return RUN


async def _run(sandbox: Sandbox, program: str, job: dict[str, Any]) -> _Run:
    tests = len(job["tests"])
    tokens = [secrets.token_hex(16) for _ in range(tests + 2)]
    result = await sandbox.run_python(
        program,
        stdin=json.dumps(job | {"tokens": tokens}).encode(),
        timeout=max(job["wall"], 0) + SLACK,
        max_output=(1 << 16) + (len(tokens) << 13),
    )
    found = dict(_records(result.stdout, tokens))
    begun, end = found.pop(tests, None), found.pop(tests + 1, None)
    state, note, spent, wall = end or ("stopped", _how_it_ended(result), 0, 0)
    count = len(found) if state == "broken" else tests
    records = [found.get(place) for place in range(count)]
    return _Run(begun is not None, state, note, records, spent, wall)


def _records(stdout: str, tokens: list[str]) -> Iterator[tuple[int, _Record]]:
    """The report's lines by position; the first that bears a token is the one that counts."""
    places = {token: place for place, token in enumerate(tokens)}
    for line in stdout.splitlines():
        token, _, record = line.partition(" ")
        place = places.pop(token, None)
        if place is not None:
            yield place, json.loads(record)


def _how_it_ended(result: ExecResult) -> str:
    how = f"exit status {result.exit_code}" if result.outcome == "exited" else result.outcome
    said = f" {result.stderr[-500:]}" if result.stderr else ""
    return f"the harness ended before its report was complete ({how}).{said}"


def _report(
    statements: tuple[str, ...], records: list[_Record | None], state: str, note: str
) -> Report:
    missing = [None] * (len(statements) - len(records))
    tests = tuple(map(_test_result, statements, [*records, *missing]))
    judged = sum(record[3] for record in records if record)
    if judged and not note:
        note = f"the candidate's own __eq__ decided comparisons in {judged} of the tests"
    return Report(tests, note, _outcome(tests, state))


def _test_result(statement: str, record: _Record | None) -> TestResult:
    name = " ".join(statement.split())
    name = name if len(name) <= NAME else f"{name[: NAME - 1]}…"
    if record is None:
        return TestResult(name=name, outcome="not_run")
    outcome, message, duration, judged = record
    if judged:
        message = message or "the candidate's own __eq__ decided"
    return TestResult(name=name, outcome=outcome, message=message, duration=duration)


def _outcome(tests: tuple[TestResult, ...], state: str) -> str:
    found = {test.outcome for test in tests}
    if state in _OUTCOMES:
        return _OUTCOMES[state]
    if not tests or "not_run" in found:
        return "tests_not_completed"
    if "timeout" in found:
        return "timeout"
    return "passed" if found == {"passed"} else "tests_failed"
