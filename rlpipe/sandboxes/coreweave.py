"""Sandboxes of CoreWeave, through its SDK `cwsandbox`.

The SDK takes no part in measuring or in stopping at signals: rlpipe does both for every provider.
"""

import asyncio
import ipaddress
import logging
import math
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Literal

from pydantic import Field

from rlpipe.component import Section
from rlpipe.errors import Finding, SandboxConfigError, SandboxError, SandboxGone
from rlpipe.sandboxes._coreweave import scripts
from rlpipe.sandboxes._coreweave.errors import translated
from rlpipe.sandboxes._coreweave.sandbox import CoreWeaveSandbox, stop_machine
from rlpipe.sandboxes.base import (
    Capabilities,
    Sandbox,
    SandboxInfo,
    SandboxProvider,
    SandboxSession,
    SandboxSpec,
    Status,
)

log = logging.getLogger(__name__)

KEY = "CWSANDBOX_API_KEY"
SESSION_TAG = "rlpipe-session-"
STATUSES: dict[str, Status] = {
    "creating": "pending",
    "preparing": "pending",
    "pending": "pending",
    "running": "running",
    "paused": "running",
}


class Secret(Section):
    """A secret from a store, given to the sandbox without passing through rlpipe."""

    store: str = Field(min_length=1)
    """Name of the secret store."""

    name: str = Field(min_length=1)
    """Name of the secret in the store."""

    field: str = ""
    """Part of a structured secret."""

    env_var: str | None = None
    """Environment variable that holds it; by default its name."""


class CoreWeave(SandboxProvider):
    """Sandboxes of CoreWeave; needs an image and a key."""

    kind: Literal["coreweave"] = "coreweave"
    extra = "coreweave"
    needs = ("cwsandbox",)

    auth: Literal["api_key", "wandb"] = "api_key"
    """`api_key` takes CWSANDBOX_API_KEY, `wandb` your login to Weights & Biases."""

    base_url: str | None = None
    """Address of the service; null: CWSANDBOX_BASE_URL, else CoreWeave's own."""

    runner_ids: tuple[str, ...] = ()
    """Runners that may hold the sandboxes; empty: any."""

    secrets: tuple[Secret, ...] = ()
    """Secrets by name, put into the sandbox's environment by the service."""

    allow: tuple[str, ...] = ()
    """All that may be reached while `network` is `none`: `*.example.org`, `10.0.0.0/8`."""

    requested_cpus: float | None = Field(None, gt=0)
    """CPU cores that are set aside; null: as many as `cpus`."""

    requested_memory_mb: int | None = Field(None, ge=64)
    """Memory that is set aside; null: as much as `memory_mb`."""

    gpus: int = Field(0, ge=0)
    """GPUs of one sandbox."""

    gpu_type: str | None = None
    """Which GPU, such as `A100`."""

    request_timeout: float = Field(300.0, gt=0)
    """Seconds for one request, and for a sandbox to get ready."""

    create_retry_budget: float = Field(60.0, ge=0)
    """Seconds of trying again while the runners are full."""

    data_plane_mode: Literal["auto", "direct", "gateway"] = "auto"
    """`direct` talks to the runner, `gateway` through the service, `auto` tries the first."""

    annotations: dict[str, str] = Field({})
    """Kubernetes annotations of the sandboxes."""

    def check(self) -> list[Finding]:
        found = super().check()
        if self.image is None:
            found.append(Finding("image", "CoreWeave needs one, such as 'python:3.11'"))
        if self.auth == "api_key" and not os.environ.get(KEY):
            found.append(Finding("auth", f"{KEY} is not set; export it, or use auth=wandb"))
        if self.auth == "wandb" and find_spec("wandb") is None:
            found.append(Finding("auth", "'wandb' needs: pip install 'rlpipe[wandb]'"))
        if self.allow and self.network == "public":
            found.append(Finding("allow", "network=public reaches everything; drop one of the two"))
        found += [Finding("allow", wrong) for name in self.allow if (wrong := _no_rule(name))]
        if self.gpu_type is not None and not self.gpus:
            found.append(Finding("gpu_type", "no GPU is asked for; set gpus"))
        return found + self._check_requests()

    def _check_requests(self) -> list[Finding]:
        found = []
        if self.requested_memory_mb is not None and self.requested_memory_mb > self.memory_mb:
            found.append(Finding("requested_memory_mb", f"more than memory_mb={self.memory_mb}"))
        if self.requested_cpus is not None and self.cpus and self.requested_cpus > self.cpus:
            found.append(Finding("requested_cpus", f"more than cpus={self.cpus:g}"))
        return found

    def open(self) -> AbstractAsyncContextManager[SandboxSession]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[SandboxSession]:
        session = CoreWeaveSession(self)
        try:
            yield session
        finally:
            await session.close()

    def resources(self, spec: SandboxSpec) -> dict[str, Any]:
        """CPU, memory and GPUs as the SDK takes them."""
        memory = spec.memory >> 20
        cpus, requested_cpus = spec.cpus, self.requested_cpus or spec.cpus
        limits = {"memory": f"{memory}Mi"} | ({"cpu": f"{cpus:g}"} if cpus else {})
        requests = {"memory": f"{self.requested_memory_mb or memory}Mi"}
        requests |= {"cpu": f"{requested_cpus:g}"} if requested_cpus else {}
        gpu = {"count": self.gpus} | ({"type": self.gpu_type} if self.gpu_type else {})
        return {"limits": limits, "requests": requests} | ({"gpu": gpu} if self.gpus else {})

    def rules(self, spec: SandboxSpec) -> dict[str, Any]:
        """What may be reached, as the SDK takes it."""
        if spec.network == "public":
            return {"egress": [{"any": True}], "deny_ingress": True}
        if not self.allow:
            return {"deny_egress": True, "deny_ingress": True}
        rules = [{"cidr" if _is_range(name) else "dns_name": name} for name in self.allow]
        return {"egress": rules, "deny_ingress": True}


def _is_range(name: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_network(name)
        return True
    return False


def _no_rule(name: str) -> str | None:
    """What is wrong with a name that may be reached."""
    plain = name.removeprefix("*.")
    if _is_range(name) or (plain and not set(plain) & set("*/:@ ") and "." in plain):
        return None
    return f"{name!r} is neither a host name nor a range of addresses such as 10.0.0.0/8"


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
