"""The bound: fork, run the same program, exit. No isolation, no limits, no output.

    python3 -s -S benchmarks/_bound.py SECONDS IN_FLIGHT... < PROGRAM

prints a line of executions per second for each number in flight. Whoever forks an interpreter for
each program cannot be faster. It imports next to nothing, since every page that a process has makes
its forks slower.
"""

import gc
import os
import sys
import time


def rate(program: str, in_flight: int, seconds: float) -> float:
    at_once = min(in_flight, os.cpu_count() or 1)
    began, done, running = time.perf_counter(), 0, 0
    while True:
        more = time.perf_counter() - began < seconds
        if more and running < at_once:
            running += 1
            if not os.fork():
                exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
                os._exit(0)
        elif running:
            assert os.wait()[1] == 0
            running, done = running - 1, done + 1
        else:
            return done / (time.perf_counter() - began)


def main() -> None:
    program = sys.stdin.read()
    gc.collect()
    gc.freeze()
    for in_flight in sys.argv[2:]:
        print("rate", rate(program, int(in_flight), float(sys.argv[1])), flush=True)


main()
