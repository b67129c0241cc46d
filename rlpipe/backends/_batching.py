"""Let concurrent rollouts share one generate call."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

SETTLE = 8
"""Turns of the event loop before a call: rollouts that were started together come together."""

Generate = Callable[[Sequence["Prompt"]], Awaitable[Sequence["Sample"]]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a generate call."""

    ids: tuple[int, ...]
    seed: int
    temperature: float
    top_p: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What was generated for one prompt; it ends with an end-of-sequence token unless cut."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool


class Batcher:
    """Collects prompts until every attending rollout waits, then generates for all of them.

    A rollout that is busy with a tool holds the others up for `wait` seconds at most.
    """

    def __init__(self, generate: Generate, *, wait: float, most: int) -> None:
        self._generate = generate
        self._wait = wait
        self._most = most
        self._attending = 0
        self._waiting: list[tuple[Prompt, asyncio.Future[Sample]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._call: asyncio.Task[None] | None = None
        self._settling = False

    @contextmanager
    def attend(self) -> Iterator[None]:
        self._attending += 1
        try:
            yield
        finally:
            self._attending -= 1
            self._consider()

    async def ask(self, prompt: Prompt) -> Sample:
        answer: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, answer))
        self._consider()
        return await answer

    def _consider(self) -> None:
        """Decide soon, once those who come or leave together have done so."""
        if not self._settling:
            self._settling = True
            self._settle(SETTLE)

    def _settle(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._settle, turns - 1)
            return
        self._settling = False
        self._decide()

    def _decide(self) -> None:
        """Generate now, later, or once the running call is over."""
        self._drop_cancelled()
        if not self._waiting or self._call:
            return
        if len(self._waiting) >= min(self._attending, self._most):
            self._start()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait, self._start)

    def _drop_cancelled(self) -> None:
        self._waiting = [(prompt, answer) for prompt, answer in self._waiting if not answer.done()]

    def _start(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._call or not self._waiting:
            return
        batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        self._call = asyncio.get_running_loop().create_task(self._serve(batch))

    async def _serve(self, batch: Sequence[tuple[Prompt, asyncio.Future[Sample]]]) -> None:
        try:
            samples = await self._generate([prompt for prompt, _ in batch])
        except Exception as error:
            samples = []
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
        finally:
            self._call = None
        for (_, answer), sample in zip(batch, samples, strict=False):
            if not answer.done():
                answer.set_result(sample)
        self._consider()
