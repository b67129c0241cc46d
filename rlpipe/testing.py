"""What tests need: sandboxes that follow a script, the suite that every provider has to pass, and a
tracker that remembers.

To try a provider of your own, give the suite its fixtures (with `asyncio_mode = "auto"`):

    class TestMySandboxes(SandboxConformance):
        @pytest.fixture
        async def session(self):
            async with MySandboxes().open() as session:
                yield session

        @pytest.fixture
        async def sandbox(self, session):
            async with await session.start(MySandboxes().spec()) as sandbox:
                yield sandbox
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from pydantic import PrivateAttr

from rlpipe.errors import SandboxError, SandboxFileError, SandboxGone
from rlpipe.sandboxes._conformance import SandboxConformance
from rlpipe.sandboxes.base import (
    Capabilities,
    ExecResult,
    Sandbox,
    SandboxInfo,
    SandboxProvider,
    SandboxSession,
    SandboxSpec,
    SandboxStats,
    Status,
)
from rlpipe.trackers.base import Ending, Row, TrackedRun, Tracker, Tracking

__all__ = [
    "Call",
    "FakeSandbox",
    "FakeSandboxProvider",
    "FakeSandboxSession",
    "FakeTracker",
    "FakeTracking",
    "SandboxConformance",
    "exited",
    "script",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One execution that a fake sandbox was asked for."""

    sandbox: "FakeSandbox"
    command: tuple[str, ...] | str | None = None
    code: str | None = None
    """The program of `run_python`; exactly one of it and `command` is set."""

    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    timeout: float | None = None
    max_output: int | None = None


Respond = Callable[[Call], ExecResult]
"""The script of a fake: returns what the execution did, or raises an error in its place."""


def exited(stdout: str = "", exit_code: int = 0, stderr: str = "") -> ExecResult:
    """The result of a command that ended by itself."""
    size = len((stdout + stderr).encode())
    return ExecResult("exited", exit_code, stdout, stderr, produced_bytes=size)


def script(*steps: ExecResult | SandboxError) -> Respond:
    """Answer one execution after the other with these; an error is raised."""
    left = iter(steps)

    def respond(call: Call) -> ExecResult:
        step = next(left, None)
        if step is None:
            raise AssertionError(f"the script has no step for {call}")
        if isinstance(step, SandboxError):
            raise step
        return step

    return respond


class FakeSandbox(Sandbox):
    """A sandbox of a dictionary of files and a script."""

    def __init__(self, id: str, spec: SandboxSpec, respond: Respond) -> None:
        self.id = id
        self.spec = spec
        self.stats = SandboxStats()
        self.files: dict[str, bytes] = {}
        self.calls: list[Call] = []
        self.status: Status = "running"
        self._respond = respond

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
        words = command if isinstance(command, str) else tuple(command)
        call = Call(
            sandbox=self,
            command=words,
            cwd=cwd,
            env=dict(env or {}),
            stdin=stdin,
            timeout=timeout,
            max_output=max_output,
        )
        return await self._answer(call)

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        call = Call(sandbox=self, code=code, stdin=stdin, timeout=timeout, max_output=max_output)
        return await self._answer(call)

    async def read_file(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        await self._alive()
        if path not in self.files:
            raise SandboxFileError(path, "not_found")
        if len(self.files[path]) > max_bytes:
            raise SandboxFileError(path, "too_large")
        return self.files[path]

    async def write_file(self, path: str, data: bytes | str) -> None:
        await self._alive()
        self.files[path] = data.encode() if isinstance(data, str) else data

    async def stop(self) -> None:
        self.status = "stopped"

    async def _alive(self) -> None:
        await asyncio.sleep(0)  # as a real one, it lets others run
        if self.status == "stopped":
            raise SandboxGone("the sandbox is stopped", provider="fake", sandbox_id=self.id)

    async def _answer(self, call: Call) -> ExecResult:
        self.calls.append(call)

        async def execution() -> ExecResult:
            await self._alive()
            return self._respond(call)

        return await self.stats.count(execution())


class FakeSandboxSession(SandboxSession):
    """Starts fake sandboxes that share a script.

    `on_start` is awaited by each start: it can wait, or raise what the start shall fail with.
    """

    capabilities = Capabilities(isolation="none")

    def __init__(
        self,
        respond: Respond = lambda call: exited(),
        *,
        on_start: Callable[[SandboxSpec], Awaitable[None]] | None = None,
    ) -> None:
        self.sandboxes: list[FakeSandbox] = []
        self._respond = respond
        self._on_start = on_start
        self._numbers = count(1)

    @property
    def calls(self) -> list[Call]:
        """Every execution, by sandbox."""
        return [call for sandbox in self.sandboxes for call in sandbox.calls]

    @property
    def running(self) -> list[FakeSandbox]:
        return [sandbox for sandbox in self.sandboxes if sandbox.status == "running"]

    async def start(self, spec: SandboxSpec) -> Sandbox:
        await asyncio.sleep(0)
        if self._on_start:
            await self._on_start(spec)
        sandbox = FakeSandbox(f"fake-{next(self._numbers)}", spec, self._respond)
        self.sandboxes.append(sandbox)
        return sandbox

    async def close(self) -> None:
        for sandbox in self.sandboxes:
            await sandbox.stop()

    async def list(
        self, *, tags: Sequence[str] = (), status: Status | None = None
    ) -> list[SandboxInfo]:
        return [
            SandboxInfo(sandbox.id, sandbox.status, sandbox.spec.tags, 0.0)
            for sandbox in self.sandboxes
            if set(tags) <= set(sandbox.spec.tags) and status in (None, sandbox.status)
        ]


class FakeSandboxProvider(SandboxProvider):
    """Opens a session of fakes that was given to it, or one that answers with success."""

    kind: Literal["fake"] = "fake"
    _session: FakeSandboxSession | None = None

    @classmethod
    def of(cls, session: FakeSandboxSession) -> "FakeSandboxProvider":
        provider = cls()
        provider._session = session
        return provider

    def session(self) -> SandboxSession:
        return self._session or FakeSandboxSession()


class FakeTracking(Tracking):
    """Remembers what it is told; `fails` is asked first, and may raise."""

    where = "memory"

    def __init__(self, run: TrackedRun, fails: Callable[[str], None]) -> None:
        self.run = run
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.shown: list[tuple[int, str, list[Row]]] = []
        self.ending: Ending | None = None
        self._fails = fails

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._fails("log")
        self.metrics.append((step, dict(metrics)))

    def show(self, step: int, phase: str, rows: Sequence[Row]) -> None:
        self._fails("show")
        self.shown.append((step, phase, list(rows)))

    def close(self, ending: Ending) -> None:
        self._fails("close")
        self.ending = ending


class FakeTracker(Tracker):
    """Opens trackings that remember; `opened` has them."""

    kind: Literal["fake"] = "fake"
    _fails: Callable[[str], None] | None = None
    _opened: list[FakeTracking] = PrivateAttr(default_factory=list)

    @classmethod
    def of(cls, fails: Callable[[str], None]) -> "FakeTracker":
        """One whose every call, by its name, goes through `fails` first, `open` included."""
        tracker = cls()
        tracker._fails = fails
        return tracker

    @property
    def opened(self) -> list[FakeTracking]:
        return self._opened

    def open(self, run: TrackedRun) -> FakeTracking:
        fails = self._fails or (lambda call: None)
        fails("open")
        self._opened.append(FakeTracking(run, fails))
        return self._opened[-1]
