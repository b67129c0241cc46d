"""Every error that rlpipe raises on purpose. Anything else is a bug and keeps its traceback.

    RlpipeError
    ├── ConfigError                 the spec is wrong: the command line prints it, exit status 2
    │   └── UnknownComponent        no component of that kind is installed
    ├── RunError                    the run cannot go on: exit status 1
    ├── LimitReached                the run has used up what its spec allows; no failure
    └── InfrastructureError         what the machinery did; never a score (retryable, retry_after)
        ├── ProviderError           a model service failed
        │   └── ContextOverflow     the conversation no longer fits the model; ends the rollout
        │       └── TrajectoryTooLong   nor what the rollout is allowed
        ├── ToolError               a tool's own code broke
        ├── GraderError             a reward could not be taken
        └── SandboxError            a sandbox provider failed
            ├── SandboxStartError   it never became ready
            ├── SandboxUnavailable  the provider is busy or out of reach; worth another try
            ├── SandboxGone         it died, or its lifetime is over
            ├── SandboxAuthError    the provider refuses the key
            ├── SandboxConfigError  the spec asks for what the provider lacks
            └── SandboxFileError    a path cannot be read or written; the agent's own affair

Who raises: the code at a boundary (a provider, a sandbox, a grader) turns what its library threw
into one of these. Who classifies: `collect` turns them into `Failure` data. Who records: `store`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import ClassVar, Literal

Boundary = Literal["provider", "sandbox", "tool", "grader", "rollout"]


class RlpipeError(Exception):
    """Base of the errors that a user can act on."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a spec."""

    key: str
    """Full path of the option, such as `train.learning_rate`; empty for the spec as a whole."""

    problem: str
    """What is wrong and what to type instead, in one line."""

    origin: str = ""
    """Where the value came from: the command line, a recipe or a file."""

    lacking: bool = False
    """Whether the spec is right and only this machine lacks something, such as a key: a dry run
    tells of it, and goes on."""

    def under(self, key: str) -> "Finding":
        """The same, said by what holds the component at `key`."""
        return replace(self, key=f"{key}.{self.key}" if self.key else key)

    def __str__(self) -> str:
        line = f"{self.key}: {self.problem}" if self.key else self.problem
        return f"{line} [{self.origin}]" if self.origin else line


class ConfigError(RlpipeError):
    """The spec is not a valid experiment; `findings` holds every problem, not only the first."""

    def __init__(self, findings: Sequence[Finding] | str) -> None:
        found = (Finding("", findings),) if isinstance(findings, str) else tuple(findings)
        super().__init__(found)
        self.findings = found

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


class UnknownComponent(ConfigError):
    """No component of that kind is installed."""


class RunError(RlpipeError):
    """The run cannot go on, and nobody's code is at fault."""


class LimitReached(RlpipeError):
    """The run has used up what its spec allows, before there was anything to keep. No failure."""


class InfrastructureError(RlpipeError):
    """Something that the agent's code did not do. It is retried or masked, never scored."""

    boundary: ClassVar[Boundary] = "rollout"

    def __init__(
        self, message: str, *, retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        """Seconds that the service asked for before another try."""

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments are lost by the default, and errors cross process borders.
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(
    cls: type[InfrastructureError], args: tuple[object, ...], state: dict[str, object]
) -> InfrastructureError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ProviderError(InfrastructureError):
    """A model service failed."""

    boundary = "provider"


class ContextOverflow(ProviderError):
    """The conversation no longer fits the model's context."""


class TrajectoryTooLong(ContextOverflow):
    """The conversation has as many tokens as the rollout is allowed."""


class ToolError(InfrastructureError):
    """A tool's own code broke, which is not the agent's doing."""

    boundary = "tool"


class GraderError(InfrastructureError):
    """A reward could not be taken."""

    boundary = "grader"


class SandboxError(InfrastructureError):
    """A sandbox provider failed."""

    boundary = "sandbox"

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        provider: str = "",
        sandbox_id: str = "",
    ) -> None:
        super().__init__(message, retryable=retryable, retry_after=retry_after)
        self.provider = provider
        self.sandbox_id = sandbox_id


class SandboxStartError(SandboxError):
    """The sandbox never became ready."""


class SandboxUnavailable(SandboxError):
    """The provider is busy or out of reach."""


class SandboxGone(SandboxError):
    """The sandbox died, or its lifetime is over."""


class SandboxAuthError(SandboxError):
    """The provider refuses the key."""


class SandboxConfigError(SandboxError):
    """The spec asks for something that the provider lacks."""


class SandboxFileError(SandboxError):
    """A path in the sandbox cannot be read or written. The agent is told; nothing is retried."""

    Kind = Literal["not_found", "is_directory", "permission", "too_large", "io"]

    def __init__(self, path: str, kind: Kind, detail: str = "") -> None:
        words = {
            "not_found": "no such file",
            "is_directory": "is a directory",
            "permission": "permission denied",
            "too_large": "file too large",
            "io": "cannot be read or written",
        }
        super().__init__(f"{path}: {words[kind]}" + (f" ({detail})" if detail else ""))
        self.path = path
        self.kind = kind


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'learning_rate'?`, or nothing when no known word is near."""
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
