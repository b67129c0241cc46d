"""The pages: one file each, with all that they need inside and nothing loaded from outside.

Whatever a model or a tool wrote reaches a page as JSON or as compressed text, and the page's code
makes text nodes of it, never markup. The content security policy holds the page to that: only the
scripts that were put in here run, by their hashes, and no string can be turned into markup.
"""

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

ASSETS = Path(__file__).parent / "assets"
STYLES = ("vendor/uplot.css", "page.css")
SHARED = ("vendor/uplot.js", "vendor/prism.js", "dom.js", "charts.js")
SCRIPTS = {
    "run": (*SHARED, "answers.js", "training.js", "reader.js", "list.js", "run.js"),
    "runs": (*SHARED, "parallel.js", "runs.js"),
}
"""The code of each page, in the order in which it runs."""

LICENSES = ("vendor/uplot.LICENSE", "vendor/prism.LICENSE")


def render(
    page: str,
    title: str,
    *,
    data: Mapping[str, Any] | None = None,
    blocks: Iterable[tuple[str, str]] = (),
) -> Iterator[str]:
    """A page in pieces.

    Args:
        page: `run` or `runs`.
        data: what it shows; a page without asks the server that it came from.
        blocks: names and compressed texts, which the page inflates when it needs them.
    """
    scripts = [_asset(name) for name in SCRIPTS[page]]
    styles = [_asset(name) for name in STYLES]
    yield from (
        _environment()
        .get_template("page.html")
        .generate(
            title=title,
            policy=policy(scripts, styles, asks="'none'" if data is not None else "'self'"),
            licenses=[_asset(name) for name in LICENSES],
            styles=styles,
            scripts=scripts,
            data=None if data is None else Markup(embedded(data)),
            blocks=((name, Markup(text)) for name, text in blocks),
        )
    )


def policy(scripts: Sequence[str], styles: Sequence[str], asks: str) -> str:
    """The content security policy of a page with these scripts and styles inside.

    Args:
        asks: where the page may fetch from.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {' '.join(map(_hash, styles))}",
            "img-src data:",
            f"connect-src {asks}",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def embedded(tree: Any) -> str:
    """JSON that no HTML parser takes for anything but text."""
    text = to_json(tree)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def to_json(tree: Any) -> str:
    """JSON in ASCII; a number that is not finite becomes null, as JSON has no other word for it."""
    try:
        return json.dumps(tree, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(tree), separators=(",", ":"))


def compress(tree: Any) -> str:
    """JSON, compressed, in base64."""
    return base64.b64encode(gzip.compress(to_json(tree).encode(), 6, mtime=0)).decode()


def _finite(tree: Any) -> Any:
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else None
    if isinstance(tree, Mapping):
        return {key: _finite(value) for key, value in tree.items()}
    return [_finite(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> Markup:
    return Markup((ASSETS / name).read_text("utf-8"))


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
