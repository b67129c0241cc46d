"""1 when the answer has the form that was asked for."""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from rlpipe.errors import Finding
from rlpipe.rewards._extraction import blocks, without_thoughts
from rlpipe.rewards._schema import problems, unknown_keywords
from rlpipe.rewards.base import Reward
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class Format(Reward):
    """1 when the last answer holds exactly one block of the right form, 0 otherwise.

    Thoughts, in `<think>` tags, do not count.
    """

    kind: Literal["format"] = "format"
    block: Literal["answer", "fence", "json"] = "answer"
    """One pair of `<answer>` tags with something in it, one fenced block with its end, or JSON: the
    whole answer or its only fenced block."""

    language: str | None = None
    """What a fenced block must be marked as, such as `python`; null takes any."""

    alone: bool = False
    """Whether the answer must be the block and nothing else."""

    json_schema: Mapping[str, Any] = Field({})
    """What the JSON must follow; empty takes any JSON."""

    def check(self) -> list[Finding]:
        findings = super().check()
        unknown = unknown_keywords(self.json_schema)
        if unknown:
            words = ", ".join(sorted(unknown))
            findings.append(Finding("json_schema", f"these keywords are not supported: {words}"))
        if self.json_schema and self.block != "json":
            findings.append(Finding("json_schema", "only for block: json"))
        return findings

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        said = without_thoughts(trajectory.answer.replace("\r\n", "\n")).strip()
        find = {"answer": self._answer, "fence": self._fence, "json": self._json}[self.block]
        problem = find(said)
        passed = problem is None
        outcome = "passed" if passed else "bad_format"
        return Score(value=float(passed), passed=passed, outcome=outcome, note=problem or "")

    def _answer(self, said: str) -> str | None:
        opened, closed = said.count("<answer>"), said.count("</answer>")
        if (opened, closed) != (1, 1):
            return f"{opened} times <answer> and {closed} times </answer>, not once each"
        match = re.search(r"<answer>(.*)</answer>", said, re.DOTALL)
        if match is None or not match[1].strip():
            return "nothing stands between <answer> and </answer>"
        return self._alone(match[0], said)

    def _fence(self, said: str) -> str | None:
        found = list(blocks(said))
        if len(found) != 1:
            return f"{len(found)} fenced blocks, not one"
        if not found[0].closed:
            return "the fenced block has no end"
        if not found[0].text.strip():
            return "the fenced block is empty"
        if self.language is not None and found[0].language != self.language:
            return f"the block is marked {found[0].language!r}, not {self.language!r}"
        inside = said.startswith(("`", "~")) and said.endswith(("`", "~"))
        return None if inside or not self.alone else "something stands beside the block"

    def _json(self, said: str) -> str | None:
        value, problem = _read(said)
        if problem is not None and not self.alone:
            found = list(blocks(said))
            if len(found) != 1:
                return f"no JSON: {problem}, and {len(found)} fenced blocks, not one"
            value, problem = _read(found[0].text)
        if problem is not None:
            return f"no JSON: {problem}"
        return next(problems(value, self.json_schema), None)

    def _alone(self, block: str, said: str) -> str | None:
        return "something stands beside the block" if self.alone and block != said else None


def _read(text: str) -> tuple[Any, str | None]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse), None
    except (ValueError, RecursionError) as error:
        return None, str(error)
