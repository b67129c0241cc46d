"""CPU seconds until a command line answers, beside what its libraries cost to import.

    python -m benchmarks.startup [ROUNDS]

The commands take turns, so that a machine that gets slower does so for all of them.
"""

import os
import subprocess
import sys
import tempfile
from statistics import median

BOUND = "import hydra, omegaconf, pydantic"
COMMANDS = {
    f'python -c "{BOUND}"': ["-c", BOUND],
    "rlpipe --help": ["-m", "rlpipe", "--help"],
    "rlpipe list rewards": ["-m", "rlpipe", "list", "rewards"],
    "rlpipe +recipe=quickstart dry_run=true": [
        "-m",
        "rlpipe",
        "+recipe=quickstart",
        "dry_run=true",
    ],
    "rlpipe +recipe=mbpp_trl dry_run=true": ["-m", "rlpipe", "+recipe=mbpp_trl", "dry_run=true"],
}


def cpu_seconds(args: list[str], folder: str) -> float:
    """User and system time of one process, its children included."""
    before = os.times()
    done = subprocess.run([sys.executable, *args], cwd=folder, capture_output=True, check=False)
    after = os.times()
    if done.returncode:
        sys.exit(f"{' '.join(args)} failed:\n{done.stderr.decode()}")
    used = (
        after.children_user - before.children_user,
        after.children_system - before.children_system,
    )
    return sum(used)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for name, args in COMMANDS.items():
                seconds = cpu_seconds(args, folder)
                if number:  # the first round writes byte code
                    taken[name].append(seconds)
    bound = median(next(iter(taken.values())))
    print(
        f"CPU seconds, median of {rounds:<21} {'min':>6} {'median':>7} {'max':>6}  over the import"
    )
    for name, spent in taken.items():
        middle = median(spent)
        share = middle / bound
        print(f"{name:44} {min(spent):6.2f} {middle:7.2f} {max(spent):6.2f}  {share:5.2f}")


if __name__ == "__main__":
    main()
