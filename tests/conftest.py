import pytest

from rlpipe.sandboxes.local import Local


@pytest.fixture
async def sandbox():
    """A real sandbox on this machine."""
    provider = Local()
    async with provider.open() as session:
        yield await session.start(provider.spec())
