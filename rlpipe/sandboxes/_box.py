"""One agent and the processes around it: started, configured, and ended without a trace."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from rlpipe.errors import SandboxGone, SandboxStartError
from rlpipe.sandboxes import _bwrap
from rlpipe.sandboxes._agent import wire
from rlpipe.sandboxes._bwrap import Interpreter, Layout
from rlpipe.sandboxes._channel import Channel
from rlpipe.sandboxes.base import SandboxSpec

READY_SECONDS = 30.0
END_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How an agent is started."""

    spec: SandboxSpec
    interpreter: Interpreter
    layout: Layout | None
    """None without isolation."""

    packages: str | None
    user: int
    """The agent's user id in the sandbox; 0 leaves it as it is."""

    def environment(self) -> dict[str, str]:
        """What the programs get beside `spec.env`; never anything of the host's."""
        own = {
            "PATH": self.interpreter.search_path,
            "HOME": self.spec.workdir,
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return own | ({"PYTHONPATH": self.packages} if self.packages else {})

    def settings(self) -> bytes:
        spec = self.spec
        numbers = wire.SETTINGS.pack(
            self.user, spec.memory, spec.disk, spec.pids, self.layout is not None
        )
        variables = pack_variables(self.environment() | dict(spec.env))
        packages = encode(self.packages or "")
        return wire.pack([numbers, encode(spec.workdir), variables, packages])


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
        self._agent: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.channel: Channel

    async def start(self) -> None:
        """Start the agent and wait until it is ready.

        Raises:
            SandboxStartError: it did not become ready; it is ended.
        """
        try:
            with self._spawn() as information:
                await self._configure()
                self._agent = _agent_process(information.read())
        except OSError as error:
            await self.end()
            raise _bwrap.start_error(str(error)) from error
        except BaseException:
            await self.end()
            raise

    def _spawn(self) -> BinaryIO:
        """Start the process; return where bubblewrap tells the agent's process id."""
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, self._on_death)
        read_end, info = os.pipe()
        seccomp = _bwrap.seccomp_pipe() if self.plan.layout else None
        inherited = [fd for fd in (theirs.fileno(), info, seccomp) if fd is not None]
        try:
            # From this thread, whose end is the sandbox's too: it is told of its parent's death.
            self._process = subprocess.Popen(
                self._command(theirs.fileno(), info, seccomp),
                pass_fds=inherited if self.plan.layout else inherited[:1],
                env=self.plan.environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            theirs.close()
            for fd in inherited[1:]:
                os.close(fd)
        return open(read_end, "rb")

    def _command(self, control: int, info: int, seccomp: int | None) -> list[str]:
        if self.plan.layout:
            return self.plan.layout.command(
                _bwrap.RUN_AGENT, str(control), info=info, seccomp=seccomp
            )
        folder, cache = str(_bwrap.AGENT.parent), _bwrap.compiled_agent()
        flags = _bwrap.PYTHON_FLAGS
        return [self.plan.interpreter.path, *flags, _bwrap.RUN_AGENT, folder, cache, str(control)]

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

    async def end(self) -> None:
        """Kill the agent, and with it everything that it ever started; then wait for it."""
        if hasattr(self, "channel"):
            self.channel.fail("the sandbox is stopped")
        if self._process is not None:
            # bubblewrap may not kill an agent that has another user id, so this does it.
            self._kill_agent()
            if self.plan.layout is not None and self._agent is None:
                self._process.kill()
            await self._wait()
        if self.plan.layout is None:
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
            process.kill()
        finally:
            loop.remove_reader(watched)
            os.close(watched)
        process.wait()


def resolve(future: asyncio.Future[None]) -> None:
    """Tell who waits, unless they no longer do."""
    if not future.done():
        future.set_result(None)


def _agent_process(information: bytes) -> int | None:
    """A descriptor of the agent's process, which bubblewrap tells before it runs the agent."""
    return os.pidfd_open(json.loads(information)["child-pid"]) if information else None


def make_folder() -> str:
    """A working folder for a sandbox without isolation."""
    return tempfile.mkdtemp(prefix="rlpipe-")
