"""The policy in training as an actor: a Tinker service samples, token ids go both ways."""

import asyncio
import time
from contextlib import suppress
from typing import Any

from tinker import types  # noqa: TID253

from rlpipe import chat
from rlpipe.backends._tinker_failures import failures
from rlpipe.errors import ProviderError
from rlpipe.policies.base import Actor, Request
from rlpipe.types import Message, Turn, Usage


class SamplingActor(Actor):
    """Serves one version of the weights."""

    def __init__(self, sampler: Any, tokenizer: Any, name: str, context: int, version: int) -> None:
        self.name = name
        self.version = version
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._context = context
        self._ends = chat.end_ids(tokenizer)

    async def act(self, request: Request) -> tuple[Message, Turn]:
        began = time.monotonic()
        ids = self._prompt(request)
        most, cut = request.sampling.room(len(ids), self._context)
        sequence = await self._sample(ids, request, most)
        said = tuple(sequence.tokens)
        finished = sequence.stop_reason == "stop"
        return self._message(said), Turn(
            prompt_ids=tuple(ids),
            completion_ids=said,
            logprobs=_logprobs(sequence),
            finish_reason="stop" if finished else cut,
            usage=Usage(prompt_tokens=len(ids), completion_tokens=len(said)),
            duration=time.monotonic() - began,
            policy_version=self.version,
        )

    def _prompt(self, request: Request) -> list[int]:
        """History is extended; an answer that the template does not go on from begins a new row."""
        tokenizer, messages, tools = self._tokenizer, request.messages, request.tools
        said = request.turns[-1].completion_ids if request.turns else None
        if said and said[-1] in self._ends:
            with suppress(ValueError):
                return chat.prompt_ids(tokenizer, messages, tools, request.turns)
        try:
            return chat.prompt_ids(tokenizer, messages, tools, ())
        except ValueError as error:
            raise ProviderError(str(error)) from error

    async def _sample(self, ids: list[int], request: Request, most: int) -> Any:
        """Wait as long as it takes: the rollout's own deadline cancels."""
        params = types.SamplingParams(
            max_tokens=most,
            seed=request.seed % 2**31,
            stop=self._ends,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
        )
        with failures():
            future = self._sampler.sample(types.ModelInput.from_ints(ids), 1, params)
            answer = await settled(future)
        return answer.sequences[0]

    def _message(self, said: tuple[int, ...]) -> Message:
        ended = bool(said) and said[-1] in self._ends
        text = self._tokenizer.decode(said[:-1] if ended else said, skip_special_tokens=False)
        return chat.parse_message(text)


def _logprobs(sequence: Any) -> tuple[float, ...]:
    if sequence.logprobs is None:
        raise ProviderError("the service sampled without log-probabilities")
    return tuple(sequence.logprobs)


async def settled(future: Any) -> Any:
    """Await a future of the SDK: a plain one in older versions."""
    if hasattr(future, "result_async"):
        return await future
    return await asyncio.wrap_future(future)
