"""How a rate is taken: alike for everyone, also in the processes of other packages.

It imports the standard library only.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

SNIPPET = """\
def similar_elements(test_tup1, test_tup2):
    res = tuple(set(test_tup1) & set(test_tup2))
    return (res)

assert set(similar_elements((3, 4, 5, 6), (5, 7, 4, 10))) == set((4, 5))
assert set(similar_elements((1, 2, 3, 4), (5, 4, 3, 7))) == set((3, 4))
assert set(similar_elements((11, 12, 14, 13), (17, 15, 14, 13))) == set((13, 14))
"""
"""A task of MBPP: its solution and its three tests."""

INPUTS = [[(3, 4, 5, 6), (5, 7, 4, 10)], [(1, 2, 3, 4), (5, 4, 3, 7)]]
INPUTS += [[(11, 12, 14, 13), (17, 15, 14, 13)]]
EXPECTED = [(4, 5), (3, 4), (13, 14)]
TIME_LIMIT = 30.0


async def rate(run: Callable[[int], Awaitable[object]], in_flight: int, seconds: float) -> float:
    """Executions per second with `in_flight` of them at any time; `run` is told who asks."""
    began, done = time.perf_counter(), 0

    async def worker(number: int) -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await run(number)
            done += 1

    await asyncio.gather(*map(worker, range(in_flight)))
    return done / (time.perf_counter() - began)


def thread_rate(run: Callable[[], object], in_flight: int, seconds: float) -> float:
    """The same in threads, for what blocks."""
    began = time.perf_counter()

    def worker(_: int) -> int:
        done = 0
        while time.perf_counter() - began < seconds:
            run()
            done += 1
        return done

    with ThreadPoolExecutor(in_flight) as threads:
        done = sum(threads.map(worker, range(in_flight)))
    return done / (time.perf_counter() - began)
