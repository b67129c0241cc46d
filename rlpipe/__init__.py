"""Declarative RL pipelines for code agents: one YAML experiment becomes a reproducible run.

import rlpipe

result = rlpipe.run(rlpipe.load_experiment("quickstart", "train.steps=5"))
print(result.last("val/pass_rate"), result.folder)
"""

from typing import Any

__version__ = "0.1.0"

_HOME = {
    "run": "rlpipe.runner",
    "check": "rlpipe.fit",
    "RunResult": "rlpipe.runner",
    "load_experiment": "rlpipe.config.compose",
    "Experiment": "rlpipe.config.schema",
    "ConfigError": "rlpipe.errors",
    "RunError": "rlpipe.errors",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    # `import rlpipe` costs nothing: pydantic and Hydra are loaded by those who need them.
    if name not in _HOME:
        raise AttributeError(f"module 'rlpipe' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
