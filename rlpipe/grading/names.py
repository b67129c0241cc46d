"""Which names tests take from a candidate, found by parsing."""

import ast
import builtins
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache

from rlpipe.types import PythonTests

_BUILTINS = frozenset(dir(builtins))


def names_defined(source: str) -> tuple[str, ...]:
    """The functions, classes and variables that `source` defines, not imports, at its top level.

    Example: `names_defined("import math\\nR = 3\\ndef f(): ...")` is `("R", "f")`.
    """
    tree = _parsed(source)
    return tuple(sorted({name for node in tree.body for name in _definitions(node)}))


def classes_defined(source: str) -> tuple[str, ...]:
    """The classes that `source` defines at its top level, those that a call makes included.

    Example: `classes_defined("class A: ...\\nP = namedtuple('P', 'x')\\nR = 3")` is `("A", "P")`.
    """
    tree = _parsed(source)
    return tuple(sorted({name for node in tree.body for name in _classes(node)}))


def classes_called(names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that are written as classes are; for tests that have no reference."""
    return tuple(name for name in names if name[:1].isupper() and not name[1:].isupper())


def imports_of(source: str) -> tuple[str, ...]:
    """The import statements at the top level of `source`, `from __future__` left out."""
    return tuple(line for line, _ in imports(source))


def imports(source: str) -> Iterator[tuple[str, set[str]]]:
    """The import statements at the top level of `source`, each with the names that it binds."""
    for node in _parsed(source).body:
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if isinstance(node, ast.Import | ast.ImportFrom) and not future:
            yield ast.unparse(node), {name for alias in node.names for name in _bindings(alias)}


def modules_imported(code: Iterable[str]) -> set[str]:
    """The top-level modules that the statements `code` import, such as `os` for `os.path`."""
    found: set[str] = set()
    for statement in code:
        for node in _parsed(statement).body:
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found


def names_used(code: Iterable[str]) -> set[str]:
    """Every name that occurs in the statements `code`."""
    nodes = (node for statement in code for node in ast.walk(_parsed(statement)))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def names_called(tests: Iterable[str]) -> tuple[str, ...]:
    """The names that `tests` use and neither define, import, nor find among the built-in ones.

    Example: `names_called(["assert set(f(1)) == {2}"])` is `("f",)`.
    """
    statements = tuple(tests)
    nodes = (node for test in statements for node in ast.walk(_parsed(test)))
    own = {name for node in nodes for name in _bindings(node)}
    return tuple(sorted(names_used(statements) - own - _BUILTINS))


def names_wanted(tests: PythonTests) -> tuple[str, ...]:
    """The names that `tests` take from a candidate: those of a reference's that they use.

    Without a reference, those that they use and that neither they nor their imports define.
    """
    statements = (*tests.all, tests.setup)
    if not tests.entry_points:
        return names_called((*tests.imports, *statements))
    return tuple(sorted(names_used(statements) & set(tests.entry_points)))


def parse(source: str) -> ast.Module | None:
    """The syntax tree of `source`, or None where it is no Python. Says nothing about bad style."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=64)  # several of these functions are asked about the same code
def _parsed(source: str) -> ast.Module:
    return parse(source) or ast.Module(body=[], type_ignores=[])


def _definitions(statement: ast.stmt) -> Iterator[str]:
    """Names that a top-level statement defines, those under `if`, `try`, `with` and loops too."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            yield from _definitions(node)
        elif isinstance(node, ast.ExceptHandler):
            for inner in node.body:
                yield from _definitions(inner)
        else:
            yield from _stored(node)


def _classes(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        yield from classes_called(name for name in _definitions(statement))
    elif isinstance(statement, ast.If | ast.Try | ast.With):
        for node in ast.iter_child_nodes(statement):
            if isinstance(node, ast.stmt):
                yield from _classes(node)


def _stored(expression: ast.AST) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _bindings(node: ast.AST) -> Iterator[str]:
    """Names that one node of a test binds itself."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).split(".")[0]
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name
