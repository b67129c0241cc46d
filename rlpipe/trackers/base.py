"""Where a run's figures go besides its own folder."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rlpipe.component import Component


class Tracking(ABC):
    """An open tracker."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record figures of a step; a later call may add to an earlier step."""


class Tracker(Component):
    """Declares a tracker."""

    def open(
        self, *, name: str, run_id: str, folder: Path, config: Mapping[str, Any]
    ) -> AbstractContextManager[Tracking]:
        """Open it for one run; `config` is the resolved spec without secrets."""
        raise NotImplementedError
