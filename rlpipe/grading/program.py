"""Bundles the harness and its modules into one program that needs only a standard library."""

import marshal
import zlib
from base64 import b64encode
from functools import cache
from importlib.resources import files
from importlib.util import MAGIC_NUMBER

MODULES = ("libc", "values", "wire", "candidate", "remote", "clock", "process", "harness")
"""In the order in which they need each other; the last one is the program itself."""

RUN = "import sys; sys.modules['rlpipe.grading.harness'].main()"
"""What runs the program where `modules()` has been run."""

_COMMON = """
array bisect cmath collections copy datetime decimal fractions functools heapq itertools math
operator random re statistics string typing
"""
COMMON = frozenset(_COMMON.split())
"""Modules of the standard library that tests often import, and that may be loaded by anyone."""

_LOADER = """\
import sys, marshal, zlib
from binascii import a2b_base64
from _frozen_importlib_external import MAGIC_NUMBER

if MAGIC_NUMBER == {magic!r}:
    codes = marshal.loads(zlib.decompress(a2b_base64({compiled!r})))
else:
    sources = marshal.loads(zlib.decompress(a2b_base64({sources!r})))
    codes = [(name, compile(text, name, "exec", 0, True)) for name, text in sources]
for name, code in codes:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
"""


@cache
def modules() -> str:
    """Code that makes the modules.

    It holds them as this interpreter's version runs them, since compiling takes longer than most
    gradings do, and their sources for another version.
    """
    folder = files("rlpipe.grading")
    sources = [
        (f"rlpipe.grading.{name}", folder.joinpath(f"{name}.py").read_bytes()) for name in MODULES
    ]
    codes = [(name, compile(text, name, "exec", 0, True, 2)) for name, text in sources]
    return _LOADER.format(magic=MAGIC_NUMBER, compiled=_packed(codes), sources=_packed(sources))


def _packed(content: object) -> bytes:
    return b64encode(zlib.compress(marshal.dumps(content)))  # type: ignore[arg-type]
