"""Landlock and seccomp for one process and all that it starts, where there are no namespaces."""

from __future__ import annotations

import ctypes
import os
import stat
import struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION, PATH_BENEATH = 1, 1
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER_MODE = 38, 22, 2
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
FIRST_RIGHTS, REFER, TRUNCATE, IOCTL_DEVICE = (1 << 13) - 1, 1 << 13, 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
TCP, ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3
DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom")


def available() -> bool:
    """Whether this kernel has Landlock, and lets it be used."""
    return int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)) > 0


class Confinement:
    """What programs may do with files; prepared once, entered by each of them."""

    def __init__(self, readable: list[bytes], writable: bytes, filter: bytes) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.version = self.call(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)
        self.handled = FIRST_RIGHTS
        for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEVICE)):
            self.handled |= right if self.version >= since else 0
        # Devices of its own making would show a disk past every rule.
        own = self.handled & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEVICE)
        rights = dict.fromkeys(readable, READ) | dict.fromkeys(DEVICES, OF_FILES)
        self.rules = [
            (_beneath(path), right)
            for path, right in {**rights, writable: own}.items()
            if os.path.exists(path)
        ]
        self.instructions = ctypes.create_string_buffer(filter, len(filter))
        self.program = struct.pack("@HP", len(filter) // 8, ctypes.addressof(self.instructions))
        self.prctl(PR_SET_NO_NEW_PRIVS, 1, 0)

    def enter(self) -> None:
        """Confine this process; there is no way back."""
        network = TCP if self.version >= 4 else 0
        scoped = ABSTRACT_SOCKETS_AND_SIGNALS if self.version >= 6 else 0
        attributes = struct.pack("=QQQ", self.handled, network, scoped)
        size = 8 if self.version < 4 else 16 if self.version < 6 else 24
        ruleset = self.call(CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
        # Of the processes, a program sees itself.
        for place, right in (*self.rules, (_beneath(b"/proc/self"), READ)):
            allowed = right & self.handled
            if not stat.S_ISDIR(os.fstat(place).st_mode):
                allowed &= OF_FILES
            self.call(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", allowed, place), 0)
        self.call(RESTRICT_SELF, ruleset, 0)
        if len(self.instructions):
            self.prctl(PR_SET_SECCOMP, FILTER_MODE, self.program)

    def call(self, number: int, *arguments: object) -> int:
        result: int = self.libc.syscall(number, *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
        return result

    def prctl(self, option: int, value: int, pointer: object) -> None:
        if self.libc.prctl(option, value, pointer, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def _beneath(path: bytes) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)
