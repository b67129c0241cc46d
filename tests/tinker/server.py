"""A Tinker-compatible server on loopback: SkyRL's, as it is or with a launcher's changes."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tinker.environment import cache, digest, environment, locked

HERE = Path(__file__).parent
LAUNCHER = HERE / "launcher.py"
RANK = 8
"""The largest that the servers of the tests take."""

STARTING = 240.0
SETTINGS = {
    "max_lora_adapters": 32,
    "max_lora_rank": RANK,
    "train_micro_batch_size": 8,
    "sample_max_num_sequences": 16,
}


def model() -> Path:
    """The folder of the tiny model, made if there is none yet."""
    from tests.tinker.model import make

    folder = cache() / f"tinker-model-{digest(HERE / 'model.py')}"
    with locked(folder):
        if not (folder / "complete").exists():
            make(folder)
            (folder / "complete").touch()
    return folder


@contextmanager
def serving(model: Path, folder: Path, *, unmodified: bool) -> Iterator[str]:
    """The server's address, while it runs; its log is `folder/server.log`.

    Raises:
        NoEnvironment: the server cannot be installed here.
    """
    venv = environment()
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    command = _command(venv, model, folder, port, unmodified=unmodified)
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,  # outside any project that uv would look into
            env=os.environ | _variables(venv),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _await_answer(process, url, folder / "server.log")
            yield url
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the server, and the engine that it started
            process.wait()


def _command(venv: Path, model: Path, folder: Path, port: int, *, unmodified: bool) -> list[str]:
    python, uv = str(venv / "bin" / "python"), str(venv / "bin" / "uv")
    # The server as it is refuses to start under anything but `uv run`.
    start = [uv, "run", "-m", "skyrl.tinker.api"] if unmodified else [python, str(LAUNCHER)]
    options = {
        "base-model": str(model),
        "backend": "jax",
        "backend-config": json.dumps(SETTINGS),
        "checkpoints-base": str(folder / "checkpoints"),
        "database-url": f"sqlite:///{folder / 'tinker.db'}",
        "session-cleanup-interval-sec": "5",
        "session-timeout-sec": "30",
        "host": "127.0.0.1",
        "port": str(port),
    }
    return [*start, *(part for name, value in options.items() for part in (f"--{name}", value))]


def _variables(venv: Path) -> dict[str, str]:
    return {
        "VIRTUAL_ENV": str(venv),
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "UV_OFFLINE": "1",
        "UV_NO_CONFIG": "1",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        # Every shape of a batch is compiled anew, which takes most of a test's time.
        "JAX_COMPILATION_CACHE_DIR": str(venv / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_answer(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Requests wait in the server's queue until its engine is up; only its port must answer."""
    late = time.monotonic() + STARTING
    while time.monotonic() < late:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=5).close()
            return
        except urllib.error.URLError:
            time.sleep(0.2)
    raise RuntimeError(f"the server did not answer: {log.read_text()[-2000:]}")
