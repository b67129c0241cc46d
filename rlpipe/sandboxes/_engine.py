"""The command line of Docker or Podman: found, asked, and its complaints put in one sentence."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from rlpipe.errors import SandboxConfigError, SandboxStartError, SandboxUnavailable

EngineName = Literal["docker", "podman"]
ENGINES: tuple[EngineName, ...] = ("docker", "podman")
INSTALL = "needs a container engine: install Docker (docker.com) or Podman (podman.io)"
PROBE_SECONDS = 30.0
CALL_SECONDS = 120.0
PULL_SECONDS = 1800.0
MISSING = ("no such image", "image not known", "no such object")
BESIDE = ("Run 'docker", "See 'docker", "time=")
"""Lines of a client that come after the reason: hints, and its own log."""

GONE = ("no such container", "no container with", "no such object", "already in progress")
TEMPORARY = ("timeout", "timed out", "temporarily", "connection", "too many", "unavailable", "eof")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call of the engine's program printed."""

    status: int
    output: str
    error: str

    @property
    def complaint(self) -> str:
        """The last line of what it printed as an error, where the reason is."""
        return complaint(self.error) or f"exit status {self.status}"

    @property
    def only_missing(self) -> bool:
        """Whether all that it complained of is that something is gone, or is just going."""
        lines = [line.lower() for line in self.error.splitlines() if line.strip()]
        return bool(lines) and all(any(gone in line for gone in GONE) for line in lines)


def complaint(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(BESIDE)] or lines
    return lines[-1].removeprefix("Error: ").removeprefix("docker: ") if lines else ""


def installed(choice: Literal["auto", "docker", "podman"]) -> list[EngineName]:
    """The engines of that choice whose program is here."""
    wanted = [name for name in ENGINES if choice in ("auto", name)]
    return [name for name in wanted if shutil.which(name)]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that answers."""

    name: EngineName

    async def call(self, *arguments: str, seconds: float = CALL_SECONDS) -> Answer:
        """Run its program.

        Raises:
            SandboxUnavailable: it did not end in time.
        """
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
            process = await asyncio.create_subprocess_exec(
                self.name,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=error,
                cwd=tempfile.gettempdir(),  # conmon leaves a file there when memory runs out
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(seconds):
                    status = await process.wait()
            except TimeoutError:
                raise SandboxUnavailable(
                    f"'{self.name} {arguments[0]}' took more than {seconds:.0f} s",
                    retryable=True,
                    provider="docker",
                ) from None
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
            return Answer(status, _text(output), _text(error))

    async def image_environment(self, image: str) -> dict[str, str]:
        """The variables that an image sets; it is pulled when it is not here.

        Raises:
            SandboxStartError: it is not here and cannot be pulled.
        """
        answer = await self.call("image", "inspect", image)
        if answer.status and any(word in answer.error.lower() for word in MISSING):
            await self._pull(image)
            answer = await self.call("image", "inspect", image)
        if answer.status:
            raise start_error(f"the image {image!r} cannot be used: {answer.complaint}")
        variables = json.loads(answer.output)[0]["Config"].get("Env") or []
        return dict(variable.split("=", 1) for variable in variables if "=" in variable)

    async def _pull(self, image: str) -> None:
        answer = await self.call("pull", "--quiet", image, seconds=PULL_SECONDS)
        if answer.status:
            raise start_error(
                f"there is no image {image!r} here and it cannot be pulled: {answer.complaint}"
            )

    async def containers(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """What the engine knows of the containers that carry all of the labels."""
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        found = await self.call("ps", "--all", "--quiet", "--no-trunc", *filters)
        if found.status:
            raise _silent(self.name, found)
        ids = found.output.split()
        if not ids:
            return []
        # One that ended meanwhile makes the status an error; the others are printed all the same.
        answer = await self.call("container", "inspect", *ids)
        if answer.status and not answer.only_missing:
            raise _silent(self.name, answer)
        return list(json.loads(answer.output or "[]"))

    async def remove(self, *names: str) -> None:
        """Kill and remove containers; those that are gone already are no error.

        Raises:
            SandboxUnavailable: one may still be there.
        """
        now = ["--time", "0", "--ignore"] if self.name == "podman" else []
        answer = await self.call("rm", "--force", "--volumes", *now, *names)
        if answer.status and not answer.only_missing:
            raise _silent(self.name, answer)


async def find_engine(choice: Literal["auto", "docker", "podman"]) -> Engine:
    """The first engine of that choice that answers.

    Raises:
        SandboxConfigError: there is no program of that name.
        SandboxUnavailable: none answers.
    """
    names = installed(choice)
    if not names:
        raise SandboxConfigError(missing(choice), provider="docker")
    for name in names:
        # Of docker's two halves only the server's answer tells that it runs.
        asked = "{{.Server.Version}}" if name == "docker" else "{{.Client.Version}}"
        engine = Engine(name)
        answer = await engine.call("version", "--format", asked, seconds=PROBE_SECONDS)
        if answer.status == 0:
            return engine
    raise _silent(name, answer)


def missing(choice: str) -> str:
    if choice == "auto":
        return f"kind docker {INSTALL}"
    return f"there is no program {choice!r} on PATH; kind docker {INSTALL}"


def start_error(message: str) -> SandboxStartError:
    temporary = any(word in message.lower() for word in TEMPORARY)
    return SandboxStartError(message, retryable=temporary, provider="docker")


def _silent(name: str, answer: Answer) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"{name} does not answer: {answer.complaint}", retryable=True, provider="docker"
    )


def _text(file: Any) -> str:
    file.seek(0, os.SEEK_SET)
    data: bytes = file.read()
    return data.decode("utf-8", "replace")
