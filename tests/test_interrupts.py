"""A run beside a loop that is running already, as a notebook's is."""

import subprocess
import sys

import pytest

from rlpipe import interrupts

NOTEBOOK = """
import asyncio, os, signal
from rlpipe import interrupts

async def run():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        print("cleaned up", flush=True)

async def cell():
    try:
        interrupts.run(run(), lambda: print("gave up"))
    except KeyboardInterrupt:
        print("interrupted")

asyncio.new_event_loop().run_until_complete(cell())
"""


async def test_a_run_gets_a_loop_of_its_own():
    async def run():
        return "done"

    assert interrupts.run(run(), lambda: None) == "done"


async def test_its_error_is_the_callers():
    async def run():
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        interrupts.run(run(), lambda: None)


def test_an_interrupt_lets_it_clean_up():
    command = [sys.executable, "-c", NOTEBOOK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "cleaned up\ninterrupted\n", done.stderr
