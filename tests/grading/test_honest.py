"""Unusual but honest work, which must not suffer."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rlpipe.grading.grader import grade
from rlpipe.grading.names import classes_defined, imports_of, names_called, names_defined
from rlpipe.sandboxes.base import Sandbox, SandboxSession
from rlpipe.sandboxes.local import Local
from rlpipe.types import PythonTests

MBPP = Path(__file__).parents[2] / "../shared/data/mbpp"

POINT = """
class Point:
    made = 0
    def __init__(self, x, y=0): self.x, self.y = x, y; Point.made += 1
    def __eq__(self, other):
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)
    def __lt__(self, other): return self.x < other.x
    def __hash__(self): return hash((self.x, self.y))
    def __add__(self, other): return Point(self.x + other.x, self.y + other.y)
    def __repr__(self): return f"Point({self.x}, {self.y})"
    def __len__(self): return 2
    def __getitem__(self, place): return (self.x, self.y)[place]
    def __enter__(self): return self
    def __exit__(self, *_): self.x = None
    def move(self, *, by): self.x += by; return self
    @property
    def both(self): return [self.x, self.y]
    @staticmethod
    def zero(): return Point(0)
"""
ERRORS = """
class Base(Exception): pass
class Bad(Base):
    def __init__(self, code): super().__init__(f"code {code}"); self.code = code
class BadValue(ValueError): pass
def f(x):
    if x == 1: raise Bad(7)
    if x == 2: raise BadValue("two")
    if x == 3: raise KeyError("three")
    if x == 4: assert x != 4, "four"
    return x
"""

HONEST: dict[str, tuple[str, tuple[str, ...]]] = {
    "recursion": (
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)",
        ("assert f(10) == 10", "assert f(5000) == 5000"),
    ),
    "generators": (
        "def f(n):\n    while True:\n        yield n; n += 1\n"
        "def g(n): return (i for i in range(n))",
        (
            "import itertools\nassert list(itertools.islice(f(3), 4)) == [3, 4, 5, 6]",
            "it = f(1)\nassert next(it) == 1 and next(it) == 2",
            "assert list(g(3)) == [0, 1, 2] and sum(g(4)) == 6 and sorted(g(2)) == [0, 1]",
            "assert set(g(3)) == {0, 1, 2} and tuple(map(str, g(2))) == ('0', '1')",
        ),
    ),
    "iterators": (
        "def f(x): return map(abs, x)\ndef g(d): return d.keys()\ndef h(d): return d.items()",
        (
            "assert list(f([-1, 2])) == [1, 2]",
            "assert g({1: 2}) == {1} and list(g({1: 2})) == [1]",
            "assert h({1: 2}) == {(1, 2)} and dict(h({1: 2})) == {1: 2}",
        ),
    ),
    "globals": (
        "COUNT = 0\nSEEN = []\ndef f():\n    global COUNT\n    COUNT += 1\n    return COUNT",
        ("assert f() == 1 and f() == 2", "assert SEEN == [] and f() == 3"),
    ),
    "main_block": (
        "import sys\ndef f(): return 1\nif __name__ == '__main__':\n    f(); sys.exit(1)",
        ("assert f() == 1",),
    ),
    "printing": (
        "import sys\nprint('hello \\ud800')\ndef f():\n    print('x' * 100000, file=sys.stderr)\n"
        "    print(flush=True); return 1".replace(" \\ud800", ""),
        ("print('from the test', flush=True)\nassert f() == 1",),
    ),
    "input": (
        "def f():\n    try: return input()\n    except EOFError: return 'nothing'",
        ("assert f() == 'nothing'",),
    ),
    "unicode": (
        "def größe(s): return s[::-1] + '\\x00\\ud800'",
        ("assert größe('añ😀') == '😀ña\\x00\\ud800'",),
    ),
    "numbers": (
        "from decimal import Decimal\nfrom fractions import Fraction\ndef f(x): return x\n"
        "def d(): return [Decimal('0.1') * 3, Fraction(1, 3), 1 + 2j]\n"
        "def big(n): return 7 ** n",
        (
            "import math\nassert math.isnan(f(float('nan'))) and f(float('-inf')) == -math.inf",
            "from decimal import Decimal\nfrom fractions import Fraction\n"
            "assert d() == [Decimal('0.3'), Fraction(1, 3), 1 + 2j]",
            "assert big(20000) == 7 ** 20000 and f(-(2 ** 64)) == -(2 ** 64)",
            "import math\nassert math.isclose(f(0.1) + f(0.2), 0.3) and round(f(2.675), 2) == 2.67",
            "assert f(True) is True and f(None) is None and f(...) is ... and f(1) is not True",
            "assert type(f(1.0)) is float and type(f(1)) is int and str(f(-0.0)) == '-0.0'",
        ),
    ),
    "containers": (
        "from collections import *\ndef f(x): return x\ndef c(s): return Counter(s)\n"
        "def d(s):\n    out = defaultdict(list)\n    for x in s: out[x].append(1)\n    return out\n"
        "def q(x): return deque(x, maxlen=2)\ndef o(x): return OrderedDict(x)",
        (
            "assert set(f((1, 2, 1))) == {1, 2} and f({(1, 2): {3}}) == {(1, 2): {3}}",
            "assert f(frozenset([1])) == {1} and f(b'ab') == b'ab' and f(bytearray(2))[1] == 0",
            "assert c('aab') == {'a': 2, 'b': 1} and c('aab').most_common(1) == [('a', 2)]",
            "assert d('aab') == {'a': [1, 1], 'b': [1]} and d('')['new'] == []",
            "assert list(q([1, 2, 3])) == [2, 3] and list(o([(2, 1), (1, 2)])) == [2, 1]",
            "assert f(range(3)) == range(3) and not f([])",
            "assert f({'a': [1, (2, {'b': None})]}) == {'a': [1, (2, {'b': None})]}",
        ),
    ),
    "dates": (
        "import datetime as d\ndef f(x): return x + d.timedelta(days=1, seconds=2)",
        (
            "import datetime\nassert f(datetime.date(2024, 2, 28)) == datetime.date(2024, 2, 29)",
            "import datetime\nx = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)\n"
            "assert f(x) - x == datetime.timedelta(1, 2)",
        ),
    ),
    "in_place": (
        "def f(x): x.sort(); x.append(9)\ndef g(d): d['k'] = d.pop('j')\ndef h(s): s.add(3)",
        (
            "x = [3, 1]\nassert f(x) is None and x == [1, 3, 9]",
            "x = {'j': [1]}\ng(x)\nassert x == {'k': [1]}",
            "x = {1}\nh(x)\nassert x == {1, 3}",
        ),
    ),
    "classes": (
        POINT + "def mid(a, b): return Point((a.x + b.x) / 2, (a.y + b.y) / 2)\n",
        (
            "assert Point(1, 2) == Point(1, 2) and Point(1) != Point(2)",
            "assert mid(Point(0, 0), Point(2, 4)) == Point(1, 2)",
            "p = Point(1, y=2)\nassert (p.x, p.y, p.both) == (1, 2, [1, 2])",
            "p = Point(1)\np.x = 5\nassert p.move(by=2).x == 7 and p.x == 7",
            "assert Point(1, 2) + Point(3, 4) == Point(4, 6) and Point(1) < Point(2)",
            "assert sorted([Point(2), Point(1)])[0].x == 1 and len({Point(1), Point(1)}) == 1",
            "assert [Point(1)] == [Point(1)] and Point(1) in [Point(1)] and Point(1) != 1",
            "assert repr(Point(1)) == 'Point(1, 0)' and f'{Point(1)}' == 'Point(1, 0)'",
            "assert len(Point(1)) == 2 and Point(1, 2)[1] == 2 and list(Point(3, 4)) == [3, 4]",
            "assert isinstance(Point(1), Point) and not isinstance(3, Point)",
            "assert Point.zero() == Point(0) and Point.made > 0 and Point.__name__ == 'Point'",
            "with Point(1) as p:\n    assert p.x == 1\nassert p.x is None",
            "assert hasattr(Point(1), 'x') and not hasattr(Point(1), 'z')",
        ),
    ),
    "class_arithmetic": (
        "class Vector:\n    def __init__(self, x, y): self.x, self.y = x, y\n"
        "    def __mul__(self, n): return Vector(self.x * n, self.y * n)\n"
        "    __rmul__ = __mul__\n"
        "    def __sub__(self, n): return Vector(self.x - n, self.y - n)\n"
        "    def __eq__(self, o): return self.both() == (o if type(o) is tuple else o.both())\n"
        "    def __lt__(self, n): return self.x < n\n"
        "    def __contains__(self, n): return n in self.both()\n"
        "    def both(self): return (self.x, self.y)\n"
        "class Sub(Vector): pass\ndef ones(): return Vector(1, 1)",
        (
            "assert (Vector(1, 2) * 3).both() == (3, 6) and (2 * Vector(1, 2) - 1).x == 1",
            "assert Vector(1, 2) * 3 * 2 == Vector(6, 12) and ones() == Sub(1, 1)",
            "assert Vector(1, 2) == (1, 2) and Vector(1, 2) < 2 and not Vector(1, 2) < 1",
            "assert 2 in Vector(1, 2) and 3 not in Vector(1, 2)",
        ),
    ),
    "solution_method": (
        "class Solution:\n    def f(self, x): return x + 1",
        ("assert Solution().f(1) == 2", "s = Solution()\nassert s.f(s.f(1)) == 3"),
    ),
    "linked_list": (
        "class Node:\n    def __init__(self, v): self.v, self.next = v, None\n"
        "def f(n):\n    out = []\n    while n: out.append(n.v); n = n.next\n    return out",
        ("a = Node(1)\na.next = Node(2)\nassert f(a) == [1, 2] and a.next.next is None",),
    ),
    "subclasses": (
        "from collections import namedtuple\nfrom enum import Enum, IntEnum\n"
        "P = namedtuple('P', 'x y')\nclass Color(Enum): RED = 1\nclass Level(IntEnum): LOW = 1\n"
        "class Stack(list):\n    def push(self, x): self.append(x); return self\n"
        "def f(p): return P(p.x + 1, p.y)\n"
        "def level(): return Level.LOW\ndef color(): return Color.RED",
        (
            "assert f(P(1, 2)) == (2, 2) and f(P(1, 2)).x == 2 and f(f(P(1, 2)))[0] == 3",
            "a, b = f(P(1, 2))\nassert (a, b) == (2, 2) and isinstance(f(P(1, 2)), tuple)",
            "assert level() == 1 and level().name == 'LOW' and Level.LOW + 1 == 2",
            "assert color() == Color.RED and color().value == 1 and Color['RED'] is Color.RED",
            "s = Stack()\ns.push(1).push(2)\nassert s.pop() == 2 and s == [1] and len(s) == 1",
            "assert Stack([1]) == Stack([1]) and Stack([1]) + [2] == [1, 2] and 1 in Stack([1])",
        ),
    ),
    "custom_exceptions": (
        ERRORS,
        (
            "try:\n    f(1)\n    assert False\nexcept Bad as error:\n"
            "    assert error.code == 7 and str(error) == 'code 7' and isinstance(error, Base)",
            "try:\n    f(1)\n    assert False\nexcept Base:\n    pass",
            "try:\n    f(2)\n    assert False\nexcept ValueError as error:\n"
            "    assert str(error) == 'two' and type(error).__name__ == 'BadValue'",
            "try:\n    f(3)\n    assert False\nexcept KeyError as error:\n"
            "    assert error.args == ('three',)",
            "try:\n    f(4)\nexcept AssertionError as error:\n    assert 'four' in str(error)\n"
            "else:\n    raise ValueError",
            "import contextlib\nwith contextlib.suppress(Bad):\n    f(1)\nassert f(5) == 5",
        ),
    ),
    "functions": (
        "def f(g, x): return [g(i) for i in x]\ndef adder(n): return lambda x: x + n\n"
        "def boom(g):\n    try: g()\n    except ZeroDivisionError: return 'caught'\n"
        "def apply(g, *a, **k): return g(*a, **k)",
        (
            "assert f(lambda i: i * 2, [1, 2]) == [2, 4] and f(str, [1]) == ['1']",
            "import math\nassert f(math.sqrt, [4]) == [2.0] and f(len, ['ab']) == [2]",
            "assert adder(2)(3) == 5 and f(adder(1), [1]) == [2] and callable(adder(1))",
            "assert boom(lambda: 1 / 0) == 'caught'",
            "seen = []\nf(seen.append, [1, 2])\nassert seen == [1, 2]",
            "assert apply(lambda g: g(1), adder(4)) == 5",
            "assert apply(sorted, [2, 1], reverse=True) == [2, 1]",
        ),
    ),
    "async": (
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1",
        ("import asyncio\nassert asyncio.run(f(1)) == 2",),
    ),
    "patches_of_its_own": (
        "import builtins, sys\nprint = lambda *_: None\nsum = max\nsys.setrecursionlimit(50000)\n"
        "def f(x): print(x); return sum(x)",
        ("assert f([1, 2]) == 2", "assert sum([1, 2]) == 2"),
    ),
    "helpers_of_the_system": (
        "import subprocess, sys, threading, multiprocessing, tempfile\n"
        "def f():\n    out = []\n    t = threading.Thread(target=out.append, args=(1,))\n"
        "    t.start(); t.join()\n    return out\n"
        "def run(): return subprocess.run(['echo', 'hi'], capture_output=True, text=True).stdout\n"
        "def file():\n    with tempfile.TemporaryFile('w+') as t:\n"
        "        t.write('x'); t.seek(0); return t.read()",
        ("assert f() == [1] and run() == 'hi\\n' and file() == 'x'",),
    ),
    "dataclasses": (
        "from __future__ import annotations\nfrom dataclasses import dataclass, field\n"
        "@dataclass(order=True)\nclass D:\n"
        "    a: int\n    b: list[int] = field(default_factory=list)\n"
        "def f(): return [D(1), D(2, [3])]",
        (
            "assert f() == [D(1), D(2, [3])] and f()[1].b == [3] and max(f()) == D(2, [3])",
            "assert str(D(1)) == 'D(a=1, b=[])'",
        ),
    ),
    "matches": (
        "import re\ndef f(s): return re.search('b+', s)",
        ("assert f('abb') and not f('a')", "assert f('abb').group() == 'bb' and f('a') is None"),
    ),
    "own_names_of_builtins": (
        "def sum(a, b): return a * b\ndef filter(x): return [i for i in x if i]",
        ("assert sum(3, 4) == 12", "assert filter([0, 1]) == [1]"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
async def test_honest_work_passes(box: Sandbox, name: str) -> None:
    source, statements = HONEST[name]
    tests = PythonTests(
        hidden=statements,
        entry_points=names_defined(source),
        classes=classes_defined(source),
    )
    report = await grade(box, source, tests)
    assert [(t.outcome, t.message, t.name) for t in report.tests if t.outcome != "passed"] == []
    assert report.passed
    assert report.outcome == "passed"


async def test_entry_points_are_found_without_a_reference(box: Sandbox) -> None:
    tests = PythonTests(hidden=("assert set(f(1)) == {1}", "assert not g(0)"))
    assert names_called(tests.all) == ("f", "g")
    assert (await grade(box, "def f(x): return [x]\ndef g(x): return x", tests)).passed


async def test_classes_are_found_without_a_reference(box: Sandbox) -> None:
    tests = PythonTests(hidden=("assert Point(1) == Point(1) and Point(1) + Point(2) == Point(3)",))
    assert (await grade(box, POINT, tests)).passed


async def test_setup_runs_after_the_candidate_and_before_the_tests(box: Sandbox) -> None:
    tests = PythonTests(
        hidden=("assert head.v == 1 and f(head) == 1", "assert math.pi > N"),
        imports=("import math",),
        setup="N = 3\nhead = Node(1)",
        entry_points=("Node", "f"),
    )
    source = "class Node:\n    def __init__(self, v): self.v = v\ndef f(n): return n.v"
    assert (await grade(box, source, tests)).passed


async def test_own_equality_is_marked(box: Sandbox) -> None:
    statements = ("assert P(1) == P(1)", "assert P(1).x == 1")
    tests = PythonTests(hidden=statements, entry_points=("P",), classes=("P",))
    source = "class P:\n    def __init__(s, x): s.x = x\n    def __eq__(s, o): return s.x == o.x"
    report = await grade(box, source, tests)
    assert report.passed
    assert ["__eq__" in test.message for test in report.tests] == [True, False]
    assert "__eq__" in report.note


class Reference(NamedTuple):
    name: str
    source: str
    tests: PythonTests


def mbpp() -> Iterator[Reference]:
    """Every reference solution of both sets, with all the tests that it has."""
    rows: list[dict[str, Any]] = json.loads((MBPP / "sanitized-mbpp.json").read_text())
    rows += map(json.loads, (MBPP / "mbpp.jsonl").read_text().splitlines())
    for row in rows:
        code = row["code"]
        tests = PythonTests(
            visible=tuple(row["test_list"]),
            hidden=tuple(row.get("challenge_test_list", ())),
            imports=(*imports_of(code), *row.get("test_imports", ())),
            setup=row.get("test_setup_code", "").replace("\r", ""),
            entry_points=names_defined(code),
            classes=classes_defined(code),
        )
        yield Reference(f"{'full' if 'text' in row else 'sanitized'}/{row['task_id']}", code, tests)


@pytest.mark.skipif(not MBPP.is_dir(), reason=f"MBPP is not at {MBPP}")
async def test_every_mbpp_reference_passes_eight_at_once(session: SandboxSession) -> None:
    queue = mbpp()
    passed: list[str] = []
    failed: list[tuple[str, Any]] = []

    async def work() -> None:
        box = await session.start(Local().spec())
        for name, source, tests in queue:
            # Task 123 takes many seconds, and more where eight share few cores.
            report = await grade(box, source, tests, timeout=120, test_timeout=100)
            if report.passed:
                passed.append(name)
            else:
                failed.append((name, report))

    start = time.monotonic()
    await asyncio.gather(*(work() for _ in range(8)))
    print(f"{len(passed) / (time.monotonic() - start):.1f} gradings a second")
    assert failed == []
    assert sum(name.startswith("full/") for name in passed) == 974
    assert sum(name.startswith("sanitized/") for name in passed) == 427
