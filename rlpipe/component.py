"""A component is a frozen pydantic model: its fields are its YAML options, its methods the work.

`kind: tests_pass` in the package `rewards` is the component class that
`rlpipe/rewards/tests_pass.py` defines. Other distributions add kinds through the entry-point
group `rlpipe.rewards`. Only the module of the kind that is asked for gets imported.
"""

import importlib
import pkgutil
from functools import cache
from types import ModuleType
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rlpipe.errors import Finding, UnknownComponent, did_you_mean

Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""What every random generator takes: NumPy's are the narrowest."""


class Section(BaseModel):
    """A part of a spec: closed, frozen, and documented by the strings under its fields."""

    # Validators are built at first use: a spec uses few of the models that are imported.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class Component(Section):
    """A part of a spec whose `kind` chooses the class."""

    kind: str
    """Which component this is: the name of its module, or of its entry point."""

    extra: ClassVar[str | None] = None
    """The optional dependency set of rlpipe that this component needs."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Top-level modules that must be installed for this component to work."""

    def check(self) -> list[Finding]:
        """What is wrong with this component by itself, found without network and without import.

        Keys of the findings are relative to the component.
        """
        missing = [name for name in self.needs if not _installed(name)]
        if not missing:
            return []
        how = f"pip install 'rlpipe[{self.extra}]'" if self.extra else f"pip install {missing[0]}"
        return [Finding("kind", f"{self.kind!r} needs: {how}")]

    def check_online(self) -> list[Finding]:
        """What is wrong with this component that only the network can tell."""
        return []


def chosen(package: str) -> BeforeValidator:
    """Mark a field as a component from `rlpipe.<package>`; its `kind` chooses the class."""

    def choose(value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            return value
        try:
            return lookup(package, value["kind"]).model_validate(value)
        except UnknownComponent as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(choose)


def lookup(package: str, kind: str) -> type[Component]:
    """Return the component class of that kind.

    Raises:
        UnknownComponent: no such kind is built in or installed.
    """
    if kind in _builtin(package):
        return _component_of(importlib.import_module(f"rlpipe.{package}.{kind}"))
    if kind in plugin_kinds(package):
        return _plugin_class(package, kind)
    known = kinds(package)
    raise UnknownComponent(
        f"no kind {kind!r} in {package} (known: {', '.join(known)}){did_you_mean(kind, known)}"
    )


def kinds(package: str) -> list[str]:
    """Every kind that `package` has, built in or installed."""
    return sorted({*_builtin(package), *plugin_kinds(package)})


def plugin_kinds(package: str) -> frozenset[str]:
    """The kinds that other distributions add to `package`."""
    return frozenset(_plugins(package))


@cache
def _builtin(package: str) -> frozenset[str]:
    module = importlib.import_module(f"rlpipe.{package}")
    names = (found.name for found in pkgutil.iter_modules(module.__path__))
    return frozenset(name for name in names if name != "base" and not name.startswith("_"))


@cache
def _plugins(package: str) -> dict[str, Any]:
    from importlib.metadata import entry_points  # 50 ms, spared when every kind is built in

    return {point.name: point for point in entry_points(group=f"rlpipe.{package}")}


def _plugin_class(package: str, kind: str) -> type[Component]:
    point = _plugins(package)[kind]
    try:
        plugin = point.load()
    except (ImportError, AttributeError) as error:
        raise UnknownComponent(
            f"kind {kind!r} of {package} is installed ({point.value}) but does not load: {error}"
        ) from error
    if not (isinstance(plugin, type) and issubclass(plugin, Component)):
        raise UnknownComponent(f"kind {kind!r} of {package}: {point.value} is no component class")
    return plugin


def _component_of(module: ModuleType) -> type[Component]:
    """The one component class that a built-in module defines."""
    (cls,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Component)
        and value.__module__ == module.__name__
    )
    return cls


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The strings under a model's fields, a subclass's before its parents'.

    They are read from the source when someone asks, since parsing it costs every start otherwise.
    """
    import ast
    import inspect
    import textwrap
    from itertools import pairwise

    said: dict[str, str] = {}
    for cls in model.__mro__:
        if cls is BaseModel or not issubclass(cls, BaseModel):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        for field, below in pairwise(body.body if isinstance(body, ast.ClassDef) else []):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    said.setdefault(name, text)
    return said


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
