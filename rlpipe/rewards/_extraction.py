"""Finds the code in what a model said."""

import re
from collections.abc import Iterator
from textwrap import dedent
from typing import Literal, NamedTuple

from rlpipe.grading.names import parse

PYTHON = frozenset({"python", "python3", "py", "py3"})

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})(?P<info>.*)")
_THINK = re.compile(r"<(?P<end>/?)think>", re.IGNORECASE)


class Block(NamedTuple):
    """A fenced block of Markdown."""

    language: str
    text: str
    closed: bool
    """Whether its end is there."""


def extract_code(text: str, kind: Literal["auto", "answer", "fence"] = "auto") -> str | None:
    """The code that `text` answers with, or None. Thoughts, in `<think>` tags, never count.

    Args:
        kind: `answer` takes what the last `<answer>` tags hold, out of a fence if it is in one;
            `fence` the last block fenced as Python, else the last one without a language that is
            Python; `auto` the answer where there are tags, else the fence.
    """
    said = without_thoughts(text.replace("\r\n", "\n"))
    answer = None if kind == "fence" else _answer(said)
    if answer is not None:
        return _unwrapped(answer) or None
    return None if kind == "answer" else _python_block(list(blocks(said)))


def without_thoughts(text: str) -> str:
    """Drop thoughts, nested or unclosed ones too, and what precedes an end that nothing opened."""
    kept: list[str] = []
    depth, place = 0, 0
    for tag in _THINK.finditer(text):
        if depth == 0:
            kept.append(text[place : tag.start()])
        if not tag["end"]:
            depth += 1
        elif depth == 0:
            kept.clear()  # the chat template opened it, in the prompt
        else:
            depth -= 1
        place = tag.end()
    if depth == 0:
        kept.append(text[place:])
    return "\n".join(kept)


def _answer(text: str) -> str | None:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return None if start < 0 else text[start + len("<answer>") : end]


def _unwrapped(answer: str) -> str:
    found = list(blocks(answer))
    fallback = found[-1].text if found else dedent(answer).strip()
    return _python_block(found) or fallback


def _python_block(blocks: list[Block]) -> str | None:
    tagged = [block.text for block in blocks if block.language in PYTHON]
    if tagged:
        return tagged[-1] or None
    untagged = (block.text for block in reversed(blocks) if not block.language)
    return next((text for text in untagged if _is_python(text)), None)


def _is_python(text: str) -> bool:
    tree = parse(text)
    return tree is not None and bool(tree.body)


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks in `text`; one that never ends goes on to the end of the text."""
    opened: re.Match[str] | None = None
    body: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if opened is None:
            if fence and not ("`" in fence["marks"] and "`" in fence["info"]):
                opened, body = fence, []
        elif fence and _closes(fence, opened):
            yield _block(opened, body, closed=True)
            opened = None
        else:
            body.append(line)
    if opened is not None:
        yield _block(opened, body, closed=False)


def _closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    same = fence["marks"][0] == opened["marks"][0]
    return same and len(fence["marks"]) >= len(opened["marks"]) and not fence["info"].strip()


def _block(opened: re.Match[str], body: list[str], closed: bool) -> Block:
    language = opened["info"].strip(" \t{.}").lower()
    words = re.split(r"[\s,:}{]", language, maxsplit=1)
    text = "\n".join(line.removeprefix(opened["indent"]) for line in body)
    return Block(words[0], text.strip("\n").rstrip(), closed)
