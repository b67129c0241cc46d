import asyncio
import json

import pytest

from rlpipe.errors import ContextOverflow, ToolError, TrajectoryTooLong
from rlpipe.policies.base import Actor
from rlpipe.policies.scripted import Scripted
from rlpipe.rollouts.agent import Agent
from rlpipe.rollouts.base import Record
from rlpipe.tools.base import Observation
from rlpipe.tools.bash import Bash
from rlpipe.tools.execute_code import ExecuteCode
from rlpipe.tools.read_file import ReadFile
from rlpipe.tools.submit_solution import SubmitSolution
from rlpipe.tools.write_file import WriteFile
from rlpipe.types import StopReason, Task, Turn, Usage

TASK = Task(id="t", messages=({"role": "user", "content": "Go."},))
TOOLS = {
    "bash": Bash(),
    "execute_code": ExecuteCode(),
    "read_file": ReadFile(),
    "submit_solution": SubmitSolution(),
    "write_file": WriteFile(),
}


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


async def play(sandbox, turns, *, loop=False, agent=None, tools=TOOLS):
    """Roll out a script; return the record and why it stopped."""
    record = Record(TASK)
    async with Scripted(turns=turns, loop=loop).open() as actor:
        stop = await (agent or Agent()).roll_out(TASK, actor, tools, sandbox, record)
    return record, stop


def answers(record):
    return [m["content"] for m in record.messages if m["role"] == "tool"]


async def test_an_answer_without_a_call_ends_the_rollout(sandbox):
    record, stop = await play(sandbox, ["It is 4."])
    assert stop == StopReason.FINAL_ANSWER
    assert record.messages[-1] == {"role": "assistant", "content": "It is 4."}
    assert [turn.message_index for turn in record.turns] == [1]


async def test_the_sandbox_keeps_its_state_between_calls(sandbox):
    record, _ = await play(
        sandbox,
        [
            {"tool_calls": [call("write_file", path="a/b.txt", content="hé\n")]},
            {"tool_calls": [call("bash", command="cat a/b.txt; false")]},
            {"tool_calls": [call("read_file", path="a/b.txt")]},
            "done",
        ],
    )
    assert answers(record) == ["File written successfully", "exit=1\nhé\n", "hé\n"]


async def test_malformed_arguments_go_back_to_the_model_and_are_counted(sandbox):
    broken = {"tool_calls": [{"name": "execute_code", "arguments": '{"code": "print(1)'}]}
    record, stop = await play(sandbox, [broken, "never mind"])
    asked, answered = record.messages[1]["tool_calls"][0], record.messages[2]
    assert answered["tool_call_id"] == asked["id"]
    assert "not valid JSON" in answered["content"]
    assert (record.malformed, record.tool_calls.total()) == (1, 0)
    assert stop == StopReason.FINAL_ANSWER


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"code": 5}', "code: Input should be a valid string"),
        ("{}", "code: Field required"),
        ('{"code": "1", "language": "c"}', "language: Extra inputs are not permitted"),
        ('["print(1)"]', "valid dictionary"),
        ("[" * 100_000, "recursion"),
    ],
)
async def test_wrong_argument_types_are_explained(sandbox, arguments, said):
    turn = {"tool_calls": [{"name": "execute_code", "arguments": arguments}]}
    record, _ = await play(sandbox, [turn, "ok"])
    assert said.lower() in answers(record)[0].lower()
    assert record.malformed == 1


async def test_parallel_calls_are_answered_in_order_and_an_unknown_name_lists_the_tools(sandbox):
    turn = {"tool_calls": [call("python", code="1"), call("execute_code", code="print(2)")]}
    record, _ = await play(sandbox, [turn, "ok"])
    ids = [c["id"] for c in record.messages[1]["tool_calls"]]
    assert [m["tool_call_id"] for m in record.messages[2:4]] == ids
    unknown, ran = answers(record)
    assert "no tool 'python'" in unknown
    assert all(name in unknown for name in TOOLS)
    assert ran == "2\n"


async def test_a_tool_loop_is_bounded(sandbox):
    forever = [{"tool_calls": [call("execute_code", code="print('again')")]}]
    record, stop = await play(sandbox, forever, loop=True, agent=Agent(max_tool_calls=20))
    assert stop == StopReason.MAX_TOOL_CALLS
    assert record.tool_calls == {"execute_code": 20}
    assert answers(record)[:20] == ["again\n"] * 20
    assert "limit of 20" in answers(record)[20]


async def test_a_submission_is_taken_at_the_limit_and_ends_the_rollout(sandbox):
    turns = [
        {"tool_calls": [call("execute_code", code="1")]},
        {"tool_calls": [call("submit_solution", code="x = 1"), call("bash", command="true")]},
    ]
    record, stop = await play(sandbox, turns, agent=Agent(max_tool_calls=1))
    assert stop == StopReason.SUBMITTED
    assert record.submission == "x = 1"
    assert answers(record)[-1].startswith("Not run")
    assert record.tool_calls == {"execute_code": 1, "submit_solution": 1}


async def test_turns_are_bounded(sandbox):
    forever = [{"tool_calls": [call("bash", command="true")]}]
    record, stop = await play(sandbox, forever, loop=True, agent=Agent(max_turns=3))
    assert (stop, len(record.turns)) == (StopReason.MAX_TURNS, 3)


async def test_what_the_code_did_is_told_to_the_model(sandbox):
    record, _ = await play(
        sandbox,
        [
            {"tool_calls": [call("execute_code", code="print('a'); raise SystemExit(3)")]},
            {"tool_calls": [call("read_file", path="missing")]},
            {"tool_calls": [call("execute_code", code="pass")]},
            "ok",
        ],
    )
    failed, missing, silent = answers(record)
    assert failed == "Error (exit code 3)\na"
    assert missing == "Error: missing: no such file"
    assert silent == "(no output)"


async def test_a_command_that_hangs_is_an_observation_with_what_it_printed(sandbox):
    tools = {"bash": Bash(timeout=1)}
    turn = {"tool_calls": [call("bash", command="echo early; sleep 60")]}
    record, _ = await play(sandbox, [turn, "ok"], tools=tools)
    assert answers(record) == ["command timed out after 1 seconds\nearly\n"]


async def test_long_output_keeps_the_configured_end_and_says_what_was_cut(sandbox):
    tools = {"execute_code": ExecuteCode(max_output=64)}
    turn = {"tool_calls": [call("execute_code", code="print('x' * 100 + 'end', end='')")]}
    record, _ = await play(sandbox, [turn, "ok"], tools=tools)
    (seen,) = answers(record)
    assert seen == "[39 characters cut]\n" + "x" * 61 + "end"


class Fixed(Actor):
    """Answers with given finish reasons and token counts."""

    name = "fixed"

    def __init__(self, *turns):
        self.turns = list(turns)
        self.asked = []

    async def act(self, request):
        self.asked.append(request)
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        arguments = json.dumps({"command": "true"})
        function = {"name": "bash", "arguments": arguments}
        calls = [{"id": f"c{len(self.asked)}", "type": "function", "function": function}]
        return {"role": "assistant", "content": None, "tool_calls": calls}, turn


def used(tokens, finish="tool_calls"):
    usage = Usage(prompt_tokens=tokens - 10, completion_tokens=10)
    return Turn(finish_reason=finish, usage=usage)


async def test_an_answer_cut_at_its_own_limit_ends_the_rollout(sandbox):
    stop = await Agent().roll_out(TASK, Fixed(used(50, "length")), TOOLS, sandbox, Record(TASK))
    assert stop == StopReason.MAX_TOKENS


async def test_the_conversation_is_bounded_in_tokens(sandbox):
    agent, actor = Agent(max_tokens=100, max_trajectory_tokens=120), Fixed(used(50), used(130))
    stop = await agent.roll_out(TASK, actor, TOOLS, sandbox, Record(TASK))
    assert stop == StopReason.MAX_TRAJECTORY_TOKENS
    assert [request.sampling.max_tokens for request in actor.asked] == [100, 70]


async def test_the_bound_holds_for_what_tools_said_too(sandbox):
    actor = Fixed(used(50), TrajectoryTooLong("900 tokens"))
    stop = await Agent(max_trajectory_tokens=800).roll_out(
        TASK, actor, TOOLS, sandbox, Record(TASK)
    )
    assert stop == StopReason.MAX_TRAJECTORY_TOKENS
    assert {request.sampling.max_total_tokens for request in actor.asked} == {800}


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("length", StopReason.MAX_TOKENS),
        ("trajectory_length", StopReason.MAX_TRAJECTORY_TOKENS),
        ("context_length", StopReason.CONTEXT_OVERFLOW),
    ],
)
async def test_a_cut_answer_ends_the_rollout_for_what_cut_it(sandbox, finish, stop):
    actor = Fixed(used(50, finish))
    assert await Agent().roll_out(TASK, actor, TOOLS, sandbox, Record(TASK)) == stop


async def test_half_characters_of_a_model_reach_nothing_else(sandbox):
    half = "\ud83d"
    record, stop = await play(
        sandbox,
        [
            {"content": f"a{half}", "tool_calls": [{"name": half, "arguments": "{}"}]},
            {"tool_calls": [{"name": "read_file", "arguments": '{"path": "\\ud83d"}'}]},
            {"tool_calls": [{"name": "submit_solution", "arguments": '{"code": "\\ud83d"}'}]},
        ],
    )
    assert stop == StopReason.SUBMITTED
    assert record.submission == "\ufffd"
    json.dumps(record.messages, ensure_ascii=False).encode()


async def test_an_overflow_of_the_context_is_an_end_and_no_error(sandbox):
    record = Record(TASK)
    actor = Fixed(used(50), ContextOverflow("too long"))
    stop = await Agent().roll_out(TASK, actor, TOOLS, sandbox, record)
    assert stop == StopReason.CONTEXT_OVERFLOW
    assert len(record.turns) == 1


async def test_every_turn_has_its_own_reproducible_seed(sandbox):
    seeds = []
    for _ in range(2):
        actor = Fixed(used(50), used(60), used(70, "length"))
        await Agent().roll_out(TASK, actor, TOOLS, sandbox, Record(TASK), seed=7)
        seeds.append([request.seed for request in actor.asked])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


async def test_a_tool_that_breaks_is_the_machinery_and_not_the_agent(sandbox):
    class Broken(Bash):
        async def call(self, sandbox, arguments):
            raise KeyError("oops")

    with pytest.raises(ToolError, match="bash: KeyError: 'oops'"):
        await play(
            sandbox,
            [{"tool_calls": [call("bash", command="x")]}],
            tools={"bash": Broken()},
        )


async def test_cancelling_keeps_what_was_recorded(sandbox):
    started = asyncio.Event()

    class Hanging(Bash):
        async def call(self, sandbox, arguments):
            started.set()
            await asyncio.Event().wait()
            return Observation("")

    record = Record(TASK)
    async with Scripted(turns=[{"tool_calls": [call("bash", command="x")]}]).open() as actor:
        rollout = Agent().roll_out(TASK, actor, {"bash": Hanging()}, sandbox, record)
        running = asyncio.create_task(rollout)
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert len(record.turns) == 1
    assert record.tool_calls == {"bash": 1}
