"""One agent and the processes around it: started, configured, and ended without a trace."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from rlpipe.errors import SandboxGone, SandboxStartError
from rlpipe.sandboxes import _bwrap, _processes, _seccomp
from rlpipe.sandboxes._agent import wire
from rlpipe.sandboxes._bwrap import Interpreter, Layout
from rlpipe.sandboxes._channel import Channel
from rlpipe.sandboxes.base import SandboxSpec

READY_SECONDS = 30.0
END_SECONDS = 5.0
BIND_EARLY = {"LD_BIND_NOW": "1"}  # once for the agent, not in each of its forks


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How an agent is started."""

    spec: SandboxSpec
    interpreter: Interpreter
    layout: Layout | None
    """None without namespaces."""

    packages: str | None
    user: int
    """The agent's user id in the sandbox; 0 leaves it as it is."""

    readable: tuple[str, ...] = ()
    """What programs may read where Landlock confines them; without any, it does not."""

    def environment(self) -> dict[str, str]:
        """What the programs get beside `spec.env`; never anything of the host's."""
        own = {
            "PATH": self.interpreter.search_path,
            "HOME": self.spec.workdir,
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if self.readable:
            own["TMPDIR"] = self.spec.workdir  # the only folder that they may write
        return own | ({"PYTHONPATH": self.packages} if self.packages else {})

    def settings(self) -> bytes:
        spec = self.spec
        numbers = wire.SETTINGS.pack(
            self.user, spec.memory, spec.disk, spec.pids, self.layout is not None
        )
        variables = pack_variables(self.environment() | dict(spec.env))
        packages = encode(self.packages or "")
        readable = wire.pack(map(encode, self.readable))
        filter = (_seccomp.build(sockets=False) or b"") if self.readable else b""
        return wire.pack([numbers, encode(spec.workdir), variables, packages, readable, filter])


def encode(text: str) -> bytes:
    """Bytes of a name; also of what no file name can hold, which then is not found."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def pack_variables(variables: Mapping[str, str]) -> bytes:
    return wire.pack(encode(f"{name}={value}") for name, value in variables.items())


class Box:
    """A running agent."""

    def __init__(self, plan: Plan, on_death: Callable[[str], None]) -> None:
        self.plan = plan
        self._on_death = on_death
        self.pid: int | None = None
        """Of the agent."""

        self._agent: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.channel: Channel

    async def start(self) -> None:
        """Start the agent and wait until it is ready.

        Raises:
            SandboxStartError: it did not become ready; it is ended.
        """
        try:
            # Not a pipe: bubblewrap would give up half-way if this process died and could not read.
            information = os.memfd_create("rlpipe-information")
            try:
                self._spawn(information)
                await self._configure()
                self._find_agent(os.pread(information, 1024, 0))
            finally:
                os.close(information)
        except OSError as error:
            await self.end()
            raise _bwrap.start_error(str(error)) from error
        except BaseException:
            await self.end()
            raise

    def _spawn(self, information: int) -> None:
        """Start the process; bubblewrap writes the agent's process id to `information`."""
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, self._on_death)
        with theirs, ExitStack() as given:
            this_process = os.pidfd_open(os.getpid())
            given.callback(os.close, this_process)
            seccomp = _bwrap.seccomp_pipe() if self.plan.layout else None
            if seccomp is not None:
                given.callback(os.close, seccomp)
            ends = theirs.fileno(), this_process
            told = [information, seccomp] if self.plan.layout else []
            self._process = subprocess.Popen(
                self._command(ends, information, seccomp),
                pass_fds=[*ends, *(fd for fd in told if fd is not None)],
                env=self.plan.environment() | BIND_EARLY,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )

    def _command(self, ends: tuple[int, int], info: int, seccomp: int | None) -> list[str]:
        words = map(str, ends)
        if self.plan.layout:
            return self.plan.layout.command(_bwrap.RUN_AGENT, *words, info=info, seccomp=seccomp)
        folder, cache = str(_bwrap.AGENT.parent), _bwrap.compiled_agent()
        flags = _bwrap.PYTHON_FLAGS
        return [self.plan.interpreter.path, *flags, _bwrap.RUN_AGENT, folder, cache, *words]

    async def _configure(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            _, ready = self.channel.request(0, self.plan.settings(), seconds=READY_SECONDS)
            try:
                async with asyncio.timeout(READY_SECONDS):
                    await ready
            except SandboxGone:
                await self._wait()
                os.set_blocking(errors.fileno(), False)
                text = (errors.read() or b"").decode("utf-8", "replace")
                raise _bwrap.start_error(text) from None
            except TimeoutError:
                raise SandboxStartError(
                    f"a local sandbox was not ready after {READY_SECONDS:.0f} s",
                    retryable=True,
                    provider="local",
                ) from None

    def _find_agent(self, information: bytes) -> None:
        """Learn the agent's process, which bubblewrap told before it ran the agent."""
        assert self._process is not None
        self.pid = self._process.pid
        if information:
            self.pid = int(json.loads(information)["child-pid"])
            self._agent = os.pidfd_open(self.pid)

    async def end(self) -> None:
        """Kill the agent, and with it everything that it ever started; then wait for it."""
        if hasattr(self, "channel"):
            self.channel.fail("the sandbox is stopped")
        if self._process is not None:
            # bubblewrap may not kill an agent that has another user id, so this does it. Where
            # there is none yet, it finds the channel closed and ends by itself.
            self._kill_agent()
            await self._wait()
        if self.plan.layout is None:
            # The agent has done so, unless a program has killed it.
            await asyncio.to_thread(shutil.rmtree, self.plan.spec.workdir, ignore_errors=True)

    def _kill_agent(self) -> None:
        if self._agent is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._agent, signal.SIGKILL)
            os.close(self._agent)
            self._agent = None

    async def _wait(self) -> None:
        """Wait for the process, which is ending; without patience for one that is not."""
        process = self._process
        assert process is not None
        if process.poll() is not None:
            return
        try:
            watched = os.pidfd_open(process.pid)
        except OSError:  # there is no descriptor left, and the agent is dead
            process.kill()
            process.wait()
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(watched, resolve, ended)
        try:
            async with asyncio.timeout(END_SECONDS):
                await ended
        except TimeoutError:
            if whole := _processes.identity(process.pid):
                _processes.end(whole)
        finally:
            loop.remove_reader(watched)
            os.close(watched)
        process.wait()


def resolve(future: asyncio.Future[None]) -> None:
    """Tell who waits, unless they no longer do."""
    if not future.done():
        future.set_result(None)


def name_folder() -> str:
    """A working folder for a sandbox without isolation. Its agent makes it, and removes it even
    when this process is killed."""
    return os.path.join(tempfile.gettempdir(), f"rlpipe-{secrets.token_hex(8)}")
