"""Ending the sandboxes of runs that could not do so themselves."""

import logging
from pathlib import Path

from rlpipe.errors import SandboxError
from rlpipe.sandboxes import _processes
from rlpipe.sandboxes._ledger import Account, unsettled
from rlpipe.sandboxes._tags import run_tag
from rlpipe.sandboxes.base import SandboxSession

log = logging.getLogger(__name__)


async def sweep_killed(root: Path, provider: str, session: SandboxSession) -> list[str]:
    """End what killed runs below `root` left at this provider; return a line for each such run.

    Runs that were started on other machines are left alone, since they may go on there.
    """
    lines = []
    for account in unsettled(root):
        if account.provider != provider or account.alive:
            continue
        try:
            ended = await sweep(account, session)
        except SandboxError as error:
            log.warning("the sandboxes of run %s could not be swept: %s", account.run, error)
            continue
        account.settle(ended=ended)
        if ended:
            lines.append(f"ended {ended} sandboxes that the killed run {account.run} had left")
    return lines


async def sweep(account: Account, session: SandboxSession) -> int:
    """End all sandboxes of a run; return how many there were."""
    known = [entry.process for entry in account.entries.values() if entry.process]
    ended = sum(map(_processes.end, known))
    return ended + await session.sweep([run_tag(account.run)])
