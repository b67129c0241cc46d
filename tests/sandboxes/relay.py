"""A program for a sandbox that runs one command and passes what it reads and writes."""

import struct

FRAME = struct.Struct(">BI")  # kind, length of what follows
COMMAND, STDIN, CLOSE, OUTPUT, ERROR, EXIT = range(6)

RELAY = f"""
import _thread, os, select, signal

def take(size):
    data = b""
    while len(data) < size and (piece := os.read(0, size - len(data))):
        data += piece
    return data

def frame():
    head = take({FRAME.size})
    return head[:1], take(int.from_bytes(head[1:], "big"))

def tell(kind, data):
    data = bytes([kind]) + len(data).to_bytes(4, "big") + data
    try:
        while data:
            data = data[os.write(0, data):]
    except OSError:
        pass  # nobody listens any more, and the command goes on

def feed(end):
    while (given := frame())[0] == bytes([{STDIN}]):
        data = given[1]
        try:
            while data:
                data = data[os.write(end, data):]
        except OSError:
            break
    os.close(end)

def start(words):
    pipes = [os.pipe() for _ in range(3)]
    theirs = pipes[0][0], pipes[1][1], pipes[2][1]
    actions = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(theirs)]
    try:
        pid = os.posix_spawnp(
            words[0], words, os.environ, file_actions=actions, setsigdef=[signal.SIGPIPE]
        )
        return pid, pipes
    finally:
        for end in theirs:
            os.close(end)

def pump(child, output, error):
    ended = os.pidfd_open(child)
    ends = {{output: {OUTPUT}, error: {ERROR}}}
    while ends:
        ready, _, _ = select.select([*ends, ended], [], [])
        if ready == [ended]:
            return
        for end in sorted(set(ready) - {{ended}}, reverse=True):  # what is said first, first
            data = os.read(end, 65536)
            if data:
                tell(ends[end], data)
            else:
                del ends[end]

try:
    child, ((_, given), (output, _), (error, _)) = start(frame()[1].split(b"\\0"))
except OSError as problem:
    tell({ERROR}, str(problem).encode())
    tell({EXIT}, b"127")
    os._exit(0)
_thread.start_new_thread(feed, (given,))
pump(child, output, error)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
tell({EXIT}, str(status if status >= 0 else 128 - status).encode())
while os.read(0, 65536):
    pass  # a line that is closed with something unread on it loses what was said
os._exit(0)
"""
