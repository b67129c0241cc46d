"""A config is judged quickly, on a machine that has none of the training libraries."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "trl", "peft", "accelerate", "art", "tinker", "wandb", "datasets",
         "cwsandbox", "ray", "openai", "numpy", "pandas")  # fmt: skip


def modules_after(*args):
    """Names of the modules that a command line has imported when it is done."""
    code = (
        "import sys\n"
        "from rlpipe.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "print('MODULES', *sys.modules)\n"
    )
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("MODULES"))
    return set(line.split())


def test_help_imports_neither_hydra_nor_pydantic():
    assert modules_after("--help") & {"hydra", "omegaconf", "pydantic", "asyncio", *HEAVY} == set()


@pytest.mark.parametrize("args", [("+recipe=quickstart", "dry_run=true"), ("list", "backends")])
def test_a_dry_run_imports_nothing_heavy(args):
    assert modules_after(*args) & set(HEAVY) == set()


def test_importing_the_package_costs_nothing():
    code = "import sys, rlpipe; assert not {'pydantic', 'hydra', 'asyncio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
