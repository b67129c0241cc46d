"""Sandboxes on this machine: bubblewrap, an agent inside, and a Python that only has to fork.

Not covered: a hole in the kernel, time and load as side channels, and kernel memory such as full
socket buffers. Memory is summed over processes: what forks share counts for each of them, which is
some megabytes for one of Python's. Code whose author is out to break a kernel belongs into a
virtual machine.
"""

import os
import platform
from typing import Literal

from rlpipe.errors import Finding
from rlpipe.sandboxes import _bwrap, _seccomp
from rlpipe.sandboxes.base import SandboxProvider, SandboxSession


class Local(SandboxProvider):
    """Sandboxes on this machine."""

    kind: Literal["local"] = "local"

    isolation: Literal["bwrap", "landlock", "none"] = "bwrap"
    """How programs are kept from this machine. There is no silent fallback to a weaker one.

    `landlock` needs no namespaces: programs read `/usr`, the interpreter and `packages`, write one
    folder below the temporary folder, and have no sockets. Not covered: they can find out names and
    sizes of other files; the space that they take is bounded for each file only, and files' kernel
    memory is not counted; unless you are root, processes are counted only now and then, so that a
    fork bomb makes some hundreds before it is ended; before Linux 6.12 they can signal your other
    processes. `none` runs them as plain processes of yours."""

    python: str | None = None
    """Interpreter in the sandbox; by default the system's, else the one that runs rlpipe."""

    packages: str | None = None
    """Folder of installed packages, readable by all, that programs in the sandbox can import."""

    def check(self) -> list[Finding]:
        found = super().check()
        if self.isolation == "bwrap" and _bwrap.find_bwrap() is None:
            found.append(Finding("kind", _bwrap.INSTALL))
        if self.isolation == "landlock" and (lack := _lack_for_landlock()):
            found.append(Finding("isolation", f"{lack}; use 'bwrap'"))
        if self.packages is not None and not os.path.isdir(self.packages):
            found.append(Finding("packages", f"no folder at {self.packages!r}"))
        if not _bwrap.interpreters(self.python):
            found.append(Finding("python", f"no program at {self.python!r}"))
        if self.network != "none":
            found.append(Finding("network", "a local sandbox has none; use 'none'"))
        if self.cpus is not None:
            found.append(Finding("cpus", "a local sandbox cannot bound them; leave it null"))
        return found

    def warnings(self) -> list[str]:
        missing = {
            "landlock": "isolation: landlock bounds neither disk space nor the view of file names; "
            "bwrap does",
            "none": "isolation: none lets programs read and change what you can; bwrap does not",
        }
        found = [missing[self.isolation]] if self.isolation in missing else []
        if self.isolation == "bwrap" and _seccomp.build() is None:
            found.append(
                f"no system calls are denied on {platform.machine()}, for which there is no filter"
            )
        return found

    def session(self) -> SandboxSession:
        from rlpipe.sandboxes._local import LocalSession

        return LocalSession(self)


def _lack_for_landlock() -> str | None:
    """What is missing here for programs to be confined by it."""
    from rlpipe.sandboxes._agent import confine  # loads ctypes, which no other choice needs

    if not confine.available():
        return "this kernel has no Landlock"
    if _seccomp.build(sockets=False) is None:
        return f"sockets cannot be denied on {platform.machine()}"
    return None
