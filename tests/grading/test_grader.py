import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rlpipe.errors import GraderError, SandboxGone
from rlpipe.grading.grader import Report, grade
from rlpipe.grading.program import modules
from rlpipe.sandboxes.base import (
    ExecResult,
    Outcome,
    Sandbox,
    SandboxSession,
    SandboxSpec,
    SandboxStats,
)
from rlpipe.sandboxes.local import Local
from rlpipe.types import PythonTests

TWO = PythonTests(visible=("assert f(10)==45", "assert f(3)==3"), entry_points=("f",))


def outcomes(report: Report) -> list[str]:
    return [test.outcome for test in report.tests]


async def test_early_exit_is_not_a_pass(box: Sandbox) -> None:
    report = await grade(box, "import sys; sys.exit(0)", TWO)
    assert (report.passed_tests, report.ran, report.total, report.passed) == (0, 0, 2, False)
    assert outcomes(report) == ["not_run", "not_run"]
    assert report.outcome == "tests_not_completed"


async def test_right_wrong_and_half_right(box: Sandbox) -> None:
    right = await grade(box, "def f(n): return sum(range(n))", TWO)
    assert (right.outcome, right.passed, right.note) == ("passed", True, "")
    half = await grade(box, "def f(n): return 3", TWO)
    assert outcomes(half) == ["failed", "passed"]
    assert half.outcome == "tests_failed"
    assert half.tests[0].name == "assert f(10)==45"
    assert "3" in half.tests[0].message
    assert not (await grade(box, "def f(n): return 3", PythonTests())).passed


async def test_a_hanging_test_does_not_take_the_others_results(box: Sandbox) -> None:
    source = "def f(n):\n    while n == 10: pass\n    return 3"
    report = await grade(box, source, TWO, test_timeout=1)
    assert outcomes(report) == ["timeout", "passed"]
    assert report.outcome == "timeout"
    assert report.tests[0].duration > 0.9


@pytest.mark.parametrize("end", ["import os; os._exit(0)", "import ctypes; ctypes.string_at(0)"])
async def test_a_death_does_not_take_the_others_results(box: Sandbox, end: str) -> None:
    report = await grade(box, f"def f(n):\n    if n == 10: {end}\n    return 3", TWO)
    assert outcomes(report) == ["error", "passed"]
    assert report.outcome == "tests_failed"


async def test_each_memory_glutton_is_one_failed_test(box: Sandbox) -> None:
    source = "def f(n):\n    if n == 10: return len([0] * (1 << 30)) * 0 + 45\n    return 3"
    report = await grade(box, source, TWO)
    assert outcomes(report) == ["error", "passed"]
    assert "MemoryError" in report.tests[0].message


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("[0] * 10 ** 7", "items"),
        ("'x' * (20 << 20)", "bytes"),
        ("DEEP", "nested"),
    ],
)
async def test_what_is_too_large_or_deep_to_cross_is_one_failed_test(
    box: Sandbox, result: str, why: str
) -> None:
    deep = "DEEP = []\nfor _ in range(500): DEEP = [DEEP]\n"
    source = f"{deep}def f(n): return {result} if n else 3"
    tests = PythonTests(hidden=("assert list(f(1)) == 1", "assert f(0) == 3"), entry_points=("f",))
    report = await grade(box, source, tests, timeout=60, test_timeout=30)
    assert outcomes(report) == ["error", "passed"]
    assert why in report.tests[0].message


async def test_an_endless_iterator_is_one_failed_test(box: Sandbox) -> None:
    tests = PythonTests(
        hidden=("assert list(f()) == 1", "assert next(f()) == 0"), entry_points=("f",)
    )
    report = await grade(box, "def f(): return iter(int, 1)", tests, test_timeout=0.5)
    assert outcomes(report) == ["timeout", "passed"]


async def test_total_time_is_bounded(box: Sandbox) -> None:
    tests = PythonTests(hidden=("f()",) * 20, entry_points=("f",))
    report = await grade(
        box, "def f():\n    while True: pass", tests, timeout=1.5, test_timeout=0.4
    )
    assert outcomes(report)[:3] == ["timeout"] * 3
    assert outcomes(report)[-1] == "not_run"
    assert report.outcome == "timeout"


async def test_what_a_dead_candidate_left_running_is_killed_before_the_next(box: Sandbox) -> None:
    source = (
        "import os, time\n"
        "def f(n):\n"
        "    if n: return os.path.exists(f\"/proc/{open('/tmp/left').read()}\")\n"
        "    child = os.fork()\n"
        "    if not child: os.setsid(); time.sleep(60)\n"
        "    open('/tmp/left', 'w').write(str(child)); os._exit(0)\n"
    )
    tests = PythonTests(hidden=("f(0)", "assert f(1) is False"), entry_points=("f",))
    assert outcomes(await grade(box, source, tests)) == ["error", "passed"]


async def test_starts_are_bounded(box: Sandbox) -> None:
    tests = PythonTests(hidden=("f()",) * 20, entry_points=("f",))
    report = await grade(box, "import os\ndef f(): os._exit(0)", tests)
    assert outcomes(report).count("error") == 8
    assert report.outcome == "tests_not_completed"


@pytest.mark.parametrize("source", ["def f(:", "1 / 0", "import no_such_module", "\0"])
async def test_code_that_does_not_load(box: Sandbox, source: str) -> None:
    report = await grade(box, source, TWO)
    assert (report.outcome, outcomes(report)) == ("does_not_load", ["not_run"] * 2)
    assert report.note


async def test_code_that_never_ends_loading(box: Sandbox) -> None:
    report = await grade(box, "while True: pass", TWO, test_timeout=0.5)
    assert (report.outcome, outcomes(report)) == ("timeout", ["not_run"] * 2)


async def test_odd_messages_of_the_candidate_harm_nobody(box: Sandbox) -> None:
    source = (
        "class Odd(Exception):\n    def __str__(self): return '\\ud800\\n' * 1000\n"
        "class Slow:\n    def __str__(self):\n        while True: pass\n    __repr__ = __str__\n"
        "def f(n):\n    if n == 0: raise Odd\n    if n == 1: raise ValueError(Slow())\n"
        "    return Slow() if n == 2 else 3"
    )
    statements = ("f(0)", "f(1)", "assert f(2) == 3", "assert f(3) == 3")
    tests = PythonTests(hidden=statements, entry_points=("f",))
    report = await grade(box, source, tests, test_timeout=0.5)
    assert outcomes(report) == ["error", "timeout", "timeout", "passed"]
    assert len(report.tests[0].message) < 1000


async def test_numpy_arrays_cross_as_lists_and_lists_as_arrays(session: SandboxSession) -> None:
    numpy = pytest.importorskip("numpy")
    provider = Local(packages=str(Path(numpy.__file__).parents[1]))
    async with provider.open() as opened:
        box = await opened.start(provider.spec())
        source = (
            "import numpy as np\ndef f(n): return np.arange(n)\n"
            "def g(a): return a.mean()\ndef h(a): return a * 2"
        )
        tests = PythonTests(
            hidden=(
                "assert f(3) == [0, 1, 2]",
                "assert g(np.array([1, 2])) == 1.5",
                "assert np.allclose(h(np.array([[1.0], [2.0]])), [[2], [4]])",
            ),
            imports=("import numpy as np",),
            entry_points=("f", "g", "h"),
        )
        report = await grade(box, source, tests, timeout=60, test_timeout=30)
        assert (report.passed, report.note) == (True, "")


async def test_a_missing_function_is_an_error_of_each_test(box: Sandbox) -> None:
    report = await grade(box, "def g(n): return n", TWO)
    assert outcomes(report) == ["error", "error"]
    assert "NameError" in report.tests[0].message


async def test_broken_tests_are_errors_of_their_own(box: Sandbox) -> None:
    tests = PythonTests(
        hidden=("assert f(", "assert f(3) == 3", "raise SystemExit"), entry_points=("f",)
    )
    report = await grade(box, "def f(n): return n", tests)
    assert outcomes(report) == ["error", "passed", "error"]


async def test_setup_that_the_candidate_cannot_serve(box: Sandbox) -> None:
    tests = PythonTests(hidden=("assert x",), setup="x = Node(1)", entry_points=("Node",))
    report = await grade(box, "def f(n): return n", tests)
    assert (report.outcome, outcomes(report)) == ("tests_not_completed", ["not_run"])
    assert "Node" in report.note


async def test_an_import_that_tests_need_and_the_sandbox_lacks_is_no_score(box: Sandbox) -> None:
    used = PythonTests(
        hidden=("assert nope.x(f(1))",), imports=("import nope",), entry_points=("f",)
    )
    with pytest.raises(GraderError, match="nope"):
        await grade(box, "def f(n): return n", used)
    unused = PythonTests(hidden=("assert f(1)",), imports=("import nope",), entry_points=("f",))
    assert (await grade(box, "def f(n): return n", unused)).passed


async def test_one_box_grades_many_at_once(session: SandboxSession) -> None:
    box = await session.start(Local().spec())
    reports = await asyncio.gather(
        *(grade(box, f"def f(n): return {value}", TWO) for value in [45, 3] * 8)
    )
    assert [report.tests[0].outcome for report in reports] == ["passed", "failed"] * 8


class Scripted(Sandbox):
    """Ends every execution as it is told to, after the lines that `says` makes of the tokens."""

    def __init__(self, outcome: Outcome = "killed", lines: int = 0, forged: str = "") -> None:
        self.id = "scripted"
        self.spec = SandboxSpec()
        self.stats = SandboxStats()
        self.outcome = outcome
        self.lines = lines
        self.forged = forged

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        *tests, begin, _ = json.loads(stdin)["tokens"]
        said = [
            f'{begin} ["begin", ""]',
            *(f'{token} ["passed", "", 0.1, false]' for token in tests),
        ]
        text = "\n".join([self.forged, *said[: self.lines], self.forged])
        return ExecResult(self.outcome, 0 if self.outcome == "exited" else None, text, "")

    async def read_file(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        raise NotImplementedError

    async def write_file(self, path: str, data: bytes | str) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        return


@pytest.mark.parametrize(
    "outcome", ["killed", "timeout", "out_of_memory", "output_limit", "exited"]
)
async def test_a_report_that_breaks_off_scores_what_it_says(outcome: Outcome) -> None:
    report = await grade(Scripted(outcome, lines=2), "", TWO)
    assert outcomes(report) == ["passed", "not_run"]
    assert (report.outcome, report.passed) == ("tests_not_completed", False)


async def test_a_harness_that_never_begins_is_no_score() -> None:
    with pytest.raises(GraderError) as caught:
        await grade(Scripted(), "", TWO)
    assert caught.value.retryable


async def test_lines_without_the_right_token_are_not_the_report() -> None:
    forged = "\n".join(f'{"0" * 32} ["passed", "", 0.1, false]' for _ in range(5))
    report = await grade(Scripted(lines=1, forged=forged), "", TWO)
    assert outcomes(report) == ["not_run", "not_run"]


async def test_failures_of_the_sandbox_pass_through(box: Sandbox) -> None:
    await box.stop()
    with pytest.raises(SandboxGone):
        await grade(box, "def f(n): return n", TWO)


@pytest.mark.usefixtures("busy_processor")
async def test_waiting_for_a_busy_processor_is_not_the_candidates_time():
    source = (
        "import time\n"
        "def f():\n"
        "    end = time.process_time() + 0.3\n"
        "    while time.process_time() < end: pass\n"
        "    return 1\n"
    )
    tests = PythonTests(hidden=("assert f() == 1",), entry_points=("f",))
    provider = Local()
    async with provider.open() as session:
        box = await session.start(provider.spec())
        report = await grade(box, source, tests, timeout=20, test_timeout=0.6)
    assert report.outcome == "passed"


async def test_a_sandbox_that_keeps_nothing_loaded(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_code: str) -> bool:
        return False

    monkeypatch.setattr(box, "preload", refuse)
    assert (await grade(box, "def f(n): return sum(range(n))", TWO)).passed
    half = await grade(box, "import os\ndef f(n): return 3 if n == 3 else os._exit(0)", TWO)
    assert outcomes(half) == ["error", "passed"]


async def test_a_module_that_is_loaded_beforehand_is_not_imported_for_the_candidate(
    box: Sandbox,
) -> None:
    tests = PythonTests(
        hidden=("assert f('ab') == ['a', 'b']",), imports=("import re",), entry_points=("f",)
    )
    assert (await grade(box, "import re\ndef f(s): return re.findall('.', s)", tests)).passed
    missing = await grade(box, "def f(s): return re.findall('.', s)", tests)
    assert "NameError" in missing.tests[0].message


async def test_another_version_of_the_interpreter_compiles_the_program_itself(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = modules().replace("MAGIC_NUMBER ==", "b'' ==")
    assert foreign != modules()
    monkeypatch.setattr("rlpipe.grading.grader.modules", lambda: foreign)
    assert (await grade(box, "def f(n): return sum(range(n))", TWO)).passed
