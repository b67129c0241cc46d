"""One round of rlpipe's grader: reads tasks, prints JSON. Run as a program of its own."""

import asyncio
import json
import sys
import time

from rlpipe.grading.grader import grade
from rlpipe.sandboxes.local import Local
from rlpipe.types import Task


async def run(tasks: list[Task], in_flight: int) -> None:
    slots = asyncio.Semaphore(in_flight)
    provider = Local()
    async with provider.open() as session, await session.start(provider.spec()) as box:

        async def one(task: Task) -> bool:
            assert task.tests is not None
            async with slots:
                report = await grade(box, task.reference or "", task.tests, timeout=60)
            return report.passed

        first, *rest = tasks
        await asyncio.gather(*map(one, [first] * in_flight))
        began = time.perf_counter()
        passed = sum(await asyncio.gather(*map(one, rest)))
        seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "passed": passed}))


if __name__ == "__main__":
    given = [Task.model_validate(task) for task in json.load(sys.stdin)]
    asyncio.run(run(given, int(sys.argv[1])))
