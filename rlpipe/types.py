"""The vocabulary: a task, what a rollout of it leaves behind, and how that becomes token rows.

A *rollout* is the act of solving a task once; its record is a *trajectory*; the trajectories of
one task form a *group*. Everything here is frozen data that survives a round trip through JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from rlpipe.errors import Boundary

Message = dict[str, Any]
"""One chat message in OpenAI's form: `role`, `content`, maybe `tool_calls` or `tool_call_id`."""


class Data(BaseModel):
    """Frozen, closed data."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class PythonTests(Data):
    """Test statements for a candidate's Python code, each run and reported on its own."""

    visible: tuple[str, ...] = ()
    """Statements that the prompt may show."""

    hidden: tuple[str, ...] = ()
    """Statements that only the grader has."""

    imports: tuple[str, ...] = ()
    """Import statements that the tests need."""

    setup: str = ""
    """Code to run after the candidate and before the tests: it may use the candidate's names."""

    entry_points: tuple[str, ...] = ()
    """Names that the tests take from the candidate; every other name is the grader's own."""

    classes: tuple[str, ...] = ()
    """Those of `entry_points` that are classes: only objects of these may be compared, ordered and
    reckoned with by methods of their own, since any other object that does so judges itself."""

    @property
    def all(self) -> tuple[str, ...]:
        return self.visible + self.hidden


class Task(Data):
    """One problem: what the model is shown, and what its answer is judged by."""

    id: str
    messages: tuple[Message, ...]
    """The conversation that opens every rollout of this task."""

    split: str = "train"
    """`train`, `held_out`, or another name that the data set publishes."""

    tests: PythonTests | None = None
    expected_output: str | None = None
    """What the answer must print."""

    test_command: str | None = None
    """A command for bash that exits with status 0 where the work in the sandbox is right."""

    test_files: Mapping[str, str] = {}
    """Files that `test_command` needs, by path: laid over what the rollout left, never shown."""

    reference: str | None = None
    """A solution that is known to be right; never shown."""

    mistake: str | None = None
    """A plausible wrong solution, for teachers that are meant to be imperfect."""

    files: Mapping[str, str] = {}
    """Files to lay into the sandbox before the rollout starts, by path."""

    metadata: Mapping[str, Any] = {}


class ToolCall(Data):
    """A call as the model wrote it; `arguments` is raw text and may be malformed."""

    id: str
    name: str
    arguments: str

    def to_message(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class Usage(Data):
    """Tokens of one or more model calls."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
        )


class Turn(Data):
    """One model call: the tokens that went in and came out, where the policy tells them."""

    message_index: int = 0
    """Position of the assistant's message in the trajectory's `messages`."""

    prompt_ids: tuple[int, ...] | None = None
    completion_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    """Log-probability of each completion token under the policy that sampled it."""

    finish_reason: str = "stop"
    """`stop`, `tool_calls`, `length`, or what else the provider says. An actor that counts its
    prompt's tokens tells `trajectory_length` and `context_length` apart from `length`."""

    usage: Usage = Usage()
    duration: float = 0.0
    policy_version: int = 0
    """Optimizer steps that the sampling policy had seen."""


class StopReason(StrEnum):
    """Why a rollout ended."""

    SUBMITTED = "submitted"
    """A tool that ends the rollout was called."""

    FINAL_ANSWER = "final_answer"
    """The model answered without calling a tool."""

    MAX_TURNS = "max_turns"
    """`rollout.max_turns` model calls were made."""

    MAX_TOOL_CALLS = "max_tool_calls"
    """`rollout.max_tool_calls` executions were made."""

    MAX_TOKENS = "max_tokens"
    """One answer was cut at `rollout.max_tokens`."""

    MAX_TRAJECTORY_TOKENS = "max_trajectory_tokens"
    """The conversation reached `rollout.max_trajectory_tokens`."""

    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation no longer fits the model."""

    TIMEOUT = "timeout"
    """`rollout.timeout` seconds passed. Masked, since wall time is not the agent's doing."""

    FAILED = "failed"
    """The machinery failed; `failure` says how."""


class Failure(Data):
    """What went wrong outside the agent's doing. A trajectory that has one carries no reward."""

    boundary: Boundary
    type: str
    """The error's class name, or `timeout`."""

    message: str
    attempt: int = 1
    retryable: bool = False
    retry_after: float | None = None
    grading: bool = False
    """Whether the rollout came to its end and only its judgement failed."""

    traceback: str | None = None
    """Only for errors that rlpipe does not know, which may be bugs."""


class TestResult(Data):
    """How one test statement went."""

    __test__ = False  # pytest must not take it for a test class

    name: str
    outcome: str
    """`passed`, `failed` (its assertion is false), `error` (it raised), `timeout`, or `not_run`."""

    message: str = ""
    duration: float = 0.0


class Score(Data):
    """A reward's verdict on one trajectory."""

    value: FiniteFloat
    parts: Mapping[str, FiniteFloat] = {}
    tests: tuple[TestResult, ...] = ()
    passed: bool = False
    """Whether this counts as solved in pass rates."""

    outcome: str = ""
    """A word for the kind of verdict, such as `passed`, `tests_failed` or `no_answer`."""

    note: str = ""
    """One sentence for a person."""


class Timing(Data):
    """Seconds that a rollout spent, by what it waited for."""

    total: float = 0.0
    sampling: float = 0.0
    tools: float = 0.0
    grading: float = 0.0


class SandboxRecord(Data):
    """The sandbox that a rollout used."""

    id: str
    image: str | None = None
    tags: tuple[str, ...] = ()
    executions: int = 0
    completed_ok: int = 0
    completed_nonzero: int = 0
    failures: int = 0
    """Executions that the machinery lost."""


class Trajectory(Data):
    """The record of one rollout: either a score or a failure stands at its end."""

    rollout_id: str
    group_id: str
    task_id: str
    phase: str = "train"
    """What it is for: `train`, `eval` (greedy), `sample` (for pass@k), `teacher` or `collect`."""

    step: int = 0
    index: int = 0
    """Position in the group."""

    attempt: int = 1
    seed: int = 0
    policy: str = ""
    policy_version: int = 0
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    turns: tuple[Turn, ...] = ()
    submission: str | None = None
    """The code that a submitting tool took."""

    tool_calls: Mapping[str, int] = {}
    malformed: int = 0
    """Tool calls with unreadable arguments, an unknown name or wrong types."""

    stop_reason: StopReason
    score: Score | None = None
    failure: Failure | None = None
    timing: Timing = Timing()
    sandbox: SandboxRecord | None = None

    @property
    def valid(self) -> bool:
        return self.score is not None and self.failure is None

    @property
    def evaluates(self) -> bool:
        """Whether it measures the policy, so that nothing learns from it."""
        return self.phase in ("eval", "sample")

    @property
    def reward(self) -> float | None:
        """The score's value, or None: a failure has no reward."""
        return self.score.value if self.score is not None and self.failure is None else None

    @property
    def usage(self) -> Usage:
        return sum((turn.usage for turn in self.turns), Usage())

    @property
    def answer(self) -> str:
        """Text of the last assistant message."""
        said = [m for m in self.messages if m["role"] == "assistant"]
        return (said[-1].get("content") or "") if said else ""


class TrajectoryGroup(Data):
    """The trajectories of one task, failed ones included.

    Raises:
        ValueError: the trajectories belong to different tasks or groups.
    """

    group_id: str
    task_id: str
    trajectories: tuple[Trajectory, ...] = Field(min_length=1)

    def model_post_init(self, _context: Any) -> None:
        strangers = {t.task_id for t in self.trajectories} - {self.task_id}
        if strangers or {t.group_id for t in self.trajectories} != {self.group_id}:
            others = ", ".join(sorted(strangers)) or "another group"
            raise ValueError(f"group {self.group_id} of task {self.task_id} holds {others}")

    @property
    def rewards(self) -> list[float | None]:
        return [trajectory.reward for trajectory in self.trajectories]

    @property
    def valid(self) -> list[Trajectory]:
        return [trajectory for trajectory in self.trajectories if trajectory.valid]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One training row. The three completion lists have equal length.

    Example: an answer of two tokens, three tokens of tool output, one more answer token
    has `mask == (1, 1, 0, 0, 0, 1)`.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """0.0 where the mask is 0."""

    mask: tuple[int, ...]
    """1 for a token that the policy sampled, 0 for one that it was given."""


def lay_out(turns: Sequence[Turn]) -> list[TokenRow]:
    """Lay a trajectory's turns out as token rows.

    A turn whose prompt extends everything before it continues the row; one whose prompt does not
    (its chat template rewrote history) starts a new row.

    Raises:
        ValueError: a turn lacks token ids or log-probabilities.
    """
    rows: list[TokenRow] = []
    for turn in turns:
        if turn.prompt_ids is None or turn.completion_ids is None or turn.logprobs is None:
            raise ValueError("a turn without token ids and log-probabilities cannot be trained on")
        if len(turn.logprobs) != len(turn.completion_ids):
            raise ValueError(
                f"{len(turn.logprobs)} log-probabilities for {len(turn.completion_ids)} tokens"
            )
        row = _extend(rows[-1], turn.prompt_ids) if rows else None
        if row is not None:
            rows.pop()
        else:
            row = TokenRow(turn.prompt_ids, (), (), ())
        rows.append(
            TokenRow(
                row.prompt_ids,
                row.completion_ids + turn.completion_ids,
                row.logprobs + turn.logprobs,
                row.mask + (1,) * len(turn.completion_ids),
            )
        )
    return rows


def _extend(row: TokenRow, prompt_ids: tuple[int, ...]) -> TokenRow | None:
    """Append what a later prompt added to `row`, or return None where it does not continue it."""
    so_far = row.prompt_ids + row.completion_ids
    if prompt_ids[: len(so_far)] != so_far:
        return None
    given = prompt_ids[len(so_far) :]
    return TokenRow(
        row.prompt_ids,
        row.completion_ids + given,
        row.logprobs + (0.0,) * len(given),
        row.mask + (0,) * len(given),
    )
