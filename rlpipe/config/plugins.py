"""Serve the kinds of other distributions to Hydra as choices: `reward=brevity`.

A choice of rlpipe's own is a file in `conf/`. A plugin brings a class, and its file is made from
that class: every option with its default.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from rlpipe.component import lookup, plugin_kinds
from rlpipe.config.schema import PACKAGES

KEYED = ("tools", "tracker")
"""Groups of which several are chosen, each under its own name."""


class PluginSource(ConfigSource):
    """Asked last, when no file has the choice."""

    @staticmethod
    def scheme() -> str:
        return "plugins"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", *PACKAGES)

    def is_config(self, config_path: str) -> bool:
        group, kind = self._split(config_path)
        return group in PACKAGES and kind in plugin_kinds(PACKAGES[group])

    def load_config(self, config_path: str) -> ConfigResult:
        if not self.is_config(config_path):
            raise ConfigLoadError(f"no choice at {config_path}")
        group, kind = self._split(config_path)
        component = lookup(PACKAGES[group], kind)
        options = {
            name: "???" if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in component.model_fields.items()
        }
        options = {"kind": kind} | {name: v for name, v in options.items() if name != "kind"}
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://{config_path}",
            config=OmegaConf.create({kind: options} if group in KEYED else options),
            header={"package": None},
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        group = config_path.strip("/")
        if group not in PACKAGES or results_filter == ObjectType.GROUP:
            return []
        return sorted(plugin_kinds(PACKAGES[group]))

    def _split(self, config_path: str) -> tuple[str, str]:
        group, _, name = config_path.strip("/").partition("/")
        return group, name.removesuffix(".yaml")


class PluginSearchPath(SearchPathPlugin):
    """Puts the kinds of other distributions at the end of Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("plugins", "plugins://kinds")


def install() -> None:
    """Make choices of other distributions known to Hydra."""
    plugins = Plugins.instance()
    plugins.register(PluginSource)
    plugins.register(PluginSearchPath)
