"""The agent loop: ask the model, run the tools it calls, show it what they said, until it stops."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from rlpipe.errors import (
    ContextOverflow,
    InfrastructureError,
    SandboxFileError,
    ToolError,
    TrajectoryTooLong,
)
from rlpipe.policies.base import Actor, Request, Sampling
from rlpipe.rollouts.base import Record, Rollout, clean
from rlpipe.sandboxes.base import Sandbox
from rlpipe.tools.base import Observation, Tool
from rlpipe.types import StopReason, Task, ToolCall

CUT = {
    "length": StopReason.MAX_TOKENS,
    "trajectory_length": StopReason.MAX_TRAJECTORY_TOKENS,
    "context_length": StopReason.CONTEXT_OVERFLOW,
}
"""Why a rollout ends whose answer was cut, by what the turn says of it."""
NOT_RUN = "Not run:"
"""How the answer to a call begins that came too late."""


class Agent(Rollout):
    """The tool loop on OpenAI-style messages; without tools, one question and one answer."""

    kind: Literal["agent"] = "agent"
    max_turns: int = Field(25, ge=1)
    """Model calls of one rollout."""

    max_tool_calls: int = Field(20, ge=1)
    """Tool executions of one rollout; a call beyond them ends it. A submission is always taken."""

    max_tokens: int = Field(1024, ge=1)
    """New tokens of one answer; an answer that is cut ends the rollout."""

    max_trajectory_tokens: int | None = Field(None, ge=1)
    """Tokens of the whole conversation. Exact where the policy counts its prompt's tokens; a
    remote one is bounded by what it reported after the last turn."""

    top_p: float = Field(1.0, gt=0, le=1)

    async def roll_out(
        self,
        task: Task,
        actor: Actor,
        tools: Mapping[str, Tool],
        sandbox: Sandbox,
        record: Record,
        *,
        temperature: float | None = None,
        seed: int = 0,
    ) -> StopReason:
        record.tools = tuple(tool.function(name) for name, tool in tools.items())
        warmth = self.temperature if temperature is None else temperature
        with actor.attend():
            for turn in range(self.max_turns):
                room = self._room(record)
                if room <= 0:
                    return StopReason.MAX_TRAJECTORY_TOKENS
                most, total = min(self.max_tokens, room), self.max_trajectory_tokens
                sampling = Sampling(warmth, self.top_p, most, total)
                try:
                    finish = await _ask(task, actor, record, sampling, seed + turn)
                except TrajectoryTooLong:
                    return StopReason.MAX_TRAJECTORY_TOKENS
                except ContextOverflow:
                    return StopReason.CONTEXT_OVERFLOW
                if finish in CUT:
                    cut_by_room = finish == "length" and room < self.max_tokens
                    return StopReason.MAX_TRAJECTORY_TOKENS if cut_by_room else CUT[finish]
                calls = calls_of(record.messages[-1])
                if not calls:
                    return StopReason.FINAL_ANSWER
                end = await self._answer(calls, tools, sandbox, record)
                if end:
                    return end
        return StopReason.MAX_TURNS

    async def _answer(
        self, calls: list[ToolCall], tools: Mapping[str, Tool], sandbox: Sandbox, record: Record
    ) -> StopReason | None:
        """Answer every call, in order and under its own id; return why the rollout ends, if so."""
        end: StopReason | None = None
        for call in calls:
            if end:
                text = f"{NOT_RUN} the rollout ended ({end})."
            elif self._exhausted(call, tools, record):
                end = StopReason.MAX_TOOL_CALLS
                text = f"{NOT_RUN} the limit of {self.max_tool_calls} tool calls is reached."
            else:
                with record.timed("tools"):
                    seen = await run_call(call, tools, sandbox, record)
                text = seen.text
                if seen.submission is not None:
                    record.submission, end = seen.submission, StopReason.SUBMITTED
            record.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return end

    def _exhausted(self, call: ToolCall, tools: Mapping[str, Tool], record: Record) -> bool:
        submits = call.name in tools and tools[call.name].submits
        return not submits and record.tool_calls.total() >= self.max_tool_calls

    def _room(self, record: Record) -> int:
        """Tokens that the conversation may still grow by."""
        if self.max_trajectory_tokens is None:
            return self.max_tokens
        used = record.turns[-1].usage if record.turns else None
        spent = used.prompt_tokens + used.completion_tokens if used else 0
        return self.max_trajectory_tokens - spent

    def max_model_calls(self) -> int:
        return self.max_turns

    def max_sampled_tokens(self) -> int:
        most = self.max_turns * self.max_tokens
        return min(most, self.max_trajectory_tokens) if self.max_trajectory_tokens else most


async def _ask(task: Task, actor: Actor, record: Record, sampling: Sampling, seed: int) -> str:
    request = Request(task, record.messages, record.tools, sampling, seed, record.turns)
    with record.timed("sampling"):
        message, turn = await actor.act(request)
    record.add_turn(message, turn)
    return turn.finish_reason


def calls_of(message: Mapping[str, Any]) -> list[ToolCall]:
    return [
        ToolCall(
            id=call["id"],
            name=call["function"]["name"],
            arguments=call["function"]["arguments"],
        )
        for call in message.get("tool_calls") or ()
    ]


async def run_call(
    call: ToolCall, tools: Mapping[str, Tool], sandbox: Sandbox, record: Record
) -> Observation:
    """Run one call. What the model got wrong goes back to it as text and is counted."""
    tool = tools.get(call.name)
    if tool is None:
        record.malformed += 1
        known = ", ".join(tools) or "none"
        return Observation(f"Error: there is no tool {call.name!r}; the tools are: {known}")
    try:
        arguments = tool.Arguments.model_validate(clean(json.loads(call.arguments)))
    except (ValueError, RecursionError) as error:
        record.malformed += 1
        return Observation(f"Error: bad arguments for {call.name}: {_explain(error)}")
    record.tool_calls[call.name] += 1
    try:
        return await tool.call(sandbox, arguments)
    except SandboxFileError as error:
        return Observation(f"Error: {error}")
    except InfrastructureError:
        raise
    except Exception as error:
        raise ToolError(f"{call.name}: {type(error).__name__}: {error}") from error


def _explain(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error}"
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors()
        )
    return str(error)
