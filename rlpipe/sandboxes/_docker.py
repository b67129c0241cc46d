"""The containers of `rlpipe.sandboxes.docker`: with an agent inside, or driven call by call."""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Sequence
from typing import Any

from rlpipe.errors import SandboxConfigError, SandboxError, SandboxGone
from rlpipe.sandboxes import _engine
from rlpipe.sandboxes._agent_sandbox import AgentSandbox
from rlpipe.sandboxes._container import LABEL, Container, ContainerPlan, names_of, tag_label
from rlpipe.sandboxes._engine import Engine
from rlpipe.sandboxes._living import LivingSandbox
from rlpipe.sandboxes._plain import PlainSandbox
from rlpipe.sandboxes.base import (
    Capabilities,
    Sandbox,
    SandboxInfo,
    SandboxSession,
    SandboxSpec,
    Status,
)
from rlpipe.sandboxes.docker import Docker

log = logging.getLogger(__name__)

USERS = range(20_000, 60_000, 2)  # such as rootless engines have; the next one is the relay's
STATES: dict[str, Status] = {"created": "pending", "configured": "pending", "running": "running"}


class ContainerSandbox(AgentSandbox):
    """An agent in a container."""

    provider = "docker"


class DockerSession(SandboxSession):
    """The containers of one run."""

    def __init__(self, provider: Docker) -> None:
        self.capabilities = Capabilities(
            isolation="container", images=True, cpu_limit=True, network=True
        )
        self._provider = provider
        self._label = secrets.token_hex(6)
        self._engine: Engine | None = None
        self._images: dict[str, dict[str, str]] = {}
        self._preparing = asyncio.Lock()
        self._live: dict[str, LivingSandbox] = {}
        self._closed = False

    async def start(self, spec: SandboxSpec) -> Sandbox:
        if not spec.image:
            raise SandboxConfigError("a container needs an image", provider="docker")
        engine, variables = await self._prepare(spec.image)
        plan = self._plan(spec, variables)
        sandbox = await self._boot(engine, plan)
        self._live[sandbox.id] = sandbox
        if self._closed:
            await sandbox.stop()
            raise SandboxGone("the session is closed", provider="docker", sandbox_id=sandbox.id)
        return sandbox

    async def list(
        self, *, tags: Sequence[str] = (), status: Status | None = None
    ) -> list[SandboxInfo]:
        """The containers that any session of rlpipe has started and that the engine still has."""
        engine = await self._find()
        found = await engine.containers([LABEL, *map(tag_label, tags)])
        infos = [_info(container) for container in found]
        return [
            info for info in infos if set(tags) <= set(info.tags) and status in (None, info.status)
        ]

    async def remove(self, id: str) -> bool:
        engine = await self._find()
        if id not in names_of(await engine.containers([LABEL])):
            return False
        await engine.remove(id)
        return True

    async def sweep(self, tags: Sequence[str]) -> int:
        names = [info.id for info in await self.list(tags=tags)]
        if names:
            await (await self._find()).remove(*names)
        return len(names)

    async def close(self) -> None:
        """Stop every sandbox, and whatever else carries this session's label."""
        self._closed = True
        await asyncio.gather(*(sandbox.stop() for sandbox in list(self._live.values())))
        if self._engine:
            try:
                own = await self._engine.containers([f"{LABEL}.session={self._label}"])
                if own:
                    await self._engine.remove(*names_of(own))
            except SandboxError as error:
                log.warning("whether containers are left is unknown: %s", error)

    async def _find(self) -> Engine:
        async with self._preparing:
            if self._engine is None:
                self._engine = await _engine.find_engine(self._provider.engine)
            return self._engine

    async def _prepare(self, image: str) -> tuple[Engine, dict[str, str]]:
        """The engine, and the variables of the image, which then is here."""
        engine = await self._find()
        async with self._preparing:
            if image not in self._images:
                self._images[image] = await engine.image_environment(image)
            return engine, self._images[image]

    def _plan(self, spec: SandboxSpec, variables: dict[str, str]) -> ContainerPlan:
        user = self._provider.user
        return ContainerPlan(
            name=f"{LABEL}-{secrets.token_hex(6)}",
            spec=spec,
            user=secrets.choice(USERS) if user is None else user,
            session=self._label,
            image_environment=variables,
            read_only=self._provider.read_only,
            runtime=self._provider.runtime,
        )

    async def _boot(self, engine: Engine, plan: ContainerPlan) -> LivingSandbox:
        container = Container(engine, plan, lambda reason: self._lose(plan.name, reason))
        if await container.start():
            agent = ContainerSandbox(plan.spec, self._retire, plan.name)
            agent.begin(container)
            return agent
        plain = PlainSandbox(plan.spec, self._retire, plan.name)
        plain.begin(engine, container)
        return plain

    def _lose(self, name: str, reason: str) -> None:
        if name in self._live:
            self._live[name].on_death(reason)

    def _retire(self, sandbox: LivingSandbox) -> None:
        self._live.pop(sandbox.id, None)


def _info(container: dict[str, Any]) -> SandboxInfo:
    labels = container["Config"]["Labels"]
    status = STATES.get(container["State"]["Status"], "stopped")
    age = time.time() - float(labels[f"{LABEL}.begun"])
    tags = tuple(json.loads(labels[f"{LABEL}.tags"]))
    return SandboxInfo(names_of([container])[0], status, tags, max(0.0, age))
