"""The sandboxes of one run at CoreWeave: started, found again, ended."""

import asyncio
import logging
import math
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rlpipe.errors import SandboxConfigError, SandboxError, SandboxGone
from rlpipe.sandboxes._coreweave import scripts
from rlpipe.sandboxes._coreweave.errors import translated
from rlpipe.sandboxes._coreweave.sandbox import CoreWeaveSandbox, stop_machine
from rlpipe.sandboxes.base import (
    Capabilities,
    Sandbox,
    SandboxInfo,
    SandboxSession,
    SandboxSpec,
    Status,
)
from rlpipe.sandboxes.coreweave import CoreWeave

log = logging.getLogger(__name__)

SESSION_TAG = "rlpipe-session-"
STATUSES: dict[str, Status] = {
    "creating": "pending",
    "preparing": "pending",
    "pending": "pending",
    "running": "running",
    "paused": "running",
}


class CoreWeaveSession(SandboxSession):
    """The sandboxes of one run at CoreWeave."""

    capabilities = Capabilities(isolation="vm", images=True, cpu_limit=True, network=True)

    def __init__(self, provider: CoreWeave) -> None:
        import cwsandbox

        # Before the first sandbox, else the SDK would take SIGINT and SIGTERM over.
        cwsandbox.disable_signal_handlers()
        self._provider = provider
        self._tag = SESSION_TAG + secrets.token_hex(8)
        self._live: set[CoreWeaveSandbox] = set()
        self._closed = False
        strategies = cwsandbox.AuthStrategy
        self._auth = {"api_key": strategies.COREWEAVE_API_KEY, "wandb": strategies.WANDB}[
            provider.auth
        ]

    async def start(self, spec: SandboxSpec) -> Sandbox:
        if self._closed:
            raise SandboxGone("the session is closed", provider="coreweave")
        sandbox = CoreWeaveSandbox(spec, self._machine(spec), self._live.discard)
        self._live.add(sandbox)
        try:
            await sandbox.boot()
        except asyncio.CancelledError:
            sandbox.end()
            raise
        except BaseException:
            await sandbox.stop()
            raise
        return sandbox

    def _machine(self, spec: SandboxSpec) -> Any:
        """The SDK's handle of a sandbox that is not started yet."""
        import cwsandbox

        provider = self._provider
        if spec.image is None:
            raise SandboxConfigError("CoreWeave needs an image", provider="coreweave")
        try:
            # On its own rather than in a session of the SDK, which would let the variable
            # CWSANDBOX_BASE_URL override the option.
            return cwsandbox.Sandbox(
                command="/bin/sh",
                args=["-c", scripts.STAY],
                auth=self._auth,
                base_url=provider.base_url,
                container_image=spec.image,
                tags=[*spec.tags, self._tag],
                request_timeout_seconds=provider.request_timeout,
                create_retry_budget_seconds=provider.create_retry_budget,
                max_lifetime_seconds=math.ceil(spec.lifetime),
                runner_ids=list(provider.runner_ids) or None,
                resources=provider.resources(spec),
                network=cwsandbox.NetworkOptions(**provider.rules(spec)),
                working_dir=spec.workdir,
                environment_variables={"PYTHONHASHSEED": "0", **spec.env},
                annotations=dict(provider.annotations),
                secrets=[secret.model_dump() for secret in provider.secrets] or None,
                data_plane_mode=provider.data_plane_mode,
            )
        except (ValueError, TypeError) as error:
            raise SandboxConfigError(str(error), provider="coreweave") from error

    async def list(
        self, *, tags: Sequence[str] = (), status: Status | None = None
    ) -> list[SandboxInfo]:
        found = await self._found(tags, ended_too=status in (None, "stopped"))
        infos = [_info(machine) for machine in found]
        return [info for info in infos if status in (None, info.status)]

    async def remove(self, id: str) -> bool:
        machines = await self._found((), ended_too=False)
        return any([await stop_machine(one) for one in machines if one.sandbox_id == id])

    async def sweep(self, tags: Sequence[str]) -> int:
        machines = await self._found(tags, ended_too=False)
        return sum(await asyncio.gather(*map(stop_machine, machines)))

    async def _found(self, tags: Sequence[str], *, ended_too: bool) -> tuple[Any, ...]:
        import cwsandbox

        try:
            machines = await cwsandbox.Sandbox.list(
                tags=list(tags),
                show_terminated=ended_too,
                base_url=self._provider.base_url,
                auth=self._auth,
                timeout_seconds=self._provider.request_timeout,
            )
            return tuple(machines)
        except cwsandbox.CWSandboxError as error:
            raise translated(error) from error

    async def close(self) -> None:
        """Stop every sandbox, then what the service knows of this session beyond them."""
        self._closed = True
        await asyncio.gather(*(sandbox.stop() for sandbox in tuple(self._live)))
        try:
            left = await self._found([self._tag], ended_too=False)
        except SandboxError as error:
            log.warning("whether sandboxes are left at CoreWeave is unknown: %s", error)
            return
        await asyncio.gather(*(stop_machine(machine) for machine in left))


def _status(machine: Any) -> Status:
    return STATUSES.get(str(machine.status), "stopped")


def _info(machine: Any) -> SandboxInfo:
    born = machine.created_at or datetime.now(UTC)
    age = max(0.0, (datetime.now(UTC) - born).total_seconds())
    tags = tuple(tag for tag in machine.tags if not tag.startswith(SESSION_TAG))
    return SandboxInfo(str(machine.sandbox_id), _status(machine), tags, age)
