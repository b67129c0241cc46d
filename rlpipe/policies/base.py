"""Who answers: a policy is declared in YAML, opened into an actor, and the actor acts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from rlpipe.component import Component
from rlpipe.errors import ContextOverflow, TrajectoryTooLong
from rlpipe.types import Message, Task, Turn


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is drawn."""

    temperature: float = 1.0
    """0 is greedy."""

    top_p: float = 1.0
    max_tokens: int = 1024
    """New tokens of one answer."""

    max_total_tokens: int | None = None
    """Tokens of prompt and answer together, for an actor that can count its prompt's."""

    def room(self, used: int, context: int) -> tuple[int, str]:
        """New tokens that fit after a prompt of `used` tokens into a model that takes `context`.

        With them comes the `finish_reason` of an answer that takes them all.

        Raises:
            TrajectoryTooLong: the prompt has as many tokens as are allowed.
            ContextOverflow: it has as many as the model takes.
        """
        total = self.max_total_tokens
        if total is not None and used >= total:
            raise TrajectoryTooLong(f"{used} tokens, but the rollout is allowed {total}")
        if used >= context:
            raise ContextOverflow(f"{used} tokens, but the model takes {context}")
        bounds = [(self.max_tokens, "length"), (context - used, "context_length")]
        if total is not None:
            bounds.append((total - used, "trajectory_length"))
        return min(bounds, key=lambda bound: bound[0])


@dataclass(frozen=True, slots=True)
class Request:
    """What an actor is asked: go on with this conversation."""

    task: Task
    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]]
    """Function schemas in OpenAI's form."""

    sampling: Sampling
    seed: int
    """Distinct for every rollout and turn, and the same in every repetition of the run."""

    turns: Sequence[Turn] = ()
    """The rollout's earlier turns: history is extended as token ids, never re-encoded."""

    json_schema: dict[str, Any] | None = None
    """What the answer must follow, for services that can see to it; others are only told in words.
    """


OnTurn = Callable[[str, Turn], None]
"""Is told of every answer: the model's name, and the turn."""


def unheard(model: str, turn: Turn) -> None:
    """Tell nobody."""


class Actor(ABC):
    """A policy that is open and answers. Used by many rollouts at once."""

    name: str
    version: int = 0
    """Optimizer steps that its weights have seen."""

    @abstractmethod
    async def act(self, request: Request) -> tuple[Message, Turn]:
        """Answer with one assistant message and the turn that produced it.

        Raises:
            ProviderError: the model service failed.
            ContextOverflow: the conversation no longer fits the model.
            TrajectoryTooLong: it has reached `max_total_tokens`.
        """

    def attend(self) -> AbstractContextManager[None]:
        """Held by a rollout as long as it may ask again.

        An actor that batches requests learns from it whom to wait for.
        """
        return nullcontext()


class Policy(Component):
    """Declares a model: the one in training, or a frozen one."""

    in_training: ClassVar[bool] = False
    """Whether a backend serves and trains it. A policy that is not opens by itself."""

    metered: ClassVar[bool] = False
    """Whether its tokens may be paid for, so that a limit on costs needs its price."""

    @property
    def name(self) -> str:
        """What trajectories and logs call it."""
        return str(getattr(self, "model", self.kind))

    def open(self) -> AbstractAsyncContextManager[Actor]:
        """Open a frozen policy. One in training is opened by its backend."""
        raise NotImplementedError

    def load(self, seed: int) -> tuple[Any, Any]:
        """Load a policy in training into this process: a transformers model and its tokenizer."""
        raise NotImplementedError

    def load_tokenizer(self) -> Any:
        """Load the tokenizer alone, for a model that a service holds."""
        raise NotImplementedError
