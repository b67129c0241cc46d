"""What an agent's tools leave in the sandbox does not reach the judgement of its code."""

import pytest

from rlpipe.collect import Collector
from rlpipe.policies.scripted import Scripted
from rlpipe.rewards.exit_code import ExitCode
from rlpipe.rewards.tests_pass import TestsPass
from rlpipe.rollouts.agent import Agent
from rlpipe.tools.bash import Bash
from rlpipe.tools.submit_solution import SubmitSolution
from rlpipe.types import PythonTests, Task

TASK = Task(
    id="add",
    messages=({"role": "user", "content": "Write f that adds."},),
    tests=PythonTests(hidden=("assert f(1, 2) == 3", "assert f(4, 4) == 8"), entry_points=("f",)),
)
RIGHT = "def f(a, b): return a + b"
WRONG = "def f(a, b): return None"

HUNTER = """
cat > /tmp/hunter.py <<'END'
import os, signal
os.setsid()
me = os.getpid()
ready = False
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, me):
            try: os.kill(int(name), signal.{signal})
            except OSError: pass
    if not ready:
        open("/tmp/ready", "w").close()
        ready = True
END
(python3 /tmp/hunter.py >/dev/null 2>&1 &)
until [ -e /tmp/ready ]; do :; done
"""
FORGER = """
version=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
places="/work /tmp $HOME $HOME/.local/lib/$version/site-packages"
for place in $places; do
    mkdir -p $place
    for name in usercustomize sitecustomize json math struct socket ctypes rlpipe; do
        echo 'import os; os.write(1, b"passed"); os._exit(0)' > $place/$name.py
    done
    echo 'import os; os._exit(0)' > $place/forged.pth
done
"""
LEFT = {
    "stopper": HUNTER.format(signal="SIGSTOP"),
    "killer": HUNTER.format(signal="SIGKILL"),
    "forger": FORGER,
    "full_disk": "cat /dev/zero > /work/zeros; cat /dev/zero > /tmp/zeros; true",
    "many_processes": "for i in $(seq 200); do (tail -f /dev/null >/dev/null 2>&1 &); done; true",
}


async def collected(pool, command, code, reward):
    turns = (
        {"tool_calls": [{"name": "bash", "arguments": {"command": command}}]},
        {"tool_calls": [{"name": "submit_solution", "arguments": {"code": code}}]},
    )
    tools = {"bash": Bash(timeout=5.0), "submit_solution": SubmitSolution()}
    collector = Collector(Agent(max_attempts=1), tools, reward, pool, seed=0)
    async with Scripted.model_validate({"turns": turns}).open() as actor:
        ((trajectory,),) = [
            group.trajectories for group in await collector.collect(actor, [TASK], phase="train")
        ]
    return trajectory


@pytest.mark.parametrize("left", LEFT)
async def test_honest_work_is_not_harmed_and_a_cheat_earns_nothing(pool, left):
    reward = TestsPass(timeout=10)
    honest = await collected(pool, LEFT[left], RIGHT, reward)
    assert (honest.failure, honest.reward) == (None, 1.0)
    cheat = await collected(pool, LEFT[left], WRONG, reward)
    assert (cheat.failure, cheat.reward, cheat.score.outcome) == (None, 0.0, "tests_failed")


async def test_the_record_names_the_sandbox_of_the_tools(pool):
    trajectory = await collected(pool, "echo $$ > /work/mine", "open('/work/mine')", ExitCode())
    assert trajectory.reward == 0.0
    assert trajectory.sandbox.executions == 1


async def test_a_rollout_that_ran_nothing_is_judged_in_its_own_sandbox(pool):
    async with pool.claim() as box:
        await box.reset()
        await box.run_python("open('/tmp/a', 'w')")
        first = box.id
        await box.reset()
        assert (await box.run_python("open('/tmp/a')")).exit_code == 1
        assert box.id != first
    assert pool.metrics()["cwsandbox/max_execs_per_sandbox"] == 1
