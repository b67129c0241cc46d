"""`rlpipe list [group]`: every component with its options, types, defaults and one line of docs."""

from collections.abc import Sequence
from typing import Any

from pydantic.fields import FieldInfo

from rlpipe.component import field_docs, kinds, lookup
from rlpipe.config.schema import PACKAGES
from rlpipe.errors import ConfigError, Finding, UnknownComponent, did_you_mean


def show(args: Sequence[str]) -> None:
    """Print the kinds of one group, or the names of all.

    Raises:
        ConfigError: there is no such group.
    """
    packages = sorted(set(PACKAGES.values()))
    if not args:
        for package in packages:
            print(f"{package:<10} {', '.join(kinds(package))}")
        print("\nrlpipe list GROUP shows the options of each kind.")
        return
    package = PACKAGES.get(args[0], args[0])
    if package not in packages:
        hint = did_you_mean(args[0], packages)
        raise ConfigError(
            [Finding("", f"no group {args[0]!r} (known: {', '.join(packages)}){hint}")]
        )
    print("\n\n".join(_described(package, kind) for kind in kinds(package)))


def _described(package: str, kind: str) -> str:
    try:
        component = lookup(package, kind)
    except UnknownComponent as error:
        return f"{kind}\n  (does not load: {error})"
    said = field_docs(component)
    options = [
        _option(name, field, said.get(name, ""))
        for name, field in component.model_fields.items()
        if name != "kind"
    ]
    return "\n".join([f"{kind}: {_first_line(component.__doc__)}", *options])


def _option(name: str, field: FieldInfo, said: str) -> str:
    required = field.is_required()
    default = "required" if required else f"= {_yaml(field.get_default(call_default_factory=True))}"
    line = f"  {name}: {_type_name(field.annotation)} {default}"
    return f"{line}\n      {_first_line(said)}" if said else line


def _type_name(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    if isinstance(annotation, type) and hasattr(annotation, "__args__"):
        text = str(annotation)
    return text.replace("typing.", "").replace("NoneType", "null").replace("None", "null")


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _first_line(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())
