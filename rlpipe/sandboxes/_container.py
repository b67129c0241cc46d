"""One container: what the engine is told, and the client that stays attached until its end."""

import asyncio
import json
import math
import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import quote

from rlpipe.errors import SandboxError, SandboxGone, SandboxStartError
from rlpipe.sandboxes._agent import wire
from rlpipe.sandboxes._box import encode, pack_variables, resolve
from rlpipe.sandboxes._bridge import BOOT, Bridge, agent_program
from rlpipe.sandboxes._channel import Channel
from rlpipe.sandboxes._engine import Engine, complaint, start_error
from rlpipe.sandboxes.base import SandboxSpec

READY_SECONDS = 60.0
END_SECONDS = 10.0
LIFETIME_GRACE = 10.0
"""Seconds beyond its lifetime after which a container ends by itself, should this process hang."""

LABEL = "rlpipe"
SHARED_MEMORY = 16 << 20
OWN_MEMORY = 64 << 20
OWN_PROCESSES = 3  # agent, relay, and the process that waits for the next program
ENGINE_PROCESSES = 8  # threads of a runtime that starts a program
OPEN_FILES = 1024
USER_PROCESSES = 4096
"""Bound per user id, as runtimes want one that they may set; the bound per container is lower."""

GREETING = 6  # bytes: agent or plain, and the end of the line
PLAIN = "echo plain; timeout {seconds} cat >/dev/null; exit 0"
PREPARE = 'chmod 1777 /tmp "$3"'  # where runtimes keep the mode of the image's own folder
MAIN = 'if command -v python3 >/dev/null 2>&1; then exec python3 -s -c "$1" "$2"; fi; eval "$2"'
"""The shell's lines in a container, both of which end with their standard input: an agent where
there is a Python, and else nothing more than a process for others to be started beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """What a container is made of."""

    name: str
    spec: SandboxSpec
    user: int
    """Who programs run as."""

    session: str
    """Label of everything that one session starts."""

    image_environment: dict[str, str] = field(default_factory=dict)
    read_only: bool = True
    runtime: str | None = None

    @property
    def lifetime(self) -> float:
        return self.spec.lifetime + LIFETIME_GRACE

    @property
    def processes(self) -> int:
        """Processes and threads that the engine allows it."""
        return self.spec.pids + OWN_PROCESSES

    def environment(self) -> dict[str, str]:
        """What programs get."""
        own = {
            "HOME": self.spec.workdir,
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        return path | self.image_environment | own | dict(self.spec.env)

    def settings(self) -> bytes:
        """What the agent is told; the number of processes is the engine's to bound."""
        spec = self.spec
        numbers = wire.SETTINGS.pack(self.user, spec.memory, spec.disk, USER_PROCESSES, True)
        variables = pack_variables(self.environment())
        # Neither packages of the host nor Landlock, which the container makes needless.
        return wire.pack([numbers, encode(spec.workdir), variables, b"", b"", b""])

    def run(self, engine: Engine) -> list[str]:
        """The arguments that start it."""
        plain = PLAIN.format(seconds=math.ceil(self.lifetime))
        return [
            *("run", "--interactive", "--rm", "--pull", "never", "--name", self.name),
            *("--log-driver", "none", "--no-healthcheck", "--hostname", "sandbox"),
            *("--user", "0:0", "--workdir", "/", "--entrypoint", "sh"),
            *("--env", "PYTHONHASHSEED=0"),
            *self._isolation(engine),
            *self._limits(),
            *self._labels(),
            *(self.spec.image or "", "-c", f"{PREPARE}; {MAIN}", "sh"),
            *(BOOT, plain, self.spec.workdir),
        ]

    def _isolation(self, engine: Engine) -> list[str]:
        words = ["--cap-drop", "all", "--security-opt", "no-new-privileges"]
        if self.user:  # for the agent and the relay to give up root, before any program runs
            words += ["--cap-add", "SETUID", "--cap-add", "SETGID"]
        if self.spec.network == "none":
            words += ["--network", "none"]
        if self.runtime:
            words += ["--runtime", self.runtime]
        if engine.name == "podman":  # which would hand these on from the host, or leave unbounded
            words += ["--http-proxy=false", "--image-volume", "ignore"]
        if self.read_only:
            words += ["--read-only"]
            words += ["--read-only-tmpfs=false"] if engine.name == "podman" else []
        return words

    def _limits(self) -> list[str]:
        spec = self.spec
        shared = min(spec.disk, SHARED_MEMORY)
        # Memory file systems count as memory here, and what programs may use comes on top.
        memory = spec.memory + 2 * spec.disk + shared + OWN_MEMORY
        processes = self.processes
        tmpfs = f"rw,exec,nosuid,nodev,mode=1777,size={spec.disk}"
        user_processes = max(USER_PROCESSES, processes)
        return [
            *("--memory", f"{memory}b", "--memory-swap", f"{memory}b"),
            *("--pids-limit", str(processes), "--shm-size", f"{shared}b"),
            *("--ulimit", f"nofile={OPEN_FILES}:{OPEN_FILES}", "--ulimit", "core=0:0"),
            *("--ulimit", f"nproc={user_processes}:{user_processes}"),
            *(word for at in ("/tmp", spec.workdir) for word in ("--tmpfs", f"{at}:{tmpfs}")),
            *(() if spec.cpus is None else ("--cpus", str(spec.cpus))),
        ]

    def _labels(self) -> list[str]:
        labels = {
            LABEL: "sandbox",
            f"{LABEL}.session": self.session,
            f"{LABEL}.begun": f"{time.time():.3f}",
            f"{LABEL}.tags": json.dumps(self.spec.tags),
            **{tag_label(tag): "" for tag in self.spec.tags},
        }
        return [w for name, value in labels.items() for w in ("--label", f"{name}={value}")]


def tag_label(tag: str) -> str:
    """The label of a tag; what engines read as a separator is written as in a URL."""
    return f"{LABEL}.tag.{quote(tag, safe='/:@+')}"


class Container:
    """A container that runs, and is gone when this process is."""

    def __init__(
        self, engine: Engine, plan: ContainerPlan, on_death: Callable[[str], None]
    ) -> None:
        self.plan = plan
        self._engine = engine
        self._on_death = on_death
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._ends: list[int] = []
        self._bridge: Bridge | None = None
        self.channel: Channel

    async def start(self) -> bool:
        """Start it and wait until it is ready; whether there is an agent in it.

        Raises:
            SandboxStartError: it did not become ready; it is removed.
        """
        with tempfile.TemporaryFile() as errors:
            try:
                async with asyncio.timeout(READY_SECONDS):
                    return await self._start(errors)
            except TimeoutError:
                await self.end()
                raise SandboxStartError(
                    f"a container was not ready after {READY_SECONDS:.0f} s",
                    retryable=True,
                    provider="docker",
                ) from None
            except (OSError, EOFError, SandboxGone):
                await self.end()
                raise _failure(errors) from None
            except BaseException:
                await self.end()
                raise

    async def _start(self, errors: BinaryIO) -> bool:
        await self._spawn(errors)
        greeting = await _read(self._ends[0], GREETING)
        if greeting == b"agent\n":
            await self._meet_agent()
        elif greeting != b"plain\n":
            raise EOFError
        self._watcher = asyncio.ensure_future(self._watch())
        return greeting == b"agent\n"

    async def _spawn(self, errors: BinaryIO) -> None:
        stdin, sink = os.pipe()
        source, stdout = os.pipe()
        self._ends = [source, sink]
        try:
            self._process = await asyncio.create_subprocess_exec(
                self._engine.name,
                *self.plan.run(self._engine),
                stdin=stdin,
                stdout=stdout,
                stderr=errors,
                cwd=tempfile.gettempdir(),  # conmon leaves a file there when memory runs out
                start_new_session=True,  # what ends this process by the keyboard is not for it
            )
        finally:
            os.close(stdin)
            os.close(stdout)

    async def _meet_agent(self) -> None:
        ours, theirs = socket.socketpair()
        relay_user = self.plan.user + 1 if self.plan.user else 0
        program = agent_program(relay_user, self.plan.lifetime)
        self.channel = Channel(ours, self._on_death)
        source, sink = self._ends
        self._bridge = Bridge(theirs, source, sink, first=program)
        self._ends = []
        _, ready = self.channel.request(0, self.plan.settings(), seconds=READY_SECONDS)
        await ready

    async def _watch(self) -> None:
        assert self._process is not None
        await self._process.wait()
        self._on_death("the container ended")

    async def running(self) -> bool:
        """Whether the engine says that it runs."""
        words = "container", "inspect", "--format", "{{.State.Running}}", self.plan.name
        return (await self._engine.call(*words)).output.strip() == "true"

    async def crowded(self) -> bool:
        """Whether programs have left too little room for the engine to start one more."""
        words = "stats", "--no-stream", "--format", "{{.PIDs}}", self.plan.name
        count = (await self._engine.call(*words)).output.strip()
        return count.isdigit() and int(count) > self.plan.processes - ENGINE_PROCESSES

    async def end(self) -> None:
        """Kill and remove it; never raises."""
        if self._watcher:
            self._watcher.cancel()
        if self._bridge:
            self.channel.fail("the sandbox is stopped")
            self._bridge.close()
        while self._ends:
            os.close(self._ends.pop())
        if self._process is None:
            return
        with suppress(SandboxError, OSError):
            await self._engine.remove(self.plan.name)
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def _read(fd: int, size: int) -> bytes:
    """Read as much from a pipe, or less at its end."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(fd, resolve, ready)
        try:
            await ready
        finally:
            loop.remove_reader(fd)
        chunk = os.read(fd, size - len(data))
        if not chunk:
            break
        data += chunk
    return data


def _failure(errors: BinaryIO) -> SandboxStartError:
    errors.seek(0)
    text = complaint(errors.read().decode("utf-8", "replace"))
    return start_error(f"a container does not start: {text or 'it ended at once'}")


def names_of(containers: Sequence[dict[str, Any]]) -> list[str]:
    return [str(container["Name"]).removeprefix("/") for container in containers]
