from collections.abc import AsyncIterator

import pytest

from rlpipe.sandboxes._pool import SandboxPool
from rlpipe.sandboxes.local import Local


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    provider = Local()
    async with (
        provider.open() as session,
        SandboxPool(session, provider.spec(), warm=1, max_live=2, max_starting=2) as opened,
    ):
        yield opened
