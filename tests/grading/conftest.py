from collections.abc import AsyncIterator

import pytest

from rlpipe.sandboxes.base import Sandbox, SandboxSession
from rlpipe.sandboxes.local import Local


@pytest.fixture
async def session() -> AsyncIterator[SandboxSession]:
    provider = Local()
    problems = provider.check()
    if problems:
        pytest.skip(f"no local sandbox here: {problems[0]}")
    async with provider.open() as opened:
        yield opened


@pytest.fixture
async def box(session: SandboxSession) -> Sandbox:
    return await session.start(Local().spec())
