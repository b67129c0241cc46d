import asyncio
import io
import os
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from rlpipe.errors import SandboxError
from rlpipe.sandboxes._engine import find_engine

PROGRAMS = (
    *("bash", "cat", "chmod", "env", "false", "grep", "head", "ln", "mkdir", "printf", "rm", "sh"),
    *("sha256sum", "sleep", "timeout", "touch", "tr", "true", "yes"),
)
FOLDERS = ("dev", "etc", "proc", "sys", "tmp", "work")
LEFT_OUT = {"config", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test"}


@pytest.fixture
def coreweave_key(monkeypatch):
    monkeypatch.setenv("CWSANDBOX_API_KEY", "test-key")
    monkeypatch.delenv("CWSANDBOX_BASE_URL", raising=False)
    return "test-key"


@pytest.fixture
async def service(coreweave_key):
    """A stand-in for CoreWeave's service."""
    from tests.sandboxes.coreweave_server import StandIn  # needs the SDK

    async with StandIn(coreweave_key) as service:
        yield service


@pytest.fixture(scope="session")
def engine():
    """A container engine that runs on this machine: Docker or Podman."""
    try:
        return asyncio.run(find_engine("auto"))
    except SandboxError as error:
        pytest.skip(f"no container engine runs here: {error}")


@pytest.fixture(scope="session")
def image(engine):
    """An image of this machine's own shell and Python, made without a registry."""
    name = f"localhost/rlpipe-test-{secrets.token_hex(4)}:latest"
    command = [engine.name, "import", "-", name]
    subprocess.run(command, input=_archive(), capture_output=True, check=True)
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    command = [engine.name, "run", "--rm", "--network", "none", *limits, name, "true"]
    tried = subprocess.run(command, capture_output=True, text=True)
    try:
        if tried.returncode:
            pytest.skip(f"{engine.name} runs no container here: {tried.stderr}")
        yield name
    finally:
        subprocess.run([engine.name, "rmi", "--force", name], capture_output=True)


def _archive():
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys._base_executable
    ask = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    library = Path(subprocess.check_output([python, "-c", ask], text=True).strip())
    programs = [python, *map(shutil.which, PROGRAMS)]
    native = [*programs, *map(str, (library / "lib-dynload").glob("*.so"))]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        files = sorted({_home(path) for path in [*programs, *_shared_libraries(native)]})
        for folder in sorted({*FOLDERS, *_folders([*files, str(library)])}):
            archive.addfile(_entry(folder, tarfile.DIRTYPE))
        for name in ("bin", "lib", "lib64"):
            archive.addfile(_entry(name, tarfile.SYMTYPE, f"usr/{name}"))
        for path in files:
            archive.add(path)
        archive.add(library, filter=_needed)
        if _home(python) != "/usr/bin/python3":
            archive.addfile(_entry("usr/bin/python3", tarfile.SYMTYPE, _home(python)))
    return buffer.getvalue()


def _folders(paths):
    """Those above the paths; an engine may make the ones that it is not told of for root alone."""
    return {str(above)[1:] for path in paths for above in Path(path).parents if str(above) != "/"}


def _entry(name, kind, target=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname = kind, 0o755, target
    return entry


def _home(path):
    """Where it really lies, since /bin and the like are links."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _shared_libraries(paths):
    printed = subprocess.run(["ldd", *paths], capture_output=True, text=True).stdout
    return set(re.findall(r"(/\S+) \(0x", printed))


def _needed(entry):
    part = os.path.basename(entry.name)
    return None if part in LEFT_OUT or part.startswith("config-") else entry
