"""Bundles the harness and its modules into one program that needs only a standard library."""

import marshal
import zlib
from base64 import b64encode
from functools import cache
from importlib.resources import files
from importlib.util import MAGIC_NUMBER
from types import CodeType

MODULES = ("values", "wire", "candidate", "remote", "harness")
"""In the order in which they need each other; the last one is the program itself."""

_LOADER = """\
import sys, marshal, zlib
from binascii import a2b_base64
from _frozen_importlib_external import MAGIC_NUMBER

def unpack(text):
    return zlib.decompress(a2b_base64(text))

def add(name, code):
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)

same = MAGIC_NUMBER == {magic!r}
codes = {codes!r} if same else {sources!r}
for name, text in codes.items():
    content = unpack(text)
    code = marshal.loads(content) if same else compile(content, name, "exec")
    add(name, code)
sys.modules["rlpipe.grading.harness"].main()
"""


@cache
def program() -> str:
    """The text of the program.

    It holds compiled code as well, used where the sandbox has this interpreter's version:
    compiling takes longer than most gradings do.
    """
    sources = {
        f"rlpipe.grading.{name}": files("rlpipe.grading").joinpath(f"{name}.py").read_bytes()
        for name in MODULES
    }
    codes = {name: marshal.dumps(_compiled(name, text)) for name, text in sources.items()}
    return _LOADER.format(
        magic=MAGIC_NUMBER,
        codes={name: _pack(code) for name, code in codes.items()},
        sources={name: _pack(text) for name, text in sources.items()},
    )


def _compiled(name: str, text: bytes) -> CodeType:
    return compile(text, name, "exec", dont_inherit=True)


def _pack(content: bytes) -> bytes:
    return b64encode(zlib.compress(content, 9))
