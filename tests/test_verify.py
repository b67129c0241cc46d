import json

import pytest

from rlpipe.cheats import cheats
from rlpipe.config.compose import load_experiment
from rlpipe.console import Console
from rlpipe.errors import ConfigError
from rlpipe.types import PythonTests, Task
from rlpipe.verify import verify

ADD = {
    "id": "add",
    "prompt": "f adds",
    "tests": ["assert f(1, 2) == 3"],
    "hidden_tests": ["assert f(2, 2) == 4"],
    "reference": "def f(a, b): return a + b",
}
STACK = {
    "id": "stack",
    "prompt": "Stack is a stack",
    "tests": ["s = Stack()\ns.push(3)\nassert s.pop() == 3", "assert Stack().size() == 0"],
    "reference": (
        "class Stack:\n    def __init__(self): self.items = []\n"
        "    def push(self, x): self.items.append(x)\n    def pop(self): return self.items.pop()\n"
        "    def size(self): return len(self.items)"
    ),
}
BROKEN = ADD | {"id": "broken", "hidden_tests": ["assert f(2, 2) == 5"]}
WEAK = {"id": "weak", "prompt": "f", "tests": ["assert f(1) == 3"]}
WEAK |= {"reference": "def f(x): return 3 * x"}


def verified(tmp_path, capsys, *rows, **overrides):
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    given = {"dataset": "jsonl", "dataset.path": file, "reward": "tests_pass", **overrides}
    experiment = load_experiment(None, *(f"{key}={value}" for key, value in given.items()))
    verdict = verify(experiment, Console())
    return verdict, capsys.readouterr().out


def test_references_pass_and_cheats_do_not(tmp_path, capsys):
    verdict, said = verified(tmp_path, capsys, ADD, STACK)
    assert verdict.sound
    assert said == "2/2 references pass, 0 cheats pass\n"


def test_a_broken_task_is_named_with_the_test_that_fails(tmp_path, capsys):
    verdict, said = verified(tmp_path, capsys, ADD, BROKEN)
    assert not verdict.sound
    first, last = said.splitlines()
    assert first.startswith(
        "broken: the reference fails: tests_failed: assert f(2, 2) == 5 (failed:"
    )
    assert last == "1/2 references pass, 0 cheats pass"


def test_a_reward_that_can_be_gamed_is_found_out(tmp_path, capsys):
    verdict, said = verified(tmp_path, capsys, ADD, reward="exit_code")
    assert not verdict.sound
    assert "add: the cheat sys_exit passes" in said
    assert "add: the cheat os_exit passes" in said
    assert said.splitlines()[-1].startswith("1/1 references pass, ")


def test_a_task_that_a_constant_solves_is_weak_and_no_fault_of_the_grader(tmp_path, capsys):
    verdict, said = verified(tmp_path, capsys, ADD, WEAK)
    assert verdict.sound
    assert "1 weak tasks, whose tests one constant satisfies: weak" in said


def test_tasks_without_a_reference_are_counted(tmp_path, capsys):
    bare = {key: value for key, value in ADD.items() if key != "reference"}
    verdict, said = verified(tmp_path, capsys, bare)
    assert verdict.sound
    assert "1 tasks have no reference solution" in said
    assert "0/0 references pass, 0 cheats pass" in said


def test_a_reward_that_the_data_does_not_serve_is_refused(tmp_path, capsys):
    with pytest.raises(ConfigError, match="needs tasks with tests"):
        verify(load_experiment(None, "dataset=arithmetic", "reward=tests_pass"), Console())


def test_every_cheat_is_a_program():
    tests = PythonTests(visible=("assert f(1) == [3]",), entry_points=("f", "g"))
    task = Task(id="t", messages=({"role": "user", "content": ""},), tests=tests)
    made = dict(cheats(task))
    assert len(made) == 9
    for name, code in made.items():
        compile(code, name, "exec")
        assert "def f(" in code
        assert "def g(" not in code
    assert made["constant"].endswith("return [3]")
