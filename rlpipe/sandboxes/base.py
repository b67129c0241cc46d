"""What a sandbox is, whoever provides it.

What the agent's code did is a value: `ExecResult`, shown to the model and scored. What the
machinery did is an exception from `rlpipe.errors`: retried or masked, never scored. `exec` is
never repeated by anyone, since it may have had effects.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from pydantic import Field

from rlpipe.component import Component
from rlpipe.errors import Finding, SandboxConfigError, SandboxError
from rlpipe.sandboxes._python import python_command

Outcome = Literal["exited", "timeout", "output_limit", "out_of_memory", "killed"]
Status = Literal["pending", "running", "stopped"]


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command did."""

    outcome: Outcome
    exit_code: int | None
    """None unless `outcome` is `exited`; minus the signal's number for one that a signal ended."""

    stdout: str
    stderr: str
    """Undecodable bytes are replaced. Both are capped and kept whatever the outcome is."""

    truncated: bool = False
    """Whether output was dropped. A command that goes on far beyond its limit is stopped with
    `output_limit`."""

    produced_bytes: int = 0
    duration: float = 0.0
    """Seconds, measured beside the process."""

    @property
    def ok(self) -> bool:
        return self.outcome == "exited" and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox is started from."""

    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/work"
    cpus: float | None = None
    memory: int = 512 << 20
    """Bytes, summed over the processes of the sandbox."""

    disk: int = 64 << 20
    """Bytes that may be written, per writable folder."""

    pids: int = 64
    network: Literal["none", "public"] = "none"
    lifetime: float = 3600.0
    """Seconds after which the provider may stop it by itself."""

    exec_timeout: float = 30.0
    max_output: int = 1 << 20
    """Bytes of stdout and stderr together that one execution may keep."""

    tags: tuple[str, ...] = ()

    def bounds(self, timeout: float | None, max_output: int | None) -> tuple[float, int]:
        """Seconds and bytes that an execution has, where it does not say so itself."""
        seconds = self.exec_timeout if timeout is None else timeout
        return seconds, self.max_output if max_output is None else max_output


@dataclass(slots=True)
class SandboxStats:
    """Counters of one sandbox."""

    exec_count: int = 0
    exec_completed_ok: int = 0
    exec_completed_nonzero: int = 0
    exec_failures: int = 0
    """Executions that the machinery lost."""

    async def count(self, execution: Awaitable[ExecResult]) -> ExecResult:
        """Await an execution, and count it and how it went."""
        self.exec_count += 1
        try:
            result = await execution
        except SandboxError:
            self.exec_failures += 1
            raise
        if result.ok:
            self.exec_completed_ok += 1
        else:
            self.exec_completed_nonzero += 1
        return result


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One entry of a listing."""

    id: str
    status: Status
    tags: tuple[str, ...]
    age: float
    """Seconds since it was asked for."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can do."""

    isolation: Literal["vm", "container", "namespace", "landlock", "none"]
    images: bool = False
    memory_limit: bool = True
    cpu_limit: bool = False
    network: bool = False


class Sandbox(ABC):
    """One isolated machine that keeps its state between calls. Used by one rollout."""

    id: str
    spec: SandboxSpec
    stats: SandboxStats
    process: int | None = None
    """Id of the process of this machine that it lives and dies with, where it has one."""

    @abstractmethod
    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        """Run a command to its end; a string is given to `bash -c`.

        `timeout` is in seconds. An agent of rlpipe's in the sandbox does not count the time that a
        command waits for a busy processor, up to five times its limit; other providers do.

        Raises:
            SandboxError: the machinery failed; whether the command ran is unknown.
        """

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        """Run `code` as a fresh `__main__` program.

        `stdin` reaches the program only once it runs: it is never in an argument, an environment
        variable, a file, or memory that the program starts with.
        """
        command, stdin = python_command(code, stdin)
        return await self.exec(command, stdin=stdin, timeout=timeout, max_output=max_output)

    async def preload(self, code: str) -> bool:
        """Have later Python programs begin with what `code` makes, such as modules.

        It is run once, where nothing guards it, so it must be the caller's own. Asking again for
        the same code costs nothing.

        Returns whether that is so: a provider that starts each program anew cannot.

        Raises:
            SandboxError: the machinery failed.
        """
        return False

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        """Read a file; a relative path starts at `spec.workdir`.

        Raises:
            SandboxFileError: it is missing, a directory, forbidden or larger than `max_bytes`.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file and make its parent folders.

        Raises:
            SandboxFileError: the path is forbidden, a directory, or the disk is full.
        """

    async def reset(self) -> None:
        """Make it as new where a program ran in it: without its processes, files and changes.

        Raises:
            SandboxConfigError: this one cannot be made new; those that a pool hands out can.
        """
        if self.stats.exec_count:
            raise SandboxConfigError(
                f"sandbox {self.id} was used and cannot be made new", sandbox_id=self.id
            )

    def declare_clean(self) -> None:
        """Take it as new: whoever ran something in it answers for there being nothing left."""
        return

    @abstractmethod
    async def stop(self) -> None:
        """End it and everything in it. May be called again; is not cancelled; never raises."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()


class SandboxSession(ABC):
    """An open provider: it starts sandboxes, and closing it stops all of them."""

    capabilities: Capabilities

    @abstractmethod
    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox and wait until it is ready.

        Raises:
            SandboxError: it did not start; nothing is left behind.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop every sandbox that it started, and each that is still being started."""

    @abstractmethod
    async def list(
        self, *, tags: Sequence[str] = (), status: Status | None = None
    ) -> list[SandboxInfo]:
        """The sandboxes that carry all of `tags`.

        Of every run where the provider can tell; of this session where nothing outlives it.
        """

    async def remove(self, id: str) -> bool:
        """End a sandbox that this or another run started; whether that is done.

        A provider whose sandboxes can outlive their run has to implement it.
        """
        return False

    async def sweep(self, tags: Sequence[str]) -> int:
        """End the sandboxes that carry all of `tags`, whichever run started them; return how many.

        Raises:
            SandboxError: the provider is out of reach.
        """
        left = [info for info in await self.list(tags=tags) if info.status != "stopped"]
        return sum([await self.remove(info.id) for info in left])


class SandboxProvider(Component):
    """Opens sandboxes. The fields are what every provider is told."""

    image: str | None = None
    """Container image; a provider without images records it."""

    tags: tuple[str, ...] = ()
    """Labels of every sandbox of the run, beside its own: `rlpipe`, `run:<folder>`,
    `project:<RLPIPE_PROJECT or the experiment's name>`, `training-run:<TRAINING_RUN_ID or local>`,
    `slurm-job:<SLURM_JOB_ID or interactive>`, `model:<policy>` and `env:<RLPIPE_ENV or dev>`."""

    env: dict[str, str] = Field({})
    """Environment of the sandbox. The host's own is never passed on."""

    cpus: float | None = Field(None, gt=0)
    """CPU cores, where the provider can bound them."""

    memory_mb: int = Field(512, ge=64)
    """Memory of the whole sandbox."""

    disk_mb: int = Field(64, ge=1)
    """Space that may be written."""

    pids: int = Field(64, ge=8)
    """Processes and threads at once."""

    network: Literal["none", "public"] = "none"
    """`none`, or `public` for the open internet where the provider allows it."""

    lifetime: float = Field(3600.0, gt=0)
    """Seconds after which a sandbox ends by itself."""

    exec_timeout: float = Field(30.0, gt=0)
    """Seconds for one execution, unless a tool sets its own."""

    max_output_kb: int = Field(1024, ge=1)
    """Output that one execution may keep."""

    warm: int = Field(2, ge=0)
    """Sandboxes that are kept started ahead of need."""

    max_live: int = Field(256, ge=1)
    """Sandboxes alive at once."""

    max_starting: int = Field(4, ge=1)
    """Sandboxes being started at once."""

    max_starts_per_second: float | None = Field(None, gt=0)
    """Starts that are begun in a second, for a provider that refuses more; null sets no bound."""

    def spec(self) -> SandboxSpec:
        return SandboxSpec(
            image=self.image,
            env=self.env,
            cpus=self.cpus,
            memory=self.memory_mb << 20,
            disk=self.disk_mb << 20,
            pids=self.pids,
            network=self.network,
            lifetime=self.lifetime,
            exec_timeout=self.exec_timeout,
            max_output=self.max_output_kb << 10,
            tags=self.tags,
        )

    def warnings(self) -> list[str]:
        """What a user should know before trusting these sandboxes; kept in the run's manifest."""
        return []

    def check_online(self) -> list[Finding]:
        """Start one sandbox and run a command in it."""
        import asyncio

        async def attempt() -> None:
            async with self.open() as session, await session.start(self.spec()) as sandbox:
                await sandbox.exec(["true"])

        try:
            asyncio.run(attempt())
        except SandboxError as error:
            return [Finding("", f"no sandbox could be started: {error}")]
        return []

    def session(self) -> SandboxSession:
        """What starts the sandboxes of one run. Nothing is started yet."""
        raise NotImplementedError

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SandboxSession]:
        """Open the provider; leaving the context stops every sandbox that it started."""
        import asyncio

        session = self.session()
        try:
            yield session
        finally:
            await asyncio.shield(session.close())
