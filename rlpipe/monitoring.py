"""`rlpipe sandboxes list|count|stop`: the sandboxes of every run, asked from any process.

What a run has is read from the ledger in its folder, and asked of its provider where sandboxes can
outlive a run. A run that was killed has only what its provider still shows.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from rlpipe.component import lookup
from rlpipe.config.schema import PACKAGES
from rlpipe.errors import ConfigError, RunError, SandboxError
from rlpipe.sandboxes import _processes
from rlpipe.sandboxes._ledger import NAME, Account, Entry, read, unsettled
from rlpipe.sandboxes._sweep import recorded
from rlpipe.sandboxes._tags import OURS, run_tag
from rlpipe.sandboxes.base import SandboxProvider, SandboxSession

STRANGERS = "?"
"""Stands for the run of a sandbox that no folder below the root tells of."""


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox, and where to end it."""

    entry: Entry
    run: str
    provider: str
    session: SandboxSession | None

    def tagged(self, name: str) -> str:
        values = [tag.partition(":")[2] for tag in self.entry.tags if tag.startswith(f"{name}:")]
        return values[-1] if values else "-"


def main(args: Sequence[str]) -> None:
    """Do what the arguments ask.

    Raises:
        ConfigError: they are wrong.
        RunError: a sandbox could not be ended.
    """
    options = _parser().parse_args(args)
    if options.action == "stop" and not (options.run or options.tag or options.provider):
        raise ConfigError("say which sandboxes to stop: --run, --tag or --provider")
    asyncio.run(_act(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlpipe sandboxes",
        description="Show or end the sandboxes of runs, also of runs that were killed.",
        epilog="A run that goes on takes a sandbox that is stopped for lost and starts others; "
        "to end the run, interrupt it.",
    )
    add = parser.add_argument
    add("action", choices=("list", "count", "stop"), help="one line each; how many; end them")
    add("--run", metavar="ID", help="only of this run: the name of its folder")
    add("--tag", metavar="T", action="append", default=[], help="only with this tag; repeatable")
    add("--provider", metavar="P", help="only of this provider, of unknown runs too")
    add("--root", metavar="DIR", type=Path, default=Path("outputs"), help="where runs lie")
    return parser


async def _act(options: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        accounts = [one for one in _accounts(options.root) if _asked_for(one, options)]
        found = [one for account in accounts for one in await _of_run(account, stack)]
        if options.provider and not options.run:
            found += await _strangers(options.provider, {one.entry.id for one in found}, stack)
        found = [one for one in found if set(options.tag) <= set(one.entry.tags)]
        found.sort(key=lambda one: one.entry.began)
        if options.action == "stop":
            await _stop(found)
        elif options.action == "list":
            _show(found)
        else:
            _count(found)


def _accounts(root: Path) -> Iterator[Account]:
    """The ledgers below a folder, which may be that of one run."""
    own = root / NAME
    yield from [read(own)] if own.exists() else unsettled(root)


def _asked_for(account: Account, options: argparse.Namespace) -> bool:
    return options.run in (None, account.run, account.file.parent.name) and (
        options.provider in (None, account.provider)
    )


async def _of_run(account: Account, stack: AsyncExitStack) -> list[Found]:
    """The sandboxes of a run: what it wrote down, and what its provider shows."""
    kind = account.provider
    session = await _open(lambda: recorded(account) or _default(kind), kind, stack)
    shown = await _shown(session, run_tag(account.run), kind)
    written = account.entries
    if account.alive:
        entries = {**shown, **written}
    else:
        kept = {id: one for id, one in written.items() if one.process and _lives(one.process)}
        entries = kept | {id: written.get(id, one) for id, one in shown.items()}
    return [Found(entry, account.run, account.provider, session) for entry in entries.values()]


async def _strangers(provider: str, known: set[str], stack: AsyncExitStack) -> list[Found]:
    """Sandboxes that rlpipe started for runs whose folders lie elsewhere."""
    session = await _open(lambda: _default(provider), provider, stack)
    shown = await _shown(session, OURS, provider)
    return [
        Found(entry, STRANGERS, provider, session) for id, entry in shown.items() if id not in known
    ]


def _lives(process: _processes.Identity) -> bool:
    return _processes.identity(process[0]) == process


async def _open(
    provider: Callable[[], SandboxProvider], kind: str, stack: AsyncExitStack
) -> SandboxSession | None:
    """Open a provider; None, and a line about it, where that fails."""
    try:
        return await stack.enter_async_context(provider().open())
    except (ConfigError, ValidationError, SandboxError) as error:
        _complain(kind, error)
        return None


def _default(kind: str) -> SandboxProvider:
    provider = lookup(PACKAGES["sandbox"], kind).model_validate({"kind": kind})
    assert isinstance(provider, SandboxProvider)
    return provider


async def _shown(session: SandboxSession | None, tag: str, kind: str) -> dict[str, Entry]:
    try:
        infos = await session.list(tags=[tag]) if session else []
    except SandboxError as error:
        _complain(kind, error)
        return {}
    now = time.time()
    return {
        info.id: Entry(info.id, info.status, now - info.age, info.tags)
        for info in infos
        if info.status != "stopped"
    }


def _complain(provider: str, error: Exception) -> None:
    print(f"rlpipe: {provider} could not be asked: {error}", file=sys.stderr)


def _show(found: Sequence[Found]) -> None:
    rows = [("SANDBOX", "STATUS", "AGE", "STEP", "TASK", "PROVIDER", "RUN")]
    rows += [
        (
            one.entry.id or "-",
            one.entry.status,
            _age(time.time() - one.entry.began),
            one.tagged("step"),
            one.tagged("task"),
            one.provider,
            one.run,
        )
        for one in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if found else []:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    print(_summary(found))


def _age(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _count(found: Sequence[Found]) -> None:
    for run in sorted({one.run for one in found}):
        own = [one for one in found if one.run == run]
        print(f"{run} ({own[0].provider}): {_summary(own)}")
    print(_summary(found))


def _summary(found: Sequence[Found]) -> str:
    running = sum(one.entry.status == "running" for one in found)
    return f"running {running}, pending {len(found) - running}, total {len(found)}"


async def _stop(found: Sequence[Found]) -> None:
    """End them; those that are being started belong to their run, which goes on."""
    running = [one for one in found if one.entry.id]
    ended = [await _end(one) for one in running]
    failed = [one.entry.id for one, done in zip(running, ended, strict=True) if not done]
    print(f"stopped {sum(ended)} of {len(running)}")
    if failed:
        raise RunError(f"could not be stopped: {', '.join(failed)}")


async def _end(one: Found) -> bool:
    if one.entry.process:
        # One that has ended meanwhile is as good as stopped.
        return _processes.end(one.entry.process) or not _lives(one.entry.process)
    try:
        return one.session is not None and await one.session.remove(one.entry.id)
    except SandboxError as error:
        _complain(one.provider, error)
        return False
