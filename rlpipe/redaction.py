"""Keep secrets of the environment out of whatever is written down, printed or sent."""

import logging
import os
from collections.abc import Mapping
from typing import Any

SECRET_WORDS = {
    *("KEY", "APIKEY", "TOKEN", "SECRET"),
    *("PASS", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS"),
}
"""An environment variable with one of these between underscores holds a secret: AWS_SECRET_KEY_ID
does, MAX_TOKENS does not."""


REDACTED = "[redacted]"


class RedactingFormatter(logging.Formatter):
    """Keeps secrets of the environment out of a log, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return str(redact(super().format(record)))


def redact(tree: Any) -> Any:
    """Replace every secret of the environment, wherever it stands in a string of `tree`."""
    hidden = [
        value
        for name, value in os.environ.items()
        if not SECRET_WORDS.isdisjoint(name.upper().split("_")) and len(value) >= 8
    ]
    # A secret may hold a shorter one, which must not be taken out of its middle.
    return _redact(tree, sorted(hidden, key=len, reverse=True)) if hidden else tree


def _redact(tree: Any, hidden: list[str]) -> Any:
    if isinstance(tree, str):
        for value in hidden:
            tree = tree.replace(value, REDACTED)
        return tree
    if isinstance(tree, Mapping):
        return {key: _redact(value, hidden) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_redact(value, hidden) for value in tree]
    return tree
