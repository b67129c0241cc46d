"""What runs in the sandbox around a command. The image needs `/bin/sh`, `head` and `grep`."""

from collections.abc import Mapping, Sequence

LONGEST_WORD = (1 << 17) - 1
"""Bytes of one argument that Linux passes to a program."""

BEGUN = b"begun\n"
"""What comes first on standard error: a command without it never ran, however its call ended."""

NO_STDIN = -1
TOKEN = "RLPIPE_EXECUTION"
"""The variable by which the processes of one execution are found."""

# A counted read in place of an end of file: a container's runtime may never pass on that its
# standard input was closed.
_ENTER = """\
echo begun >&2
cd "$1" || exit 1
variables=$2 stdin=$3
shift 3
while [ "$variables" -gt 0 ]; do
  export "$1"
  shift
  variables=$((variables - 1))
done
if [ "$stdin" -lt 0 ]; then exec "$@"; fi
head -c "$stdin" 2>&- | exec "$@"
"""

# Twice, for what was being forked the first time.
_KILL = f"""\
for round in 1 2; do
  for variables in /proc/[0-9]*/environ; do
    grep -qs "{TOKEN}=$1" "$variables" || continue
    process=${{variables#/proc/}}
    kill -9 "${{process%/environ}}"
  done
done
"""

NOT_FOUND, IS_DIRECTORY, PERMISSION, TOO_LARGE, NO_FILE = range(61, 66)

# The size goes ahead on standard error, since a stream can lose its end without a sign.
_READ = f"""\
if [ -d "$1" ]; then exit {IS_DIRECTORY}; fi
if [ ! -e "$1" ]; then exit {NOT_FOUND}; fi
if [ ! -r "$1" ]; then exit {PERMISSION}; fi
if [ -p "$1" ]; then exit {NO_FILE}; fi
size=$(stat -L -c %s "$1" || echo 0)
echo "$size" >&2
if [ "$size" -gt "$2" ]; then exit {TOO_LARGE}; fi
exec head -c "$(($2 + 1))" < "$1"
"""

# Reads itself and not a byte more, then leaves nothing of its own behind, in tracebacks neither.
_FROM_STDIN = """\
def _():
    import os, sys
    code, own = bytearray(), (sys._getframe().f_code, sys._getframe(1).f_code)
    while len(code) < {size}:
        piece = os.read(0, {size} - len(code))
        if not piece:
            raise SystemExit("the program did not arrive")
        code += piece
    def show(kind, error, trace):
        while trace and trace.tb_frame.f_code in own:
            trace = trace.tb_next
        sys.__excepthook__(kind, error.with_traceback(trace), trace)
    sys.excepthook = show
    del globals()["_"]
    text = code.decode("utf-8", "surrogatepass")
    return compile(text, "<string>", "exec", dont_inherit=True)
exec(_())
"""

# Not to be ended from inside: to the first process of a container, a signal that it does not
# handle does not come through, and what it waits for is started again.
STAY = "while :; do sleep 3600; done"


def enter(
    command: Sequence[str], *, folder: str, variables: Mapping[str, str], stdin: int = NO_STDIN
) -> list[str]:
    """The words that run `command` in a folder, with variables and `stdin` bytes of input."""
    pairs = [f"{name}={value}" for name, value in variables.items()]
    head = ["/bin/sh", "-c", _ENTER, "sh", folder, str(len(pairs)), str(stdin)]
    return [*head, *pairs, *command]


def kill(token: str) -> list[str]:
    return ["/bin/sh", "-c", _KILL, "sh", token]


def read(path: str, limit: int) -> list[str]:
    return ["/bin/sh", "-c", _READ, "sh", path, str(limit)]


# Unbuffered, so that a program that is stopped has shown what it printed.
def python(source: bytes) -> list[str] | None:
    """The words that run a program; None when it fits into no argument, see `python_from_stdin`."""
    try:
        text = source.decode()
    except UnicodeDecodeError:
        return None
    return None if refused([text]) else ["python3", "-I", "-u", "-c", text]


def python_from_stdin(source: bytes) -> list[str]:
    """The words that run a program which comes first on standard input."""
    return ["python3", "-I", "-u", "-c", _FROM_STDIN.format(size=len(source))]


def refused(words: Sequence[str]) -> str | None:
    """Why no operating system takes these words, or None."""
    for word in words:
        if "\0" in word:
            return "a null byte in an argument"
        if len(word.encode("utf-8", "replace")) > LONGEST_WORD:
            return "argument list too long"
    return None
