"""Bundles the harness and its modules into one program that needs only a standard library."""

import marshal
import zlib
from base64 import b64encode
from functools import cache
from importlib.resources import files
from importlib.util import MAGIC_NUMBER

MODULES = ("libc", "values", "wire", "candidate", "remote", "harness")
"""In the order in which they need each other; the last one is the program itself."""

_LOADER = """\
import sys, os, marshal, zlib
from _frozen_importlib_external import MAGIC_NUMBER

compiled = b""
while len(compiled) < {size}:
    piece = os.read(0, {size} - len(compiled))
    if not piece:
        sys.exit("the program's own code did not come")
    compiled += piece
if MAGIC_NUMBER == {magic!r}:
    codes = marshal.loads(zlib.decompress(compiled))
else:
    from binascii import a2b_base64
    sources = marshal.loads(zlib.decompress(a2b_base64({sources!r})))
    codes = [(name, compile(text, name, "exec", 0, True)) for name, text in sources]
for name, code in codes:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
sys.modules["rlpipe.grading.harness"].main()
"""


@cache
def program() -> str:
    """The text of the program, which reads `compiled()` from standard input before its job.

    It holds the sources too, for a sandbox with another version of the interpreter.
    """
    sources = b64encode(_packed(_sources()))
    return _LOADER.format(size=len(compiled()), magic=MAGIC_NUMBER, sources=sources)


@cache
def compiled() -> bytes:
    """The code of the modules, as this interpreter's version runs it.

    Compiling takes longer than most gradings do, and so does reading it out of the text.
    """
    codes = [(name, compile(text, name, "exec", 0, True, 2)) for name, text in _sources()]
    return _packed(codes)


def _sources() -> list[tuple[str, bytes]]:
    folder = files("rlpipe.grading")
    return [
        (f"rlpipe.grading.{name}", folder.joinpath(f"{name}.py").read_bytes()) for name in MODULES
    ]


def _packed(content: object) -> bytes:
    return zlib.compress(marshal.dumps(content), 9)  # type: ignore[arg-type]
