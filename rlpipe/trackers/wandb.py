"""Weights & Biases."""

import netrc
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import field_validator

from rlpipe.errors import Finding
from rlpipe.redaction import redact
from rlpipe.trackers.base import COLUMNS, Ending, Row, TrackedRun, Tracker, Tracking

KEY, OLD_KEY = "FORGE_API_KEY", "WANDB_API_KEY"
"""Variables that hold the key. Libraries, wandb's own among them, look at the second alone."""

WITHOUT_KEY = f"set {KEY} or {OLD_KEY}, or type: wandb login"
HOSTS = ("api.forge.coreweave.com", "api.wandb.ai")
"""Where `wandb login` logs in, unless WANDB_BASE_URL says otherwise."""

Mode = Literal["online", "offline", "disabled"]
"""As wandb calls it."""

NO_MODE: Mapping[str, Mode] = {
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}
"""What WANDB_MODE can say against sending figures."""


class Wandb(Tracker):
    """Weights & Biases: one run for each run here, under the same id when it is resumed."""

    extra: ClassVar[str | None] = "wandb"
    needs: ClassVar[tuple[str, ...]] = ("wandb",)

    kind: Literal["wandb"] = "wandb"
    mode: Literal["auto", "on", "offline", "off"] = "auto"
    """`auto` is on where there is a key (WANDB_MODE, where it is set, decides first); `offline`
    writes into the run folder, for `wandb sync`."""

    project: str = "rlpipe"
    entity: str | None = None
    """User or team; null is your default one."""

    name: str | None = None
    """What the run is called there; null takes the experiment's name and the run's id."""

    tags: tuple[str, ...] = ()

    @field_validator("mode", mode="before")
    @classmethod
    def _yaml_reads_booleans(cls, value: Any) -> Any:
        """In a YAML file a plain `on` or `off` is a truth value."""
        return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value

    def check(self) -> list[Finding]:
        if self._mode() == "disabled":
            return []
        findings = super().check()
        if self._mode() == "online" and not has_key():
            findings.append(Finding("mode", WITHOUT_KEY, lacking=True))
        return findings

    def resting(self) -> str | None:
        if self._mode() != "disabled":
            return None
        if self.mode == "off":
            return "off"
        said = os.environ.get("WANDB_MODE")
        return f"off, as WANDB_MODE={said}" if said else f"off without a key ({WITHOUT_KEY})"

    def _mode(self) -> Mode:
        fixed: Mapping[str, Mode] = {"on": "online", "offline": "offline", "off": "disabled"}
        if self.mode in fixed:
            return fixed[self.mode]
        said = NO_MODE.get(os.environ.get("WANDB_MODE", ""))
        return said or ("online" if has_key() else "disabled")

    def open(self, run: TrackedRun) -> Tracking:
        key = _Key()
        try:
            opened = self._init(run)
        except BaseException:
            key.put_back()
            raise
        return _Run(opened, key)

    def _init(self, run: TrackedRun) -> Any:
        import wandb

        id = run.recall(self.kind) or re.sub(r"[^\w.-]", "-", run.id)
        opened = wandb.init(
            id=id,
            resume="allow",
            project=self.project,
            entity=self.entity,
            name=redact(self.name) or f"{run.name} {run.id}",
            group=run.group,
            tags=redact(self.tags),
            job_type=run.config.get("mode"),
            config=dict(run.config),
            dir=run.folder,
            mode=self._mode(),
            reinit="create_new",  # not the process's own run, which other libraries log to
            # Nothing that may hold a secret goes along: command line, remotes, printed lines.
            settings=wandb.Settings(
                console="off",
                x_disable_meta=True,
                disable_git=True,
                disable_code=True,
                show_info=False,
            ),
        )
        run.keep(self.kind, id)
        return opened


class _Key:
    """FORGE_API_KEY under the older name, as long as the run is open: ART looks there too."""

    def __init__(self) -> None:
        self._before = os.environ.get(OLD_KEY)
        if key := os.environ.get(KEY):
            os.environ[OLD_KEY] = key

    def put_back(self) -> None:
        if self._before is None:
            os.environ.pop(OLD_KEY, None)
        else:
            os.environ[OLD_KEY] = self._before


def has_key() -> bool:
    """Whether wandb would find a key without asking for one."""
    if any(os.environ.get(name) for name in (KEY, OLD_KEY, "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    own = os.environ.get("WANDB_BASE_URL")
    hosts = [urlsplit(own).netloc] if own else HOSTS
    home = Path.home()
    files = (os.environ.get("NETRC"), home / ".netrc", home / "_netrc")
    for file in filter(None, files):
        with suppress(OSError, netrc.NetrcParseError):
            entries = netrc.netrc(str(file))
            if any(entries.authenticators(host) for host in hosts):
                return True
    return False


class _Run(Tracking):
    def __init__(self, run: Any, key: _Key) -> None:
        self.where = run.url or f"wandb sync {run.settings.sync_dir}"
        self._run = run
        self._key = key
        # wandb's own step only grows, so a figure for an earlier one would be dropped.
        run.define_metric("step")
        run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def show(self, step: int, phase: str, rows: Sequence[Row]) -> None:
        import wandb

        # Of different steps, a column may hold numbers or nothing at all.
        table = wandb.Table(columns=list(COLUMNS), allow_mixed_types=True)
        for row in rows:
            table.add_data(*(row[name] for name in COLUMNS))
        self._run.log({"step": step, f"trajectories/{phase}": table})

    def close(self, ending: Ending) -> None:
        self._run.summary["status"] = ending.status
        if ending.message:
            self._run.summary["ended"] = ending.message
        try:
            self._run.finish(exit_code=ending.exit_code)
        finally:
            self._key.put_back()
