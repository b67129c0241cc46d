"""Ending the sandboxes of runs that could not do so themselves."""

import logging
from contextlib import nullcontext
from pathlib import Path

import yaml
from pydantic import ValidationError

from rlpipe.component import lookup
from rlpipe.errors import ConfigError, SandboxError
from rlpipe.sandboxes import _processes
from rlpipe.sandboxes._ledger import Account, unsettled
from rlpipe.sandboxes._tags import run_tag
from rlpipe.sandboxes.base import SandboxProvider, SandboxSession

log = logging.getLogger(__name__)


async def sweep_killed(root: Path, provider: str, session: SandboxSession) -> list[str]:
    """End what killed runs below `root` left at this provider; return a line for each such run.

    Each is asked of its provider as it was configured, which may be another service or engine than
    this session's. Runs that were started on other machines are left alone, since they may go on
    there.
    """
    lines = []
    for account in unsettled(root):
        if account.provider != provider or account.alive:
            continue
        try:
            own = recorded(account)
            async with own.open() if own else nullcontext(session) as its_session:
                ended = await sweep(account, its_session)
        except (ConfigError, ValidationError, SandboxError) as error:
            log.warning("the sandboxes of run %s could not be swept: %s", account.run, error)
            continue
        account.settle(ended=ended)
        if ended:
            lines.append(f"ended {ended} sandboxes that the killed run {account.run} had left")
    return lines


def recorded(account: Account) -> SandboxProvider | None:
    """The provider as a run had it; None where its folder does not tell.

    Raises:
        ConfigError: there is no such provider any more.
        ValidationError: it no longer has these options.
    """
    file = account.file.parent / "config.yaml"
    spec = yaml.safe_load(file.read_text()) if file.exists() else {}
    if "sandbox" not in spec:
        return None
    provider = lookup("sandboxes", account.provider).model_validate(spec["sandbox"])
    assert isinstance(provider, SandboxProvider)
    return provider


async def sweep(account: Account, session: SandboxSession) -> int:
    """End all sandboxes of a run; return how many there were."""
    known = [entry.process for entry in account.entries.values() if entry.process]
    ended = sum(map(_processes.end, known))
    return ended + await session.sweep([run_tag(account.run)])
