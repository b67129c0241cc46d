"""A Python program as the words of a command, for sandboxes that run nothing but commands."""

from collections.abc import Sequence

LONGEST_WORD = (1 << 17) - 1
"""Bytes of one argument that Linux passes to a program."""

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


def python_command(code: str, stdin: bytes) -> tuple[list[str], bytes]:
    """The command that runs a program, and what it is given as standard input.

    A program that fits into no argument comes first on standard input. Its output is unbuffered,
    so that one that is stopped has shown what it printed.
    """
    source = code.encode("utf-8", "surrogatepass")
    interpreter = ["python3", "-I", "-u", "-c"]
    try:
        if not refused([source.decode()]):
            return [*interpreter, code], stdin
    except UnicodeDecodeError:  # half a character, which no argument can hold
        pass
    return [*interpreter, _FROM_STDIN.format(size=len(source))], source + stdin


def refused(words: Sequence[str]) -> str | None:
    """Why no operating system takes these words, or None."""
    for word in words:
        if "\0" in word:
            return "a null byte in an argument"
        if len(word.encode("utf-8", "replace")) > LONGEST_WORD:
            return "argument list too long"
    return None
