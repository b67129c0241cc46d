"""What runs in the sandbox around a command. The image needs `/bin/sh` and `head`."""

from collections.abc import Mapping, Sequence

BEGUN = b"begun\n"
"""What comes first on standard error: a command without it never ran, however its call ended."""

NO_STDIN = -1

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


def read(path: str, limit: int) -> list[str]:
    return ["/bin/sh", "-c", _READ, "sh", path, str(limit)]
