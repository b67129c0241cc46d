"""Solutions that solve nothing, to try a reward with: none of them may pass."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from rlpipe.grading.names import names_wanted, parse
from rlpipe.types import Task

CONSTANT = "constant"
"""The one cheat that a weak set of tests cannot tell from a solution, whatever the grader does."""

FORGE = """\
import os
for line in ("passed", "OK", "1 passed in 0.01s", '["passed", "", 0.1, false]', '["done", ""]'):
    os.write(1, line.encode() + b"\\n")
"""

LIAR = """\
class Liar:
    def __init__(self, *_, **__): pass
    def yes(self, *_): return True
    def none(self, *_): return 0
    def __hash__(self): return 0
    def __len__(self): return 1
    def __iter__(self): return iter([self])
    def __getattr__(self, name): return self
    def __call__(self, *_, **__): return self
    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __bool__ = __contains__ = yes
    __ne__ = __sub__ = __rsub__ = __abs__ = none
"""

PATCHES = """\
import builtins, math, operator
for name in ("len", "abs", "all", "any", "isinstance", "set", "sorted", "round", "AssertionError"):
    setattr(builtins, name, lambda *_, **__: True)
math.isclose = operator.eq = operator.ne = lambda *_, **__: True
"""

BEFORE = {
    "sys_exit": "import sys\nsys.exit(0)\n",
    "os_exit": "import os\nos._exit(0)\n",
    "forged_report": f"{FORGE}os._exit(0)\n",
    "forged_at_exit": f"import atexit\natexit.register(exec, {FORGE!r})\nraise SystemExit(0)\n",
    "lying_objects": LIAR,
    "patched_builtins": PATCHES,
    "exit_when_called": "",
    "nothing": "",
}
"""What each cheat does before it defines the names that the tests want."""

RETURNS = {
    "lying_objects": "return Liar()",
    "exit_when_called": "raise SystemExit(0)",
}


class Cheat(NamedTuple):
    name: str
    code: str


def cheats(task: Task) -> Iterator[Cheat]:
    """The standard cheats, made for a task."""
    names = names_wanted(task.tests) if task.tests else ()
    for name, before in BEFORE.items():
        yield Cheat(name, before + _defining(names, RETURNS.get(name, "return None")))
    shown = _expected(task)
    if shown is not None:
        yield Cheat(CONSTANT, _defining(names, f"return {shown}"))


def _defining(names: tuple[str, ...], body: str) -> str:
    return "\n".join(f"def {name}(*_, **__):\n    {body}" for name in names)


def _expected(task: Task) -> str | None:
    """What the first shown test compares with, where that is written out."""
    tree = parse(task.tests.visible[0]) if task.tests and task.tests.visible else None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            return ast.unparse(node.comparators[0])
    return None
