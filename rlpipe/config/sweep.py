"""A sweep's folder, and the table of its jobs."""

import json
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

folder: Path | None = None
"""The folder of this process's sweep, once Hydra has named it."""


class SweepFolder(Callback):
    """Hydra's hook. It is told of the folder before the first job starts."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        global folder
        if not config.dry_run:
            folder = Path(config.hydra.sweep.dir).absolute()


def note_invalid(job: Path, error: Exception) -> None:
    """Leave the reason in the folder of a job that was never started, for the table."""
    file = job / "manifest.json"
    if not file.exists():
        reason = "; ".join(str(error).splitlines())
        file.write_text(json.dumps({"status": "invalid", "error": reason}) + "\n")


def rows(sweep: Path) -> list[tuple[str, str, str, str]]:
    """Job, what was set for it, how it ended, and its figures; in the order of the jobs."""
    jobs = [job for job in sweep.iterdir() if (job / ".hydra").is_dir()]
    return [_row(job) for job in sorted(jobs, key=lambda job: (len(job.name), job.name))]


def _row(job: Path) -> tuple[str, str, str, str]:
    overrides = OmegaConf.load(job / ".hydra" / "overrides.yaml")
    settings = " ".join(str(item).lstrip("+") for item in overrides)
    manifest_file = job / "manifest.json"
    manifest = json.loads(manifest_file.read_text()) if manifest_file.exists() else {}
    figures = manifest.get("result") or {}
    shown = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
    return job.name, settings, manifest.get("status", "invalid"), shown or manifest.get("error", "")
