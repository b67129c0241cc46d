"""What the host and the agent say to each other, and the numbers that both know.

A request has the file descriptor with it where bytes are to flow. Replies have a fixed header,
since the host trusts nothing that comes from a sandbox.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

EXEC, PYTHON, READ, WRITE, CANCEL, PRELOAD = range(1, 7)
EXITED, TIMEOUT, OUTPUT_LIMIT, OUT_OF_MEMORY, KILLED = range(5)
PATIENCE = 5  # times its limit that a program may take while it waits for a busy processor
REQUEST = struct.Struct(">IBIdQB")  # length of the rest, operation, id, seconds, limit, has a file
REPLY = struct.Struct(">IBiBQdII")  # id, outcome, status, truncated, produced, seconds, two lengths
SETTINGS = struct.Struct(">IQQIB")  # user, memory, disk, processes, alone in its pid namespace


def pack(fields: Iterable[bytes]) -> bytes:
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def unpack(data: bytes) -> list[bytes]:
    fields, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        fields.append(data[at + 4 : end])
        at = end
    return fields
