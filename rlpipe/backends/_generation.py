"""The policy in training as an actor: transformers' generate, batched and reproducible."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rlpipe import chat
from rlpipe.backends._batching import Batcher, Prompt, Sample
from rlpipe.errors import ProviderError
from rlpipe.policies.base import Actor, Request
from rlpipe.types import Message, Turn, Usage


class GeneratingActor(Actor):
    """Serves a transformers model that lives in this process."""

    def __init__(self, model: Any, tokenizer: Any, name: str, *, wait: float, most: int) -> None:
        self.name = name
        self._model = model
        self._tokenizer = tokenizer
        self._ends = _end_ids(model, tokenizer)
        self._context = _context(model, tokenizer)
        self._batcher = Batcher(self._generate, wait=wait, most=most)

    def attend(self) -> AbstractContextManager[None]:
        return self._batcher.attend()

    async def act(self, request: Request) -> tuple[Message, Turn]:
        began = time.monotonic()
        try:
            ids = chat.prompt_ids(self._tokenizer, request.messages, request.tools, request.turns)
        except ValueError as error:
            raise ProviderError(str(error)) from error
        sampling = request.sampling
        most, cut = sampling.room(len(ids), self._context)
        sample = await self._batcher.ask(
            Prompt(tuple(ids), request.seed, sampling.temperature, sampling.top_p, most)
        )
        return self._message(sample), Turn(
            prompt_ids=tuple(ids),
            completion_ids=sample.ids,
            logprobs=sample.logprobs,
            finish_reason="stop" if sample.finished else cut,
            usage=Usage(prompt_tokens=len(ids), completion_tokens=len(sample.ids)),
            duration=time.monotonic() - began,
            policy_version=self.version,
        )

    def _message(self, sample: Sample) -> Message:
        said = sample.ids[:-1] if sample.finished else sample.ids
        return chat.parse_message(self._tokenizer.decode(said, skip_special_tokens=False))

    async def _generate(self, prompts: Sequence[Prompt]) -> list[Sample]:
        # In a thread, so that tools and sandboxes go on meanwhile.
        return await asyncio.to_thread(
            generate, self._model, self._tokenizer.pad_token_id, self._ends, prompts
        )


def generate(
    model: Any, pad_id: int, ends: frozenset[int], prompts: Sequence[Prompt]
) -> list[Sample]:
    """Sample one answer for every prompt in one call.

    Each row draws from its own seed, so that it does not depend on what shares its batch.
    """
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    device = next(model.parameters()).device
    width = max(len(prompt.ids) for prompt in prompts)
    padded = [[pad_id] * (width - len(p.ids)) + list(p.ids) for p in prompts]
    mask = [[0] * (width - len(p.ids)) + [1] * len(p.ids) for p in prompts]
    sampler = _seeded_sampler(prompts, device)
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max(prompt.max_tokens for prompt in prompts),
        eos_token_id=sorted(ends),
        pad_token_id=pad_id,
        use_cache=True,
    )
    with _plain(model, config) as plain, torch.no_grad():
        output = plain.generate(
            input_ids=torch.tensor(padded, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=config,
            logits_processor=LogitsProcessorList([sampler]),
        )
    rows = output[:, width:].tolist()
    logprobs = torch.stack(sampler.logprobs, dim=1).tolist()
    return [
        _cut(row, values, ends, prompt.max_tokens)
        for row, values, prompt in zip(rows, logprobs, prompts, strict=True)
    ]


@contextmanager
def _plain(model: Any, config: Any) -> Iterator[Any]:
    """The model in evaluation mode, without the penalties that its author set for generation.

    They would be filled in where `config` has none, and what is sampled would not be the policy.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    training, authors = model.training, inner.generation_config
    inner.generation_config = config
    model.eval()
    try:
        yield inner
    finally:
        model.train(training)
        inner.generation_config = authors


def _cut(row: list[int], logprobs: list[float], ends: frozenset[int], most: int) -> Sample:
    """Drop what follows the first end token, or the row's own limit."""
    length = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
    finished = length <= most and length > 0 and row[length - 1] in ends
    length = min(length, most)
    return Sample(tuple(row[:length]), tuple(logprobs[:length]), finished)


def _seeded_sampler(prompts: Sequence[Prompt], device: Any) -> Any:
    """A logits processor that draws each row's token itself and leaves only that one possible."""
    import torch
    from transformers import LogitsProcessor

    generators = [torch.Generator(device=device).manual_seed(p.seed) for p in prompts]
    greedy = torch.tensor([p.temperature == 0 for p in prompts], device=device)
    heat = torch.tensor([p.temperature or 1.0 for p in prompts], device=device).unsqueeze(1)
    top_p = torch.tensor([p.top_p for p in prompts], device=device).unsqueeze(1)
    truncates = any(p.top_p < 1 for p in prompts)

    class SeededSampler(LogitsProcessor):  # type: ignore[misc]
        def __init__(self) -> None:
            self.logprobs: list[Any] = []
            """Per step, each row's log-probability at its temperature, before top-p."""

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            logprobs = (scores.float() / heat).log_softmax(dim=-1)
            allowed = _nucleus(logprobs, top_p) if truncates else logprobs
            # Adding Gumbel noise, minus the log of an exponential draw, and taking the largest
            # draws from the distribution (Gumbel 1954).
            draws = torch.empty_like(logprobs)
            for row, generator in zip(draws, generators, strict=True):
                row.exponential_(generator=generator)
            noise = -draws.log()
            noise[greedy] = 0.0
            token = (allowed + noise).argmax(dim=-1, keepdim=True)
            self.logprobs.append(logprobs.gather(1, token).squeeze(1))
            return torch.full_like(scores, float("-inf")).scatter(1, token, 0.0)

    return SeededSampler()


def _nucleus(logprobs: Any, top_p: Any) -> Any:
    """Keep the fewest tokens whose probabilities sum to at least `top_p` (Holtzman et al. 2020)."""
    ranked, order = logprobs.sort(dim=-1, descending=True)
    before = ranked.exp().cumsum(dim=-1) - ranked.exp()
    dropped = (before >= top_p).scatter(1, order, before >= top_p)
    return logprobs.masked_fill(dropped, float("-inf"))


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    configured = model.generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [*listed, tokenizer.eos_token_id] if token is not None)


def _context(model: Any, tokenizer: Any) -> int:
    """Tokens that fit: what the model was made for, or less where the policy says so."""
    made_for = getattr(model.config, "max_position_embeddings", None) or 1 << 20
    return int(min(made_for, tokenizer.model_max_length))
