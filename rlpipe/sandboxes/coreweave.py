"""Sandboxes of CoreWeave, through its SDK `cwsandbox`.

The SDK takes no part in measuring or in stopping at signals: rlpipe does both for every provider.
"""

import ipaddress
import os
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Literal

from pydantic import Field

from rlpipe.component import Section
from rlpipe.errors import Finding
from rlpipe.sandboxes.base import SandboxProvider, SandboxSession, SandboxSpec

KEY = "CWSANDBOX_API_KEY"


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

    def session(self) -> SandboxSession:
        from rlpipe.sandboxes._coreweave.session import CoreWeaveSession

        return CoreWeaveSession(self)

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
