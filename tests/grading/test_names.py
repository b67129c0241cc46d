import pytest

from rlpipe.grading.names import (
    classes_defined,
    imports_of,
    modules_imported,
    names_called,
    names_defined,
)


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("assert f(1) == 2", ("f",)),
        ("assert set(f(1)) == {2}", ("f",)),
        ("assert math.isclose(f(1), 2.5)\nimport math", ("f",)),
        ("import math as m\nassert m.isclose(f(1), 2.5, rel_tol=1e-9)", ("f",)),
        ("from math import isclose\nassert isclose(f(1), 2)", ("f",)),
        ("assert not f(1)", ("f",)),
        ("assert (f(1)) == 3", ("f",)),
        ("assert obj.method(f(x))", ("f", "obj", "x")),
        ("assert Solution().f(1) == 2", ("Solution",)),
        ("s = Solution()\nassert s.f(1) == 2", ("Solution",)),
        ("assert [f(i) for i in range(3)] == list(map(lambda x: x, g()))", ("f", "g")),
        ("def check(c):\n    assert c(1) == f(2)\ncheck(g)", ("f", "g")),
        ("try:\n    f(1)\nexcept MyError as error:\n    assert str(error)", ("MyError", "f")),
        ("assert sum([1]) == 1", ()),
        ("assert f(", ()),
    ],
)
def test_names_called(test: str, expected: tuple[str, ...]) -> None:
    assert names_called([test]) == expected


def test_a_name_that_one_test_makes_is_no_entry_point_of_the_next() -> None:
    assert names_called(["x = f(1)", "assert x == g(x)"]) == ("f", "g")


def test_names_defined_are_those_of_the_top_level() -> None:
    source = (
        "import math\nfrom os import path\nR = C = 3\na, (b, *c) = 1, (2, 3)\nn: int = 1\n"
        "def sum(x):\n    inner = 1\nasync def g(): ...\nclass K:\n    attribute = 1\n"
        "if True:\n    def late(): ...\ntry:\n    import x\nexcept ImportError:\n    x = None\n"
        "for i in range(3):\n    last = i\nwith open('f') as file:\n    pass\n(walrus := 1)\n"
    )
    assert names_defined(source) == tuple(
        sorted(["R", "C", "a", "b", "c", "n", "sum", "g", "K", "late", "x", "i", "last", "file",
                "walrus"])
    )  # fmt: skip
    assert names_defined("def broken(:") == ()


def test_imports_of() -> None:
    source = (
        "from __future__ import annotations\nimport os, re as r\nfrom a.b import c as d, e\nx = 1"
    )
    assert imports_of(source) == ("import os, re as r", "from a.b import c as d, e")
    assert imports_of("import (") == ()


def test_modules_imported() -> None:
    lines = ("import os.path as p, re", "from a.b import c", "from . import d", "import (", "x = 1")
    assert modules_imported(lines) == {"os", "re", "a"}


def test_classes_defined() -> None:
    source = (
        "from enum import Enum\nclass A: ...\nP = namedtuple('P', 'x')\nR = 3\nLIMIT = int('3')\n"
        "def f(): ...\nif R:\n    class B(A): ...\nx = A()\n"
    )
    assert classes_defined(source) == ("A", "B", "P")
    assert classes_defined("class (") == ()
