import asyncio

import pytest

from rlpipe.backends._batching import Batcher, Prompt, Sample

FOREVER = 1000.0


def prompt(number):
    return Prompt((number,), seed=number, temperature=1.0, top_p=1.0, max_tokens=8)


class Recorder:
    """A generate function that remembers its batches and answers each prompt with itself."""

    def __init__(self, gate=None):
        self.batches = []
        self.gate = gate

    async def __call__(self, prompts):
        self.batches.append([p.seed for p in prompts])
        if self.gate:
            await self.gate.wait()
        return [Sample(p.ids, (0.0,), finished=True) for p in prompts]


async def attend(batcher, *numbers):
    with batcher.attend():
        return [(await batcher.ask(prompt(number))).ids[0] for number in numbers]


async def test_all_attending_rollouts_share_one_call():
    generate = Recorder()
    batcher = Batcher(generate, wait=FOREVER, most=64)
    answers = await asyncio.gather(*(attend(batcher, i, 10 + i) for i in range(5)))
    assert answers == [[i, 10 + i] for i in range(5)]
    assert generate.batches == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]


async def test_one_that_leaves_is_waited_for_no_longer():
    generate = Recorder()
    batcher = Batcher(generate, wait=FOREVER, most=64)
    await asyncio.gather(attend(batcher, 1), attend(batcher, 2, 3))
    assert generate.batches == [[1, 2], [3]]


async def test_no_call_is_larger_than_the_limit():
    generate = Recorder()
    batcher = Batcher(generate, wait=FOREVER, most=2)
    await asyncio.gather(*(attend(batcher, i) for i in range(5)))
    assert generate.batches == [[0, 1], [2, 3], [4]]


async def test_a_busy_rollout_holds_the_others_up_for_the_wait_at_most():
    generate, busy = Recorder(), asyncio.Event()
    batcher = Batcher(generate, wait=0.01, most=64)

    async def working():
        with batcher.attend():
            await busy.wait()

    worker = asyncio.create_task(working())
    await asyncio.sleep(0)
    assert await attend(batcher, 7) == [7]
    busy.set()
    await worker


async def test_prompts_that_arrive_during_a_call_make_the_next_one():
    gate = asyncio.Event()
    generate = Recorder(gate)
    batcher = Batcher(generate, wait=FOREVER, most=64)
    first = asyncio.create_task(attend(batcher, 1))
    while not generate.batches:
        await asyncio.sleep(0)
    others = [asyncio.create_task(attend(batcher, i)) for i in (2, 3)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, *others)
    assert generate.batches == [[1], [2, 3]]


async def test_an_error_reaches_every_rollout_of_the_call_and_no_other():
    calls = []

    async def generate(prompts):
        calls.append(len(prompts))
        if len(calls) == 1:
            raise MemoryError("too big")
        return [Sample(p.ids, (0.0,), finished=True) for p in prompts]

    batcher = Batcher(generate, wait=FOREVER, most=64)
    failed = await asyncio.gather(*(attend(batcher, i) for i in (1, 2)), return_exceptions=True)
    assert [type(error) for error in failed] == [MemoryError, MemoryError]
    assert await attend(batcher, 3) == [3]


async def test_a_cancelled_rollout_does_not_stop_the_others():
    generate = Recorder()
    batcher = Batcher(generate, wait=FOREVER, most=64)
    hold = asyncio.Event()

    async def slow():
        with batcher.attend():
            await hold.wait()
            return await batcher.ask(prompt(9))

    slow_one = asyncio.create_task(slow())
    asking = asyncio.create_task(attend(batcher, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    slow_one.cancel()
    assert await asking == [1]
    with pytest.raises(asyncio.CancelledError):
        await slow_one
