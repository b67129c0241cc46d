"""A frozen model behind any OpenAI-compatible server: OpenAI, vLLM, SGLang, llama.cpp, a proxy."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from rlpipe.errors import Finding, ProviderError, did_you_mean
from rlpipe.policies import _chat, _responses
from rlpipe.policies._chat import Wire
from rlpipe.policies._requests import Clock, Service, Sleep, reason, refusal, retrying
from rlpipe.policies.base import Actor, Policy, Request
from rlpipe.types import Message, Turn

if TYPE_CHECKING:  # a second, spared where nothing is asked
    import httpx
    from openai import AsyncOpenAI

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
NO_KEY = "none"
"""Sent where there is no key: local servers want none, but the SDK does."""


class _Model(Wire):
    id: str


class _Models(Wire):
    data: list[_Model]


class Openai(Policy):
    """A model of OpenAI, or of any server that speaks its API."""

    metered: ClassVar[bool] = True
    kind: Literal["openai"] = "openai"
    model: str = Field(min_length=1)
    """The model's name at the server."""

    api: Literal["chat", "responses"] = "chat"
    """`chat` (Chat Completions) is what most servers have; some models of OpenAI only have
    `responses`, which gives neither token ids nor log-probabilities."""

    base_url: str | None = Field(None, pattern=r"^https?://")
    """Where the server is, such as `http://localhost:8000/v1`; null is OpenAI's own."""

    api_key_env: str = Field(DEFAULT_KEY_VARIABLE, min_length=1)
    """Name of the environment variable that holds the key. A server of one's own may need none."""

    timeout: float = Field(600.0, gt=0)
    """Seconds for one request, not counting retries."""

    connect_timeout: float = Field(10.0, gt=0)
    """Seconds for reaching the server."""

    max_connections: int = Field(64, ge=1)
    """Requests at the same time; further ones wait."""

    max_retries: int = Field(5, ge=0)
    """Further tries of a request that failed for a passing reason: the server is busy, broken or
    out of reach, or its answer cannot be read."""

    logprobs: bool = False
    """Ask for log-probabilities. Token ids are taken where the server gives them; vLLM does for
    `extra_body: {return_token_ids: true}`."""

    send_seed: bool = True
    """Send a seed, which differs per rollout and turn (api `chat`)."""

    send_temperature: bool = True
    """Send temperature and top_p; reasoning models refuse them."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls the limit of an answer (api `chat`); OpenAI's newer models want
    `max_completion_tokens`."""

    reasoning_effort: str | None = None
    """How long a reasoning model thinks, such as `low`; null leaves it to the server."""

    extra_body: Mapping[str, Any] = {}
    """Further keys of every request. They win over those that rlpipe sets; `{include: []}` is for
    models of api `responses` that do not reason."""

    def check(self) -> list[Finding]:
        findings = super().check()
        if self._needs_key() and not self._key():
            problem = f"set the environment variable {self.api_key_env}"
            findings.append(Finding("api_key_env", problem, lacking=True))
        if self.logprobs and self.api == "responses":
            findings.append(Finding("logprobs", "api 'responses' gives none; use api: chat"))
        return findings

    def check_online(self) -> list[Finding]:
        """Ask the server for its models: it answers, takes the key, and serves `model`."""
        import httpx

        url = f"{self._url()}/models"
        headers = {"Authorization": f"Bearer {self._key() or NO_KEY}"}
        try:
            answer = httpx.get(
                url, headers=headers, timeout=self.connect_timeout, follow_redirects=True
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            problem = f"{url} does not answer ({type(error).__name__}: {error})"
            return [Finding("base_url", problem)]
        return self._judge(url, answer.status_code, answer.content)

    def _judge(self, url: str, status: int, body: bytes) -> list[Finding]:
        if status in (401, 403):
            problem = f"{url} refuses the key in {self.api_key_env} (HTTP {status})"
            return [Finding("api_key_env", problem)]
        if status in (404, 405):  # A server need not list its models to serve them.
            return []
        if status != 200:
            return [Finding("base_url", f"{url} answers HTTP {status}")]
        try:
            served = [model.id for model in _Models.model_validate_json(body).data]
        except ValueError:
            return [Finding("base_url", f"{url} does not answer like an OpenAI API")]
        if self.model in served:
            return []
        hint = did_you_mean(self.model, served) or f" (it serves: {', '.join(served[:5])})"
        return [Finding("model", f"{self._url()} does not serve {self.model!r}{hint}")]

    @asynccontextmanager
    async def open(
        self, *, sleep: Sleep = asyncio.sleep, clock: Clock = time.time
    ) -> AsyncIterator[Actor]:
        """One client for all rollouts; `sleep` and `clock` are what its retries wait with.

        Raises:
            ProviderError: the key is missing.
        """
        import httpx
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        if self._needs_key() and not self._key():
            raise ProviderError(f"the environment variable {self.api_key_env} is not set")
        timeout = httpx.Timeout(self.timeout, connect=self.connect_timeout)
        most = self.max_connections
        async with AsyncOpenAI(
            api_key=self._key() or NO_KEY,
            # Left out, it would come from OPENAI_BASE_URL, which the run's record does not show.
            base_url=self._url(),
            timeout=timeout,
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(
                timeout=timeout,
                limits=httpx.Limits(max_connections=most, max_keepalive_connections=most),
            ),
        ) as client:
            yield _Remote(self, client, sleep, clock)

    def body(self, request: Request) -> dict[str, Any]:
        """What is sent for a request."""
        if self.api == "responses":
            body = _responses.conversation(request) | self._responses_options(request)
        else:
            body = _chat.conversation(request) | self._chat_options(request)
        if self.send_temperature:
            body["temperature"] = request.sampling.temperature
            body["top_p"] = request.sampling.top_p
        return {"model": self.model, **body, **self.extra_body}

    def _chat_options(self, request: Request) -> dict[str, Any]:
        options: dict[str, Any] = {self.max_tokens_field: request.sampling.max_tokens}
        if self.send_seed:
            options["seed"] = request.seed % 2**31  # llama.cpp takes 32 bits
        if self.logprobs:
            options["logprobs"] = True
        if self.reasoning_effort is not None:
            options["reasoning_effort"] = self.reasoning_effort
        if request.json_schema is not None:
            form = _strict(request.json_schema)
            options["response_format"] = {"type": "json_schema", "json_schema": form}
        return options

    def _responses_options(self, request: Request) -> dict[str, Any]:
        limit = max(_responses.SMALLEST_LIMIT, request.sampling.max_tokens)
        options: dict[str, Any] = {"max_output_tokens": limit}
        if self.reasoning_effort is not None:
            options["reasoning"] = {"effort": self.reasoning_effort}
        if request.json_schema is not None:
            options["text"] = {"format": {"type": "json_schema", **_strict(request.json_schema)}}
        return options

    def service(self) -> Service:
        """The server as error messages name it."""
        return Service(self._url(), self.model, self.api_key_env, self._key() or NO_KEY)

    def _url(self) -> str:
        return (self.base_url or DEFAULT_URL).rstrip("/")

    def _key(self) -> str:
        # A line break left over from a file would make every request's header invalid.
        return os.environ.get(self.api_key_env, "").strip()

    def _needs_key(self) -> bool:
        return self.base_url is None or self.api_key_env != DEFAULT_KEY_VARIABLE


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "answer", "strict": True, "schema": schema}


class _Remote(Actor):
    """The open client, shared by all rollouts."""

    def __init__(self, policy: Openai, client: "AsyncOpenAI", sleep: Sleep, clock: Clock) -> None:
        self.name = policy.model
        self._policy = policy
        self._client = client
        self._service = policy.service()
        self._sleep = sleep
        self._clock = clock
        # The client's own pool counts the wait for a connection as part of the request's time.
        self._slots = asyncio.Semaphore(policy.max_connections)

    async def act(self, request: Request) -> tuple[Message, Turn]:
        body = self._policy.body(request)
        return await retrying(lambda: self._attempt(body), self._policy.max_retries, self._sleep)

    async def _attempt(self, body: dict[str, Any]) -> tuple[Message, Turn]:
        async with self._slots:
            start = time.monotonic()
            response = await self._post(body)
            duration = time.monotonic() - start
        try:
            read = _responses.read if self._policy.api == "responses" else _chat.read
            message, turn = read(response.json())
        except (ValueError, RecursionError) as error:
            said = self._service.quote(response.text)
            raise ProviderError(
                f"{self._service.url} sent an unreadable answer ({reason(error)}): {said}",
                retryable=True,
            ) from error
        return message, turn.model_copy(update={"duration": duration})

    async def _post(self, body: dict[str, Any]) -> "httpx.Response":
        """Send the request once.

        Raises:
            ProviderError: no answer came, or an error.
        """
        import httpx
        import openai

        path = _responses.PATH if self._policy.api == "responses" else _chat.PATH
        try:
            # The client's own timeout is per read, and a server that trickles outlasts it.
            async with asyncio.timeout(self._policy.timeout):
                return await self._client.post(path, cast_to=httpx.Response, body=body)
        except openai.APIStatusError as error:
            raise refusal(self._service, error.response, self._clock()) from error
        except (openai.APITimeoutError, TimeoutError) as error:
            raise ProviderError(f"{self._service.url} took too long", retryable=True) from error
        except openai.APIConnectionError as error:
            raise ProviderError(
                f"{self._service.url} cannot be reached ({error.__cause__ or error})",
                retryable=True,
            ) from error
