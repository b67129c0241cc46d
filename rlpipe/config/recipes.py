"""Serve `recipes/NAME.yaml` to Hydra as the config group `recipe`.

Hydra maps a group to a folder of the same name on its search path. Recipes lie flat in
`recipes/`, so this source shows that folder under the group's name instead of asking users for
`recipes/recipe/`.
"""

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin

from rlpipe.config.paths import recipe_folders
from rlpipe.config.recipe_file import read

GROUP = "recipe"


class RecipeSource(ConfigSource):
    """A flat folder of recipes, seen as one group."""

    @staticmethod
    def scheme() -> str:
        return "recipes"

    def _file(self, config_path: str) -> Path | None:
        group, _, name = config_path.partition("/")
        if group != GROUP or not name:
            return None
        file = Path(self.path, self._normalize_file_name(name))
        return file if file.is_file() else None

    def available(self) -> bool:
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", GROUP)

    def is_config(self, config_path: str) -> bool:
        return self._file(config_path) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        file = self._file(config_path)
        if file is None:
            raise ConfigLoadError(f"no recipe at {config_path}")
        return ConfigResult(
            provider=self.provider,
            path=str(file),
            config=read(file),
            header={"package": "_global_"},
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path.strip("/") == "":
            return [] if results_filter == ObjectType.CONFIG else [GROUP]
        if results_filter == ObjectType.GROUP:
            return []
        return sorted(file.stem for file in Path(self.path).glob("*.yaml") if file.is_file())


class RecipeSearchPath(SearchPathPlugin):
    """Puts the user's recipes and rlpipe's own on Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in recipe_folders():
            search_path.append("recipes", f"recipes://{folder}")


def install() -> None:
    """Make `+recipe=` known to Hydra."""
    plugins = Plugins.instance()
    plugins.register(RecipeSource)
    plugins.register(RecipeSearchPath)
