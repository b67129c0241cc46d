import os
import subprocess
import sys

import pytest

from rlpipe.sandboxes.local import Local


@pytest.fixture
async def sandbox():
    """A real sandbox on this machine."""
    provider = Local()
    async with provider.open() as session:
        yield await session.start(provider.spec())


@pytest.fixture
def busy_processor():
    """One processor that this process, its sandboxes and three others have to share."""
    before = os.sched_getaffinity(0)
    one = {min(before)}
    burner = f"import os; os.sched_setaffinity(0, {one})\nwhile True: pass"
    burners = [subprocess.Popen([sys.executable, "-c", burner]) for _ in range(3)]
    os.sched_setaffinity(0, one)
    yield
    os.sched_setaffinity(0, before)
    for process in burners:
        process.kill()
        process.wait()
