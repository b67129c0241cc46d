"""What every test of a policy asks with; `act` asks a real server on a loopback socket."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rlpipe.policies.base import Request, Sampling
from rlpipe.policies.openai import Openai
from rlpipe.types import Message, Task, Turn

from .server import NOW, Server, running


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Reading all the world's certificates takes each new client a tenth of a second.
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ask() -> Callable[..., Request]:
    """Makes a request; `added` is what the rollout has said so far."""

    def make(*added: Message, task: Task | None = None, **options: object) -> Request:
        asked = task or Task(id="t1", messages=({"role": "user", "content": "Hi"},))
        sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=100)
        given = {"tools": (), "sampling": sampling, "seed": 7, **options}
        return Request(asked, [*asked.messages, *added], **given)  # type: ignore[arg-type]

    return make


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with running() as server:
        yield server


@pytest.fixture
def waits() -> list[float]:
    """Seconds that were waited between tries, in order. No test really waits them."""
    return []


@pytest.fixture
def act(
    server: Server, waits: list[float], ask: Callable[..., Request]
) -> Callable[..., Awaitable[tuple[Message, Turn]]]:
    """Opens the policy, asks it once, and closes it."""

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def act(*added: Message, tools: object = (), **options: object) -> tuple[Message, Turn]:
        policy = Openai.model_validate({"model": "m", "base_url": server.url, **options})
        async with policy.open(sleep=sleep, clock=lambda: NOW) as actor:
            return await actor.act(ask(*added, tools=tools))

    return act
