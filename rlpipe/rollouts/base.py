"""How a task is rolled out: task and actor in, a filled record and a stop reason out."""

import time
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import Field

from rlpipe.component import Component
from rlpipe.policies.base import Actor
from rlpipe.sandboxes.base import Sandbox
from rlpipe.tools.base import Tool
from rlpipe.types import Message, StopReason, Task, Turn


def clean(value: Any) -> Any:
    """Replace half characters (lone surrogates), which no file, server or sandbox takes.

    A model writes them as JSON escapes, or is cut in the middle of a character.
    """
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {clean(key): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list) else value


class Record:
    """What a rollout has done so far. It grows in place: nothing is lost when it is cut off."""

    def __init__(self, task: Task) -> None:
        self.messages: list[Message] = list(task.messages)
        self.turns: list[Turn] = []
        self.submission: str | None = None
        self.tool_calls: Counter[str] = Counter()
        self.malformed = 0
        self.tools: tuple[dict[str, Any], ...] = ()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Time spent, by `sampling`, `tools` and `grading`."""

    def add_turn(self, message: Message, turn: Turn) -> None:
        self.turns.append(turn.model_copy(update={"message_index": len(self.messages)}))
        self.messages.append(clean(message))

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[what] += time.monotonic() - start


class Rollout(Component):
    """How a task is rolled out."""

    timeout: float = Field(300.0, gt=0)
    """Seconds for a whole rollout, its grading included; a later one is cut off and masked."""

    concurrency: int = Field(64, ge=1)
    """Rollouts at once."""

    max_attempts: int = Field(3, ge=1)
    """Tries of a rollout that the machinery failed, the first included."""

    temperature: float = Field(1.0, ge=0)
    """Of training rollouts; evaluation sets its own."""

    @abstractmethod
    async def roll_out(
        self,
        task: Task,
        actor: Actor,
        tools: Mapping[str, Tool],
        sandbox: Sandbox,
        record: Record,
        *,
        temperature: float | None = None,
        seed: int = 0,
    ) -> StopReason:
        """Solve the task once, writing into `record`.

        `temperature` overrides the configured one (0 for greedy evaluation).

        Raises:
            InfrastructureError: the machinery failed; `record` keeps what there was.
        """

    def max_model_calls(self) -> int:
        """Upper bound of model calls of one rollout; for the dry run."""
        return 1

    def max_sampled_tokens(self) -> int:
        """Upper bound of sampled tokens of one rollout; for the dry run."""
        return 0
