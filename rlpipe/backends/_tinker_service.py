"""A session with a Tinker service, by the SDK of the service's makers. Only imported for use."""

import asyncio
import inspect
import logging
import os
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import tinker  # noqa: TID253

from rlpipe.backends import _tinker_losses as losses
from rlpipe.backends._tinker_actor import SamplingActor, settled
from rlpipe.backends._tinker_checkpoint import SavedWeights
from rlpipe.backends._tinker_failures import failing, said
from rlpipe.errors import Finding, RunError, did_you_mean
from rlpipe.policies.base import Policy
from rlpipe.train.base import Train

if TYPE_CHECKING:  # tinker.py imports this module only for use
    from rlpipe.backends.tinker import Tinker

log = logging.getLogger(__name__)

ANSWERING = 30.0
"""Seconds for the first answer of the service: it is there, or it is not."""

CONTEXT = 1 << 20
"""Tokens, where neither the service nor the tokenizer knows how many the model takes."""


@dataclass
class Service:
    """An open session."""

    backend: "Tinker"
    policy: Policy
    client: Any
    tokenizer: Any
    model: str
    context: int
    """Tokens of a conversation that the model takes."""

    async def untrained(self) -> SamplingActor:
        """The model as it is, without an adapter."""
        with failing(f"sampling from {self.model} cannot begin"):
            sampler = await made(lambda: self.client.create_sampling_client(base_model=self.model))
        return self.actor(sampler, 0)

    def actor(self, sampler: Any, version: int) -> SamplingActor:
        return SamplingActor(sampler, self.tokenizer, self.policy.name, self.context, version)

    async def fresh_adapter(self, rank: int, seed: int) -> Any:
        """A training client for a new adapter."""
        with failing(f"{self.model} cannot be trained with train.lora_rank={rank}"):
            return await made(
                lambda: self.client.create_lora_training_client(self.model, rank=rank, seed=seed)
            )

    async def saved_adapter(self, saved: SavedWeights) -> Any:
        """A training client that goes on from a checkpoint's weights and optimizer."""
        with failing(f"{saved.state} cannot be resumed"):
            try:
                return await made(
                    lambda: self.client.create_training_client_from_state_with_optimizer(
                        saved.state
                    )
                )
            except tinker.UnprocessableEntityError:
                log.info("the service makes no adapter of a state, so that one is loaded into it")
        client = await self.fresh_adapter(saved.lora_rank, 0)
        with failing(f"{saved.state} cannot be resumed"), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer SDKs advise what was tried
            await settled(client.load_state_with_optimizer(saved.state))
        return client


@asynccontextmanager
async def connect(backend: "Tinker", policy: Policy, run: str = "") -> AsyncIterator[Service]:
    """Open a session; the run's name goes with it.

    Raises:
        RunError: the service cannot be reached, or does not serve the model.
    """
    model = backend.model_of(policy)
    tokenizer = await asyncio.to_thread(policy.load_tokenizer)
    served = await _served(backend)
    problem = _not_served(model, served)
    if problem:
        raise RunError(problem)
    own = {"rlpipe_run": run} if run else {}
    with failing("the Tinker service cannot be used"):
        client = tinker.ServiceClient(
            user_metadata={**own, **backend.metadata},
            project_id=backend.project,
            **_address(backend),
        )
    context = min(served[model] or CONTEXT, tokenizer.model_max_length, CONTEXT)
    status = "errored"
    try:
        yield Service(backend, policy, client, tokenizer, model, context)
        status = "success"
    except asyncio.CancelledError:
        status = "interrupted"
        raise
    finally:
        await _close(client, status)


def _address(backend: "Tinker") -> dict[str, str]:
    given = {"base_url": backend.base_url, "api_key": backend.key()}
    return {name: value for name, value in given.items() if value is not None}


async def _close(client: Any, status: str) -> None:
    """Say that the session is over; older SDKs cannot, and the service sees it by itself."""
    if not hasattr(client, "close"):
        return
    try:
        async with asyncio.timeout(ANSWERING):
            await client.close(status)
    except (tinker.TinkerError, httpx.HTTPError, TimeoutError) as error:
        log.info("the session could not be closed: %s", said(error))


async def _served(backend: "Tinker") -> Mapping[str, int | None]:
    """Names of the models that the service has, with the tokens that each takes.

    Raises:
        RunError: it does not answer, or refuses the key.
    """
    await _reach(backend)
    address = _address(backend)
    rest: Any = getattr(tinker, "RestClient", None)
    with failing("the Tinker service cannot be used"):
        if hasattr(rest, "get_server_capabilities"):
            client = await asyncio.to_thread(lambda: rest(**address))
            answer = await client.get_server_capabilities()
        else:
            answer = await tinker.ServiceClient(**address).get_server_capabilities_async()
    models = answer.supported_models
    return {m.model_name: m.max_context_length for m in models if m.model_name}


async def _reach(backend: "Tinker") -> None:
    """See whether anybody answers at an address that is ours to know: the SDK tries for minutes."""
    url = backend.base_url or os.environ.get("TINKER_BASE_URL")
    if url:
        with failing(f"the Tinker service at {url} does not answer"):
            async with httpx.AsyncClient(timeout=ANSWERING) as client:
                await client.get(f"{url.rstrip('/')}/api/v1/healthz")


def _not_served(model: str, served: Mapping[str, int | None]) -> str | None:
    if model in served:
        return None
    hint = did_you_mean(model, served) or f" (it has: {', '.join(sorted(served)[:5])})"
    return f"the Tinker service has no model {model!r}{hint}"


def refusals(backend: "Tinker", policy: Policy, train: Train | None) -> list[Finding]:
    """What the service refuses: the key, the model, the adapter's rank, the loss."""
    return asyncio.run(_refusals(backend, policy, train))


async def _refusals(backend: "Tinker", policy: Policy, train: Train | None) -> list[Finding]:
    try:
        served = await _served(backend)
    except RunError as error:
        return [Finding("backend.base_url", str(error))]
    problem = _not_served(backend.model_of(policy), served)
    if problem:
        return [Finding("policy.model", problem)]
    if train is None:
        return []
    try:
        async with connect(backend, policy) as service:
            return await _untrainable(service, train)
    except RunError as error:
        return [Finding("policy.model", str(error))]


async def _untrainable(service: Service, train: Train) -> list[Finding]:
    """Make an adapter and try its loss: no list says what the service would refuse."""
    backend = service.backend
    try:
        client = await service.fresh_adapter(backend.rank_of(train), 0)
    except RunError as error:
        return [Finding("train.lora_rank", str(error))]
    try:
        await losses.try_out(client, losses.chosen(backend, train))
    except RunError as error:
        return [Finding("train.loss_fn", str(error))]
    return []


async def made(make: Callable[[], Any]) -> Any:
    """A client of the SDK: newer versions promise it, older ones wait for it."""
    client = await asyncio.to_thread(make)
    return await client if inspect.isawaitable(client) else client
