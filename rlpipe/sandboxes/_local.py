"""The sandboxes of `rlpipe.sandboxes.local`: an agent in each box, and what it is planned from."""

import asyncio
import os
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from rlpipe.errors import SandboxConfigError, SandboxGone
from rlpipe.sandboxes import _bwrap
from rlpipe.sandboxes._agent_sandbox import AgentSandbox
from rlpipe.sandboxes._box import Box, Plan, name_folder
from rlpipe.sandboxes._bwrap import Interpreter
from rlpipe.sandboxes._living import LivingSandbox
from rlpipe.sandboxes.base import (
    Capabilities,
    Sandbox,
    SandboxInfo,
    SandboxSession,
    SandboxSpec,
    Status,
)
from rlpipe.sandboxes.local import Local

REMEMBERED = 1000


class LocalSandbox(AgentSandbox):
    """An agent in a box."""

    provider = "local"

    async def boot(self, plan: Plan) -> None:
        self.spec = plan.spec
        box = Box(plan, self.on_death)
        await box.start()
        self.process = box.pid
        self.begin(box, owner=plan.user)


class LocalSession(SandboxSession):
    """The local sandboxes of one run."""

    def __init__(self, provider: Local) -> None:
        isolation = provider.isolation
        self.capabilities = Capabilities(
            isolation="namespace" if isolation == "bwrap" else isolation
        )
        self._provider = provider
        self._packages = provider.packages and os.path.abspath(provider.packages)
        self._interpreter: Interpreter | None = None
        self._looking = asyncio.Lock()
        self._live: dict[str, LivingSandbox] = {}
        self._ended: deque[LivingSandbox] = deque(maxlen=REMEMBERED)
        self._closed = False

    async def start(self, spec: SandboxSpec) -> Sandbox:
        sandbox = LocalSandbox(spec, self._retire)
        self._live[sandbox.id] = sandbox
        try:
            await sandbox.boot(await self._plan(spec))
        except BaseException:
            self._retire(sandbox)
            raise
        if self._closed:
            await sandbox.stop()
            raise SandboxGone("the session is closed", provider="local", sandbox_id=sandbox.id)
        return sandbox

    async def list(
        self, *, tags: Sequence[str] = (), status: Status | None = None
    ) -> list[SandboxInfo]:
        infos = [sandbox.info() for sandbox in (*self._ended, *self._live.values())]
        return [
            info for info in infos if set(tags) <= set(info.tags) and status in (None, info.status)
        ]

    async def close(self) -> None:
        """Stop every sandbox, and each one that is still being started when it gets ready."""
        self._closed = True
        running = [one for one in self._live.values() if one.status != "pending"]
        await asyncio.gather(*(one.stop() for one in running))

    def _retire(self, sandbox: LivingSandbox) -> None:
        sandbox.status = "stopped"
        if self._live.pop(sandbox.id, None):
            self._ended.append(sandbox)

    async def _plan(self, spec: SandboxSpec) -> Plan:
        if spec.network != "none":
            raise SandboxConfigError("a local sandbox has no network", provider="local")
        if self._provider.isolation != "bwrap":
            return self._plan_without_namespaces(spec)
        _bwrap.check_workdir(spec.workdir)
        bwrap = _bwrap.find_bwrap()
        if bwrap is None:
            raise SandboxConfigError(_bwrap.INSTALL, provider="local")
        users = _bwrap.user_ids()
        async with self._looking:
            if self._interpreter is None:
                look = _bwrap.working_interpreter
                arguments = bwrap, self._provider.python, users is not None
                self._interpreter = await asyncio.to_thread(look, *arguments)
        layout = _bwrap.Layout(
            bwrap=bwrap,
            interpreter=self._interpreter,
            workdir=spec.workdir,
            disk=spec.disk,
            packages=self._packages,
            as_root=users is not None,
        )
        user = secrets.choice(users) if users else 0
        return Plan(
            spec=spec,
            interpreter=self._interpreter,
            layout=layout,
            packages=self._packages,
            user=user,
        )

    def _plan_without_namespaces(self, spec: SandboxSpec) -> Plan:
        interpreters = _bwrap.interpreters(self._provider.python)
        if not interpreters:
            raise SandboxConfigError(f"no program at {self._provider.python!r}", provider="local")
        confined = self._provider.isolation == "landlock"
        users = _bwrap.user_ids() if confined else None
        return Plan(
            spec=replace(spec, workdir=name_folder()),
            interpreter=interpreters[0],
            layout=None,
            packages=self._packages,
            user=secrets.choice(users) if users else 0,
            readable=_bwrap.readable(interpreters[0], self._packages) if confined else (),
        )
