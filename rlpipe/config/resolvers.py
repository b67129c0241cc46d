"""The interpolations that `conf/config.yaml` and recipes name runs, folders and files with."""

import atexit
import secrets
import shutil
import tempfile
from functools import cache

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from rlpipe.config.paths import RECIPES


def _run_dir(path: str, *, _root_: DictConfig) -> str:
    """A dry run leaves nothing behind, but Hydra must write somewhere."""
    return _passing_folder() if _root_.get("dry_run") else path


@cache
def _passing_folder() -> str:
    folder = tempfile.mkdtemp(prefix="rlpipe-dry-run-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _recipe_name(otherwise: str, *, _root_: DictConfig) -> str:
    """The chosen recipe's name; Hydra's own part of the tree is not always in reach."""
    choices = _root_.hydra if "hydra" in _root_ else HydraConfig.get()
    return choices.runtime.choices.get("recipe") or otherwise


def install() -> None:
    """Register the interpolations; a second call changes nothing."""
    OmegaConf.register_new_resolver("run_dir", _run_dir, replace=True)
    OmegaConf.register_new_resolver("recipe_name", _recipe_name, replace=True)
    OmegaConf.register_new_resolver(
        "recipe_file", lambda name: str(RECIPES / name), replace=True, use_cache=True
    )
    OmegaConf.register_new_resolver(
        "short_id", lambda: secrets.token_hex(3), replace=True, use_cache=True
    )
