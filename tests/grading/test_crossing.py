"""Cheats by way of what crosses from the candidate to the harness. None of it may earn anything."""

from pathlib import Path

import pytest

from rlpipe.grading.grader import grade
from rlpipe.sandboxes.base import Sandbox, SandboxSession
from rlpipe.sandboxes.local import Local
from rlpipe.types import PythonTests

LIAR = """
class Node:
    def __init__(self, *_): pass
    def yes(self, *_): return True
    def node(self, *_): return Node()
    __eq__ = __lt__ = __gt__ = __contains__ = yes
    __add__ = __sub__ = __neg__ = node
    def __hash__(self): return 0
"""
GIVE = """
import sys
side = sys.modules["rlpipe.grading.candidate"]
honest = side.Candidate.give
class Forged: pass
side.Candidate.give = lambda me, value, depth: (
    DATA if isinstance(value, Forged) else honest(me, value, depth)
)
def f(x): return Forged()
"""


def checking(*statements: str, **more: object) -> PythonTests:
    given = {"hidden": statements, "entry_points": ("f",), **more}
    return PythonTests.model_validate(given)


async def outcomes(box: Sandbox, source: str, tests: PythonTests) -> list[str]:
    report = await grade(box, source, tests, timeout=6, test_timeout=3)
    return [test.outcome for test in report.tests]


@pytest.mark.parametrize(
    ("alias", "test"),
    [
        ("f = Node", "assert f(root) == 3"),
        ("def f(x): return Node", "assert f(root)() == 3"),
        ("f = Node.__new__.__get__(Node)", "assert f(root) == 3"),
        ("f = lambda x: Node()", "assert f(root) + f(root) == 3"),
        ("f = lambda x: Node()", "assert 3 in f(root)"),
        ("Node.size = Node", "assert Node(1).size() == 3"),
        ("Node.size = property(lambda self: Node)", "assert Node(1).size() < 3"),
        ("Node.size = Node", "assert 3 in Node(1).size()"),
    ],
)
async def test_a_wanted_class_under_another_name_does_not_judge_itself(
    box: Sandbox, alias: str, test: str
) -> None:
    tests = checking(test, setup="root = Node(1)", entry_points=("Node", "f"), classes=("Node",))
    assert "passed" not in await outcomes(box, f"{LIAR}{alias}\n", tests)


async def test_a_wanted_class_does_meet_what_a_test_compares_it_with(box: Sandbox) -> None:
    source = (
        "class V:\n    def __init__(self, x): self.x = x\n"
        "    def __eq__(self, o): return self.x == getattr(o, 'x', o)\n"
        "    def __add__(self, o): return V(self.x + getattr(o, 'x', o))\n"
        "    def __neg__(self): return V(-self.x)\n"
        "def f(x): return V(x)\n"
    )
    tests = checking(
        "assert V(1) == 1",
        "assert V(1) + 2 == 3",
        "assert V(1) + V(2) == 3",
        "assert V(1) + V(2) == V(3)",
        "assert -V(1) == V(-1)",
        "assert f(1) == V(1)",
        "assert f(1) + V(1) == f(2)",
        "assert V(1) == V(2)",
        entry_points=("V", "f"),
        classes=("V",),
    )
    assert await outcomes(box, source, tests) == ["passed"] * 7 + ["failed"]


async def test_without_a_reference_imported_modules_stay_the_harness_s(box: Sandbox) -> None:
    source = (
        "class math:\n    isclose = staticmethod(lambda *_, **__: True)\n"
        "def sqrt(x): return 9\ndef f(x): return 9\n"
    )
    tests = checking(
        "assert math.isclose(f(1), 2)",
        "assert f(1) == sqrt(4)",
        imports=("import math", "from math import sqrt"),
        entry_points=(),
    )
    assert await outcomes(box, source, tests) == ["failed", "failed"]
    assert await outcomes(box, "def f(x): return 2", tests) == ["passed", "passed"]


STOP = """
class Stop(StopIteration): pass
class Odd:
    def stop(self, *_): raise Stop
    __getattr__ = __getitem__ = __len__ = __bool__ = __int__ = __str__ = stop
def f(x):
    if x == 1: raise StopIteration
    return Odd()
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert all(map(lambda x: f(x) == 5, [1]))",
        "assert all(a == b for a, b in zip(map(f, [1]), [5]))",
        "assert all(map(lambda x: f(x).value == 5, [2]))",
        "assert all(map(lambda x: f(x)[0] == 5, [2]))",
        "assert all(map(lambda x: len(f(x)) == 5, [2]))",
        "assert all(map(lambda x: int(f(x)) == 5, [2]))",
        "assert all(map(lambda x: str(f(x)) == '5', [2]))",
        "assert all(map(lambda x: bool(f(x)) and x == 5, [2]))",
    ],
)
async def test_a_stop_does_not_end_a_tests_loop_before_it_compares(box: Sandbox, test: str) -> None:
    assert await outcomes(box, STOP, checking(test)) == ["error"]


async def test_a_stop_that_a_test_asks_for_reaches_it(box: Sandbox) -> None:
    source = "def f(x): return next(iter(x))\ndef g(x): yield x\n"
    tests = checking(
        "try:\n    f([])\nexcept StopIteration:\n    pass\nelse:\n    assert False",
        "found = g(1)\nassert (next(found), next(found, 5)) == (1, 5)",
        "assert [f(x) for x in ([1], [2])] == [1, 2] and list(g(3)) == [3]",
        entry_points=("f", "g"),
    )
    assert await outcomes(box, source, tests) == ["passed"] * 3


async def test_annotations_that_are_text_are_not_run(box: Sandbox) -> None:
    source = (
        "def f(x): return 1\n"
        "f.__annotations__ = {'x': '[int for g in [].__class__.__base__.__subclasses__()][0]'}\n"
        "f.__globals__.update(int=int)\n"
        "class T(tuple): __annotations__ = f.__annotations__\n"
        "def g(x: int) -> str: return ''\n"
    )
    hints = "import typing\nassert typing.get_type_hints({}) == {{'x': int}}"
    tests = checking(
        hints.format("f"),
        "assert f.__annotations__ == {'x': int}",
        "assert g.__annotations__ == {'x': int, 'return': str}",
        entry_points=("f", "g"),
    )
    assert await outcomes(box, source, tests) == ["error", "error", "passed"]


async def test_an_address_is_not_taken_for_an_array(session: SandboxSession) -> None:
    numpy = pytest.importorskip("numpy")
    provider = Local(packages=str(Path(numpy.__file__).parents[1]))
    source = (
        "import numpy\nKEPT = numpy.array([4.0, 5.0])\n"
        "class Odd: __array_interface__ = KEPT.__array_interface__\n"
        "class Number(int): __array_interface__ = {**KEPT.__array_interface__, 'data': b'1' * 16}\n"
        "def f(x): return Number(1) if x else Odd()\n"
    )
    tests = checking(
        "assert numpy.asarray(f(0)).shape != (2,)",
        "assert numpy.asarray(f(1)).shape == () and numpy.asarray(f(1)) == 1",
        imports=("import numpy",),
    )
    async with provider.open() as opened:
        box = await opened.start(provider.spec())
        report = await grade(box, source, tests, timeout=60, test_timeout=30)
    assert report.tests[1].outcome == "passed"
    # Whatever numpy makes of an object without an address, it is none of the harness's memory.
    assert report.tests[0].outcome in ("passed", "error")


LIMITS = """
import ctypes, os, struct
library = ctypes.CDLL(None)
def f(x):
    for process in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        if process != os.getpid():
            library.prlimit(process, {kind}, struct.pack("QQ", 0, 0), None)
    {then}
"""


@pytest.mark.parametrize("then", ["return None", "os._exit(0)"])
@pytest.mark.parametrize("kind", ["RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_AS"])
async def test_limits_of_other_processes_are_out_of_reach(
    box: Sandbox, kind: str, then: str
) -> None:
    """Of the sandbox's own, whose death would mask the trajectory, and of later gradings'."""
    resource = pytest.importorskip("resource")
    source = LIMITS.format(kind=getattr(resource, kind), then=then)
    ends = ["failed" if then == "return None" else "error"] * 2
    tests = checking("assert f(1) == 2", "assert f(2) == 4")
    assert await outcomes(box, source, tests) == ends
    assert await outcomes(box, "def f(x): return 2 * x", tests) == ["passed"] * 2


async def test_a_candidate_may_set_its_own_limits(box: Sandbox) -> None:
    source = (
        "import resource as r\n"
        "def f(x):\n    r.setrlimit(r.RLIMIT_CPU, (x, x))\n    return r.getrlimit(r.RLIMIT_CPU)\n"
    )
    assert await outcomes(box, source, checking("assert f(50) == (50, 50)")) == ["passed"]


@pytest.mark.parametrize(
    "data",
    [
        "['q', 'os', 'system']",
        "['k', 'eval']",
        "['n', 'os.system', 'true']",
        "['x', [], 'exit']",
        "['h', [], True, True]",
        "['h', 1, True, True]",
        "['g', 0]",
        "['p', 1, ['q', 'os', 'system']]",
        "['E', ['q', 'os', 'system'], []]",
        "['t', [['t', [['z']]]]]",
    ],
)
async def test_forged_data_is_nothing_that_could_be_called_or_equal(
    box: Sandbox, data: str
) -> None:
    tests = checking("assert f(1) == 2", "assert f(2)('true') == 0", "assert f(3)['true'] == 0")
    assert "passed" not in await outcomes(box, GIVE.replace("DATA", data), tests)


async def test_a_harness_that_is_kept_computing_ends_by_its_own_processor_time(
    box: Sandbox,
) -> None:
    """Which `rollout.timeout`, by which the trajectory would be masked, might not wait for."""
    numbers = "['S', [['i', format(i * ((1 << 61) - 1), 'x')] for i in range(300_000)]]"
    source = GIVE.replace("def f", f"def numbers(): return {numbers}\ndef f")
    source = source.replace("DATA if", "numbers() if")
    tests = checking("assert f(1) == {2}")
    report = await grade(box, source, tests, timeout=3, test_timeout=3)
    assert (report.outcome, report.passed_tests) == ("tests_not_completed", 0)
    assert "exit status -27" in report.note
