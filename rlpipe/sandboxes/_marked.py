"""The processes of one execution, found by a mark in their environment where no agent is."""

from collections.abc import Sequence

MARK = "RLPIPE_EXECUTION"
"""The variable that holds the mark. A process that clears it outlives its execution."""

# Without another process, for which programs may have left no room. First they are stopped, since
# they could make more of them faster than one after the other is killed.
_KILL = f"""\
marked() {{
    while IFS= read -r line || [ "$line" ]; do
        case $line in *"{MARK}=$mark"*) return 0;; esac
    done <"$1/environ"
    return 1
}} 2>/dev/null
mark=$1
for signal in STOP STOP KILL KILL KILL KILL; do
    for process in /proc/[0-9]*; do
        if marked "$process"; then kill -s "$signal" "${{process#/proc/}}" 2>/dev/null; fi
    done
done
exit 0
"""


def kill_marked(mark: str) -> Sequence[str]:
    """The command that kills every process with that mark."""
    return ["/bin/sh", "-c", _KILL, "sh", mark]
