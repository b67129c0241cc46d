"""Every kind of reward that needs no model."""

import sys

import pytest

from rlpipe.component import lookup
from rlpipe.errors import GraderError, SandboxGone
from rlpipe.failures import failure_of
from rlpipe.rewards._schema import problems, unknown_keywords
from rlpipe.rewards.command import Command
from rlpipe.rewards.format import Format
from rlpipe.rewards.python import Python
from rlpipe.rewards.tests_fraction import TestsFraction
from rlpipe.rewards.tests_pass import TestsPass
from rlpipe.rewards.tool_use import ToolUse
from rlpipe.rewards.weighted import Weighted
from rlpipe.sandboxes.base import SandboxSpec
from rlpipe.testing import FakeSandboxSession, script
from rlpipe.types import PythonTests, Score, StopReason

from .helpers import TASK, said

ADDS = TASK.model_copy(
    update={
        "tests": PythonTests(
            visible=("assert f(1, 2) == 3",),
            hidden=("assert f(2, 2) == 4", "assert f(5, 5) == 10", "assert f(0, 0) == 0"),
            entry_points=("f",),
        )
    }
)


@pytest.fixture
async def fake():
    return await FakeSandboxSession().start(SandboxSpec())


@pytest.mark.parametrize(
    ("code", "share"), [("a + b", 1.0), ("3", 0.25), ("a * b", 0.5), ("nope", 0.0)]
)
async def test_the_share_of_the_tests_that_pass(sandbox, code, share):
    answer = said(f"<answer>def f(a, b): return {code}</answer>")
    score = await TestsFraction().score(ADDS, answer, sandbox)
    assert (score.value, score.passed) == (share, share == 1.0)
    assert score.parts == {"tests_passed": 4 * share, "tests": 4}
    assert score.note == f"{4 * share:.0f} of 4 tests passed"


@pytest.mark.parametrize(
    ("phase", "strict", "value"),
    [("train", True, 0.25), ("eval", True, 0.0), ("sample", True, 0.0), ("eval", False, 0.25)],
)
async def test_an_evaluation_is_strict_unless_told_otherwise(sandbox, phase, strict, value):
    answer = said(submission="def f(a, b): return 3", phase=phase)
    reward = TestsFraction(strict_evaluation=strict)
    assert (await reward.score(ADDS, answer, sandbox)).value == value


async def test_an_early_exit_is_no_pass(sandbox):
    answer = said(submission="import sys; sys.exit(0)")
    score = await TestsPass().score(ADDS, answer, sandbox)
    assert (score.value, score.outcome) == (0.0, "tests_not_completed")
    assert score.parts == {"tests_passed": 0, "tests": 4}


async def test_no_answer_is_no_pass_and_takes_no_sandbox(fake):
    assert (await TestsPass().score(ADDS, said("I do not know."), fake)).outcome == "no_answer"
    assert not fake.calls


COMMAND = TASK.model_copy(
    update={"test_command": "bash check.sh", "test_files": {"check.sh": "test -e made"}}
)


async def test_the_command_judges_the_state_and_lays_its_files_over_the_agents(sandbox):
    reward = Command()
    await sandbox.write_file("check.sh", "exit 0")
    score = await reward.score(COMMAND, said(), sandbox)
    assert (score.value, score.outcome, score.note) == (0.0, "tests_failed", "exit status 1")
    await sandbox.write_file("made", "")
    assert (await reward.score(COMMAND, said(), sandbox)).passed


async def test_a_folder_in_the_way_of_the_commands_files_is_the_agents_failure(sandbox):
    await sandbox.exec("mkdir check.sh")
    score = await Command().score(COMMAND, said(), sandbox)
    assert (score.value, score.outcome) == (0.0, "tests_not_completed")


async def test_a_command_that_hangs_earns_nothing(sandbox):
    task = TASK.model_copy(update={"test_command": "tail -f /dev/null"})
    score = await Command(timeout=0.2).score(task, said(), sandbox)
    assert (score.value, score.outcome) == (0.0, "timeout")


FENCE = "```python\nx\n```"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("options", "answer", "passed"),
    [
        ({}, "so: <answer>1</answer>", True),
        ({}, "<think><answer>0</answer></think><answer>1</answer>", True),
        ({}, "<answer>1</answer><answer>2</answer>", False),
        ({}, "<answer> </answer>", False),
        ({}, "</answer>1<answer>", False),
        ({}, "1", False),
        ({"alone": True}, " <answer>1</answer>\n", True),
        ({"alone": True}, "so: <answer>1</answer>", False),
        ({"block": "fence"}, f"so:\n{FENCE}\nthere", True),
        ({"block": "fence"}, f"{FENCE}\n{FENCE}", False),
        ({"block": "fence"}, "```python\nx\n", False),
        ({"block": "fence"}, "```\n```", False),
        ({"block": "fence", "language": "python"}, FENCE, True),
        ({"block": "fence", "language": "json"}, FENCE, False),
        ({"block": "fence", "alone": True}, FENCE, True),
        ({"block": "fence", "alone": True}, f"so:\n{FENCE}", False),
        ({"block": "json"}, "[1, 2]", True),
        ({"block": "json"}, 'so:\n```json\n{"a": 1}\n```', True),
        ({"block": "json", "alone": True}, 'so:\n```json\n{"a": 1}\n```', False),
        ({"block": "json"}, "NaN", False),
        ({"block": "json"}, "[" * 100_000, False),
        ({"block": "json", "json_schema": SCHEMA}, '{"n": 3}', True),
        ({"block": "json", "json_schema": SCHEMA}, '{"n": 0}', False),
        ({"block": "json", "json_schema": SCHEMA}, '{"n": true}', False),
        ({"block": "json", "json_schema": SCHEMA}, '{"n": 1, "m": 2}', False),
        ({"block": "json", "json_schema": SCHEMA}, "{}", False),
    ],
)
async def test_the_form_of_the_answer(fake, options, answer, passed):
    reward = Format(**options)
    assert reward.check() == []
    score = await reward.score(TASK, said(answer), fake)
    assert (score.value, score.passed) == (float(passed), passed)
    assert bool(score.note) is not passed


def test_keywords_that_would_be_passed_over_are_refused():
    schema = {"type": "object", "properties": {"a": {"oneOf": []}, "b": {"type": "strin"}}}
    assert unknown_keywords(schema) == {"oneOf", "type strin"}
    (finding,) = Format(block="json", json_schema=schema).check()
    assert "oneOf, type strin" in finding.problem
    assert [found.key for found in Format(json_schema=SCHEMA).check()] == ["json_schema"]


@pytest.mark.parametrize(
    ("value", "schema", "sound"),
    [
        ([1, "a"], {"type": "array", "items": {"type": ["integer", "string"]}}, True),
        ([1, None], {"items": {"type": ["integer", "string"]}}, False),
        ("b", {"enum": ["a", "b"]}, True),
        (1, {"enum": [True]}, False),
        (0, {"const": False}, False),
        ("abc", {"pattern": "^a", "minLength": 3, "maxLength": 3}, True),
        ("abcd", {"maxLength": 3}, False),
        ([1, 2], {"maxItems": 1}, False),
        ([], {"minItems": 1}, False),
        (1, {"exclusiveMinimum": 1}, False),
        (1, {"exclusiveMaximum": 2, "maximum": 1}, True),
        (2.0, {"type": "integer"}, True),
        (2.5, {"type": "integer"}, False),
        (None, {"anyOf": [{"type": "null"}, {"type": "string"}]}, True),
        (3, {"anyOf": [{"type": "null"}, {"type": "string"}]}, False),
        ({"a": {"b": 1}}, {"additionalProperties": {"required": ["c"]}}, False),
    ],
)
def test_the_schema(value, schema, sound):
    assert unknown_keywords(schema) == set()
    assert (list(problems(value, schema)) == []) is sound


async def test_tools_cost_and_a_submission_pays(fake):
    reward = ToolUse(cost=0.1, costs={"submit_solution": 0, "bash": 0.25})
    calls = {"bash": 2, "execute_code": 1, "submit_solution": 1}
    used = said(tool_calls=calls, malformed=1, stop_reason=StopReason.SUBMITTED)
    score = await reward.score(TASK, used, fake)
    assert score.value == pytest.approx(0.1 - 0.5 - 0.1 - 0.1)
    assert score.passed
    assert score.note == "4 calls, 1 malformed, submitted"
    idle = await reward.score(TASK, said(), fake)
    assert (idle.value, idle.passed) == (0.0, False)


MODULE = """
from rlpipe.types import Score

def length(task, trajectory, sandbox):
    return len(trajectory.answer)

async def full(task, trajectory, sandbox):
    return Score(value=0.5, note=(await sandbox.run_python("")).stdout)

def truth(task, trajectory, sandbox): return True
def nothing(task, trajectory, sandbox): return None
def huge(task, trajectory, sandbox): return 10**400
def nan(task, trajectory, sandbox): return float("nan")
def text(task, trajectory, sandbox): return "1"
def breaks(task, trajectory, sandbox): return 1 / 0
class Group:
    @staticmethod
    def inner(task, trajectory, sandbox): return 0
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("my_rewards", None)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "value"), [("length", 3), ("full", 0.5), ("truth", 1), ("Group.inner", 0)]
)
async def test_a_function_of_the_users_own(fake, name, value):
    reward = Python(function=f"my_rewards:{name}")
    assert reward.check() == []
    assert (await reward.score(TASK, said("abc"), fake)).value == value


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "returned None, which is no reward"),
        ("nan", "returned nan"),
        ("huge", "which is no reward"),
        ("text", "returned '1'"),
        ("breaks", "ZeroDivisionError"),
        ("absent", "cannot be loaded"),
    ],
)
async def test_a_function_that_gives_no_reward_masks(fake, name, words):
    with pytest.raises(GraderError, match=words) as caught:
        await Python(function=f"my_rewards:{name}").score(TASK, said("abc"), fake)
    failure = failure_of(caught.value, grading=True)
    assert (failure.boundary, failure.grading) == ("grader", True)
    assert (failure.type == "ZeroDivisionError") is (name == "breaks")
    assert ("1 / 0" in (failure.traceback or "")) is (name == "breaks")


def test_a_module_that_is_not_there_is_found_without_import():
    (finding,) = Python(function="no_such_module:f").check()
    assert finding.key == "function"


def part(kind, weight=1.0, **options):
    reward = lookup("rewards", kind).model_validate({"kind": kind, **options})
    return {"weight": weight, "reward": reward.model_dump()}


async def test_a_weighted_sum_logs_each_part_by_name(sandbox):
    reward = Weighted(
        parts={
            "tests": part("tests_fraction", 0.8),
            "form": part("format", 0.1),
            "calls": part("tool_use", -2, submit_bonus=0, cost=0.5),
        },
        passes="tests",
    )
    assert reward.check() == []
    answer = said("<answer>def f(a, b): return 3</answer>", tool_calls={"bash": 1})
    score = await reward.score(ADDS, answer, sandbox)
    assert score.value == pytest.approx(0.8 * 0.25 + 0.1 + 1.0)
    assert (score.parts["tests"], score.parts["form"], score.parts["calls"]) == (0.25, 1.0, -0.5)
    assert score.parts["tests/tests_passed"] == 1
    assert len(score.tests) == 4
    assert (score.passed, score.outcome) == (False, "tests_failed")
    assert "form 1 (passed)" in score.note
    assert {need for each in reward.each() for need in each.needs_task} == {"tests"}


async def test_all_parts_must_pass_unless_one_decides(fake):
    parts = {"form": part("format"), "calls": part("tool_use")}
    answer = said("<answer>1</answer>")
    assert not (await Weighted(parts=parts).score(TASK, answer, fake)).passed
    assert (await Weighted(parts=parts, passes="form").score(TASK, answer, fake)).passed


async def test_one_failed_part_fails_the_sum():
    gone = await FakeSandboxSession(script(SandboxGone("died"))).start(SandboxSpec())
    reward = Weighted(parts={"form": part("format"), "code": part("exit_code")})
    with pytest.raises(SandboxGone):
        await reward.score(TASK, said("<answer>1</answer>"), gone)


async def test_parts_that_look_at_the_state_come_before_those_that_take_the_sandbox_anew(pool):
    reward = Weighted(parts={"code": part("exit_code"), "state": part("command")})
    async with pool.claim() as box:
        await box.write_file("made", "")
        score = await reward.score(COMMAND, said("<answer>1</answer>"), box)
    assert (score.parts["code"], score.parts["state"]) == (1.0, 1.0)
    assert list(score.parts) == ["code", "state"]


def test_findings_of_parts_have_the_path_to_them():
    reward = Weighted(parts={"mine": part("python", function="no_such_module:f")})
    assert [found.key for found in reward.check()] == ["parts.mine.reward.function"]
    with pytest.raises(ValueError, match="no part is called 'x'"):
        Weighted(parts={"form": part("format")}, passes="x")


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "high"])
def test_what_is_no_number_is_refused_at_the_source(value):
    with pytest.raises(ValueError, match="value"):
        Score(value=value)
