"""An action that the model may take in its sandbox."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from rlpipe.component import Component, field_docs
from rlpipe.sandboxes.base import ExecResult, Sandbox


class Arguments(BaseModel):
    """What the model must pass. Its fields and their docstrings are the function's schema."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the model is shown after a call."""

    text: str
    submission: str | None = None
    """Ends the rollout: the answer that is to be judged."""


class Tool(Component):
    """An action that the model may take in its sandbox."""

    Arguments: ClassVar[type[Arguments]]
    submits: ClassVar[bool] = False
    """Whether a call ends the rollout with an answer."""

    @abstractmethod
    async def call(self, sandbox: Sandbox, arguments: Any) -> Observation:
        """Do it.

        Raises:
            SandboxFileError: the agent named a bad path; it is told so.
            SandboxError: the machinery failed; the rollout is retried or masked.
        """

    def function(self, name: str) -> dict[str, Any]:
        """The function as the model sees it, in OpenAI's form."""
        parameters = self.Arguments.model_json_schema()
        parameters.pop("title", None)
        parameters.pop("description", None)
        said = field_docs(self.Arguments)
        for argument, field in parameters.get("properties", {}).items():
            field.pop("title", None)
            if argument in said:
                field["description"] = said[argument]
        description = (self.__doc__ or "").strip()
        return {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters},
        }


class OutputTool(Tool):
    """A tool that shows the model text which may be long."""

    max_output: int = Field(8192, ge=64)
    """Characters of output that the model is shown."""

    keep: Literal["head", "tail"] = "tail"
    """Which end of an output that is too long the model is shown."""

    def cut(self, text: str) -> str:
        """Keep one end of an output that is too long, and mark the cut."""
        dropped = len(text) - self.max_output
        if dropped <= 0:
            return text
        mark = f"[{dropped} characters cut]"
        if self.keep == "head":
            return f"{text[: self.max_output]}\n{mark}"
        return f"{mark}\n{text[-self.max_output :]}"


class ProgramTool(OutputTool):
    """A tool that runs a program of the model's."""

    timeout: float = Field(60.0, gt=0)
    """Seconds for one call; when they are over, everything that it started is killed."""


def describe(result: ExecResult, timeout: float) -> str:
    """What an execution did, for the model: its output, or how it failed and then its output."""
    ending = {
        "exited": f"Error (exit code {result.exit_code})",
        "timeout": f"Error: timed out after {timeout:g} seconds",
        "output_limit": "Error: stopped, too much output",
        "out_of_memory": "Error: stopped, out of memory",
        "killed": "Error: killed",
    }
    if result.ok:
        return result.stdout
    parts = (ending[result.outcome], result.stdout.rstrip("\n"), result.stderr.rstrip("\n"))
    return "\n".join(part for part in parts if part)
