"""Sandboxes in containers of Docker or Podman, driven by the engine's own command line.

In an image with a Python (3.9 or newer) an agent runs programs, as in a local sandbox. In any
other each execution is one call of the engine: slower, with the time counted that a program waits
for a busy processor, and with `killed` for what used up the memory. A container keeps nothing: its
root is read-only, and what can be written is memory.
"""

from typing import Literal

from pydantic import Field

from rlpipe.errors import Finding
from rlpipe.sandboxes import _engine
from rlpipe.sandboxes.base import SandboxProvider, SandboxSession


class Docker(SandboxProvider):
    """Sandboxes in containers."""

    kind: Literal["docker"] = "docker"

    engine: Literal["auto", "docker", "podman"] = "auto"
    """The program to call; by default Docker where it answers, else Podman."""

    runtime: str | None = None
    """OCI runtime, such as `runsc` (gVisor) or `kata`; by default the engine's own."""

    user: int | None = Field(None, ge=0, le=1 << 20)
    """User id of the agent's programs; by default each sandbox has one of its own. 0 is root
    without capabilities, which can end its own sandbox."""

    read_only: bool = True
    """Whether all but the working folder and /tmp is read-only. What is written elsewhere lies on
    the host's disk, without a bound."""

    def check(self) -> list[Finding]:
        found = super().check()
        if not self.image:
            found.append(Finding("image", "a container needs one, such as python:3.12-slim"))
        if not _engine.installed(self.engine):
            key = "kind" if self.engine == "auto" else "engine"
            found.append(Finding(key, _engine.missing(self.engine)))
        return found

    def session(self) -> SandboxSession:
        from rlpipe.sandboxes._docker import DockerSession

        return DockerSession(self)
