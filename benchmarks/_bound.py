"""The bound: fork, run the same program, exit. No isolation, no limits, no output.

    python3 -s -S benchmarks/_bound.py IN_FLIGHT SECONDS < PROGRAM    prints executions per second

Whoever forks an interpreter for each program cannot be faster. It imports next to nothing, since
every page that a process has makes its forks slower.
"""

import gc
import os
import sys
import time


def main() -> None:
    in_flight, seconds, program = int(sys.argv[1]), float(sys.argv[2]), sys.stdin.read()
    at_once = min(in_flight, os.cpu_count() or 1)
    gc.collect()
    gc.freeze()
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
            break
    print("rate", done / (time.perf_counter() - began))


main()
