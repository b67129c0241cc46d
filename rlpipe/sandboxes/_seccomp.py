"""A system-call filter for bubblewrap, assembled here since libseccomp may be absent.

It denies what a sandboxed program has no use for and what has broken out of sandboxes before, or
what takes memory that no limit counts. Everything else stays allowed.
"""

import errno
import platform
import struct
from functools import cache

DENIED = {
    "x86_64": {
        "ptrace": 101, "personality": 135, "pivot_root": 155, "acct": 163, "mount": 165,
        "umount2": 166, "swapon": 167, "reboot": 169, "init_module": 175, "delete_module": 176,
        "quotactl": 179, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
        "unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
        "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
        "shmget": 29, "semget": 64, "msgget": 68, "memfd_create": 319, "memfd_secret": 447,
    },
    "aarch64": {
        "ptrace": 117, "personality": 92, "pivot_root": 41, "acct": 89, "mount": 40,
        "umount2": 39, "swapon": 224, "reboot": 142, "init_module": 105, "delete_module": 106,
        "quotactl": 60, "kexec_load": 104, "add_key": 217, "request_key": 218, "keyctl": 219,
        "unshare": 97, "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273,
        "kexec_file_load": 294, "bpf": 280, "userfaultfd": 282,
        "shmget": 194, "semget": 190, "msgget": 186, "memfd_create": 279, "memfd_secret": 447,
    },
}  # fmt: skip
DENIED_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442,
}  # fmt: skip
AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
NEW_NAMESPACES = 0x7E020000
X32_BIT = 0x40000000

LOAD, JUMP_EQUAL, JUMP_ABOVE, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000

SOCKET = {"x86_64": 41, "aarch64": 198}


@cache
def build(machine: str = platform.machine(), *, sockets: bool = True) -> bytes | None:
    """The filter as classic BPF; None for a machine whose system calls are not known here.

    Without `sockets` there are only pairs of them: for programs that share the host's network, and
    could connect to its services through their files, too.
    """
    if machine not in DENIED:
        return None
    program = [
        _step(LOAD, ARCHITECTURE),
        _step(JUMP_EQUAL, AUDIT_ARCHITECTURE[machine], yes=1),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER),
    ]
    if machine == "x86_64":
        program += [_step(JUMP_ABOVE, X32_BIT, no=1), _step(RETURN, FAIL | errno.EPERM)]
    # Its flags lie in memory that a filter cannot see; the C library falls back to clone.
    program += [_step(JUMP_EQUAL, CLONE3, no=1), _step(RETURN, FAIL | errno.ENOSYS)]
    denied = {*DENIED[machine].values(), *DENIED_EVERYWHERE.values()}
    for number in sorted(denied if sockets else denied | {SOCKET[machine]}):
        program += [_step(JUMP_EQUAL, number, no=1), _step(RETURN, FAIL | errno.EPERM)]
    program += [
        _step(JUMP_EQUAL, CLONE[machine], no=3),
        _step(LOAD, FIRST_ARGUMENT),
        _step(JUMP_ANY_BIT, NEW_NAMESPACES, no=1),
        _step(RETURN, FAIL | errno.EPERM),
        _step(RETURN, ALLOW),
    ]
    return b"".join(program)


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)
