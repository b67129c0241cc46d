"""A function of the user's own."""

import asyncio
import inspect
import math
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlpipe.errors import Finding, GraderError, InfrastructureError
from rlpipe.rewards.base import Reward
from rlpipe.sandboxes.base import Sandbox
from rlpipe.types import Score, Task, Trajectory


class Python(Reward):
    """What your own function returns for a task, a trajectory and its sandbox.

    `def reward(task, trajectory, sandbox)`, plain or `async`, returns a number, a truth value or
    a `Score`. A plain one runs in a thread. What it raises masks the trajectory.
    """

    kind: Literal["python"] = "python"
    function: str = Field(pattern=r"^[\w.]+:[\w.]+$")
    """Where it is, as `module:function`; the working directory is searched first."""

    in_place: ClassVar[bool] = True

    def check(self) -> list[Finding]:
        findings = super().check()
        package = self.function.partition(":")[0].partition(".")[0]
        if PathFinder.find_spec(package, _path()) is None and package not in sys.modules:
            findings.append(Finding("function", f"there is no module {package!r}"))
        return findings

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Score:
        function = _load(self.function)
        try:
            if inspect.iscoroutinefunction(function):
                value = await function(task, trajectory, sandbox)
            else:
                value = await asyncio.to_thread(function, task, trajectory, sandbox)
        except InfrastructureError:
            raise
        except Exception as error:
            raise GraderError(f"{self.function}: {type(error).__name__}: {error}") from error
        return self._score(value)

    def _score(self, value: Any) -> Score:
        if isinstance(value, Score):
            return value
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if isinstance(value, str) or not math.isfinite(number):
            raise GraderError(f"{self.function} returned {value!r}, which is no reward")
        passed = number >= 1.0
        return Score(value=number, passed=passed, outcome="passed" if passed else "not_passed")


def _load(path: str) -> Callable[..., Any]:
    module_name, _, names = path.partition(":")
    before = sys.path[:]
    sys.path[:] = _path()
    try:
        found: Any = import_module(module_name)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise GraderError(f"{path} cannot be loaded: {error}") from error
    finally:
        sys.path[:] = before
    if not callable(found):
        raise GraderError(f"{path} is no function")
    loaded: Callable[..., Any] = found
    return loaded


def _path() -> list[str]:
    return [os.getcwd(), *sys.path]
