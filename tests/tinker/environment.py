"""The environment of the Tinker-compatible server: made once, outside the clone, and kept.

    python -m tests.tinker.environment

prints its folder. It needs Python 3.12, a few minutes and 7 GB. The folder's name holds the
digest of the pinned requirements, so another list makes another environment.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


class NoEnvironment(Exception):
    """There is no server environment, and none can be made."""


def cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "rlpipe"


def digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def environment() -> Path:
    """The folder of the server's environment, made if there is none yet.

    Raises:
        NoEnvironment: it cannot be made.
    """
    folder = cache() / f"tinker-server-{digest(REQUIREMENTS)}"
    with locked(folder):
        if not (folder / "complete").exists():
            _make(folder)
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Two test runs on one machine make a folder once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path) -> None:
    python = _python()
    shutil.rmtree(folder, ignore_errors=True)
    own = str(folder / "bin" / "python")
    _do(python, "-m", "venv", str(folder))
    # uv takes a quarter of pip's time; the unmodified server starts its engine with it too.
    (installer,) = (line for line in REQUIREMENTS.read_text().split() if line.startswith("uv=="))
    _do(own, "-m", "pip", "install", "-q", installer)
    _do(
        str(folder / "bin" / "uv"), "pip", "install", "-q", "--python", own, "-r", str(REQUIREMENTS)
    )
    (folder / "complete").touch()


def _python() -> str:
    """A Python 3.12, which the server needs, whatever version runs the tests.

    Raises:
        NoEnvironment: there is none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    named = os.environ.get("RLPIPE_PYTHON312")
    places = [named] if named else [shutil.which("python3.12"), sys.executable]
    places += map(str, sorted(pyenv.glob("3.12.*/bin/python3.12"), reverse=True))
    for place in filter(None, places):
        asked = [place, "-c", "import sys; print(*sys.version_info[:2])"]
        try:
            said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        if said.split() == ["3", "12"]:
            return place
    raise NoEnvironment("the Tinker server needs Python 3.12, and there is none on this machine")


def _do(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    except subprocess.TimeoutExpired:
        raise NoEnvironment(f"{' '.join(command)} took too long") from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise NoEnvironment(f"{' '.join(command)} failed: {' '.join(last)}")


if __name__ == "__main__":
    print(environment())
