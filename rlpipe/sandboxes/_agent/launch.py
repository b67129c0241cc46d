"""Starting programs: a plain one is spawned, a Python one is a fork of the agent."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # like _socket: the public halves cost 20 ms
import _socket
import os
import resource
import struct

from .program import HANDOVER, await_program, perform, standard_end
from .system import OPEN_FILES, SIGKILL, Settings, set_limit, state_of, variables, within
from .wire import EXEC, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .confine import Confinement

SPARE_BYTES = 100_000  # the socket to a waiting process takes no larger program in one message
IGNORED_BY_AGENT = (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGINT)


class Pipes:
    """Where the agent reads what a program writes, and the program's ends."""

    def __init__(self) -> None:
        self.output, self.output_end = os.pipe()
        try:
            self.error, self.error_end = os.pipe()
        except OSError:
            close(self.output, self.output_end)
            raise
        os.set_blocking(self.output, False)
        os.set_blocking(self.error, False)


def close(*files: int) -> None:
    for fd in files:
        os.close(fd)


def become(data: bytes) -> NoReturn:
    """Turn this process into a plain program."""
    folder, environment, *command = unpack(data)
    for number in IGNORED_BY_AGENT:
        _signal.signal(number, _signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvpe(command[0], command, {**os.environb, **variables(environment)})
    except (OSError, ValueError, IndexError) as error:
        status, text = refusal(error)
        os.write(2, text.encode("utf-8", "backslashreplace"))
        os._exit(status)


def refusal(error: Exception) -> tuple[int, str]:
    """Exit status and message, as a shell has them, for a program that did not start."""
    name = getattr(error, "filename", None)
    reason = getattr(error, "strerror", None) or str(error)
    subject = f"{os.fsdecode(name)}: " if name else ""
    return 127 if isinstance(error, FileNotFoundError) else 126, f"{subject}{reason}\n"


class Spare:
    """A forked process that waits for its program."""

    def __init__(self, pid: int, pipes: Pipes, channel: _socket.socket) -> None:
        self.pid = pid
        self.pipes = pipes
        self.channel = channel


class Launcher:
    """Starts programs, and keeps one process forked ahead of need."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.spare: Spare | None = None
        self.wants_spare = True
        self.confinement: Confinement | None = None
        if settings.readable:
            from .confine import Confinement

            self.confinement = Confinement(settings.readable, settings.home, settings.filter)

    def launch(self, operation: int, data: bytes, limit: int, file: int) -> tuple[int, Pipes]:
        """Start a program; return its process and pipes, of which only the agent's ends are open.

        `file` is a descriptor for the program's standard end, or negative.
        """
        spare = self._hand_over(operation, data, limit, file)
        if spare:
            return spare.pid, spare.pipes
        pipes = Pipes()
        try:
            if operation == EXEC and self.confinement is None:
                return self._spawn(data, file, pipes), pipes
            return self._fork(operation, data, limit, file, pipes), pipes
        except BaseException:
            close(pipes.output, pipes.error)
            raise
        finally:
            close(pipes.output_end, pipes.error_end)

    def prefork(self) -> None:
        """Fork the process that waits; without room for it there is none until the next launch."""
        self.wants_spare = False
        if self.spare:  # one that was not ready yet, or that a program has stopped
            return
        try:
            pipes = Pipes()
        except OSError:
            return
        channel, end = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(end, pipes)
            self.spare = Spare(pid, pipes, channel)
        except OSError:
            close(pipes.output, pipes.error)
        finally:
            end.close()
            close(pipes.output_end, pipes.error_end)

    def lose(self, pid: int) -> None:
        """Forget the waiting process if it was that one that ended."""
        if self.spare and pid == self.spare.pid:
            close(self.spare.pipes.output, self.spare.pipes.error)
            self.spare = None

    def drop_spare(self) -> None:
        """End the waiting process, which was forked from what the agent was before."""
        if self.spare:
            os.kill(self.spare.pid, SIGKILL)
            self.lose(self.spare.pid)
        self.wants_spare = True

    def _hand_over(self, operation: int, data: bytes, limit: int, file: int) -> Spare | None:
        """Give the waiting process its program; None where it has to be forked."""
        self.wants_spare = self.wants_spare or operation != EXEC
        spare = self.spare
        if operation == EXEC or spare is None or len(data) > SPARE_BYTES:
            return None
        if state_of(spare.pid) != b"S":
            # An earlier program has killed or stopped it, unless it is only just being forked.
            return None
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", file))]
        try:
            parts = [HANDOVER.pack(operation, limit), data]
            spare.channel.sendmsg(parts, rights if file >= 0 else [], _socket.MSG_DONTWAIT)
        except OSError:
            return None
        self.spare = None
        return spare

    def _spawn(self, data: bytes, file: int, pipes: Pipes) -> int:
        folder, environment, *command = unpack(data)
        os.chdir(folder)
        ends = (file if file >= 0 else self.nothing, pipes.output_end, pipes.error_end)
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        memory = within(hard, self.settings.memory)
        # The agent has no memory limit of its own; a program inherits the soft one from birth.
        resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
        try:
            pid = os.posix_spawnp(
                command[0],
                command,
                {**os.environb, **variables(environment)},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate(ends)],
                setsid=True,
                setsigdef=IGNORED_BY_AGENT,
            )
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        resource.prlimit(pid, resource.RLIMIT_AS, (memory, memory))
        return pid

    def _fork(self, operation: int, data: bytes, limit: int, file: int, pipes: Pipes) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self._leave(pipes)
                if file >= 0:
                    os.dup2(file, standard_end(operation))
                os.closerange(3, OPEN_FILES)
                if operation == EXEC:
                    become(data)
                os._exit(perform(operation, data, limit))
            finally:
                os._exit(1)
        return pid

    def _become(self, end: _socket.socket, pipes: Pipes) -> None:
        try:
            self._leave(pipes)
            os._exit(await_program(end))
        finally:
            os._exit(1)

    def _leave(self, pipes: Pipes) -> None:
        """Turn a fork of the agent into a plain process."""
        os.setsid()
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        os.dup2(self.nothing, 0)
        os.dup2(pipes.output_end, 1)
        os.dup2(pipes.error_end, 2)
        set_limit(resource.RLIMIT_AS, self.settings.memory)
        os.chdir(self.settings.home)
        if self.confinement:
            self.confinement.enter()
