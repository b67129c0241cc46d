"""Whether a value follows a JSON schema: the part of the standard that answers need."""

import re
from collections.abc import Callable, Iterator, Mapping
from operator import ge, gt, le, lt
from typing import Any

Schema = Mapping[str, Any]
Check = Callable[[Any, Schema, str], Iterator[str]]
Measure = Callable[[Any], float | None]

TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
        and not isinstance(value, bool)
    ),
}
SAYS_NOTHING = frozenset({"title", "description", "examples", "default", "$schema", "$comment"})


def unknown_keywords(schema: Schema) -> set[str]:
    """Keywords that `problems` would pass over, which is worse than refusing them."""
    unknown = set(schema) - set(_KEYWORDS) - {"type"} - SAYS_NOTHING
    unknown |= {f"type {name}" for name in _types(schema) if name not in TYPES}
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    return unknown.union(*(unknown_keywords(part) for part in inner if isinstance(part, Mapping)))


def problems(value: Any, schema: Schema, path: str = "$") -> Iterator[str]:
    """What is wrong with a value that was read from JSON, each with the path to it."""
    names = _types(schema)
    if names and not any(TYPES[name](value) for name in names):
        yield f"{path} is no {' or '.join(names)}"
        return
    for keyword, check in _KEYWORDS.items():
        if keyword in schema:
            yield from check(value, schema, path)


def _types(schema: Schema) -> list[str]:
    wanted = schema.get("type", [])
    return [wanted] if isinstance(wanted, str) else wanted


def _properties(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name in value.keys() & schema["properties"].keys():
            yield from problems(value[name], schema["properties"][name], f"{path}.{name}")


def _additional(value: Any, schema: Schema, path: str) -> Iterator[str]:
    rule = schema["additionalProperties"]
    if isinstance(value, dict):
        for name in value.keys() - schema.get("properties", {}).keys():
            if rule is False:
                yield f"{path}.{name} is not expected"
            elif isinstance(rule, Mapping):
                yield from problems(value[name], rule, f"{path}.{name}")


def _required(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{path}.{name} is missing" for name in schema["required"] if name not in value)


def _items(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from problems(item, schema["items"], f"{path}[{place}]")


def _enum(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if not any(_same(value, allowed) for allowed in schema["enum"]):
        yield f"{path} is none of {schema['enum']}"


def _const(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if not _same(value, schema["const"]):
        yield f"{path} is not {schema['const']!r}"


def _pattern(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{path} does not match {schema['pattern']!r}"


def _any_of(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if all(any(problems(value, option, path)) for option in schema["anyOf"]):
        yield f"{path} is none of the alternatives"


def _bound(keyword: str, fits: Callable[[Any, Any], bool], measure: Measure) -> Check:
    def check(value: Any, schema: Schema, path: str) -> Iterator[str]:
        size = measure(value)
        if size is not None and not fits(size, schema[keyword]):
            yield f"{path} breaks {keyword} {schema[keyword]}"

    return check


def _number(value: Any) -> float | None:
    return value if TYPES["number"](value) else None


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _same(value: Any, other: Any) -> bool:
    """Equality in JSON, where a truth value is no number."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


_KEYWORDS: dict[str, Check] = {
    "properties": _properties,
    "additionalProperties": _additional,
    "required": _required,
    "items": _items,
    "enum": _enum,
    "const": _const,
    "pattern": _pattern,
    "anyOf": _any_of,
    "minimum": _bound("minimum", ge, _number),
    "maximum": _bound("maximum", le, _number),
    "exclusiveMinimum": _bound("exclusiveMinimum", gt, _number),
    "exclusiveMaximum": _bound("exclusiveMaximum", lt, _number),
    "minLength": _bound("minLength", ge, _length),
    "maxLength": _bound("maxLength", le, _length),
    "minItems": _bound("minItems", ge, _count),
    "maxItems": _bound("maxItems", le, _count),
}
