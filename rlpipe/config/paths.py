"""Where the YAML lies: the repository root in a checkout, `_data` in a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_DATA = _PACKAGE / "_data"
_ROOT = _DATA if _DATA.is_dir() else _PACKAGE.parent

CONF = _ROOT / "conf"
RECIPES = _ROOT / "recipes"


def recipe_folders() -> list[Path]:
    """Folders that are searched for recipes: the user's own first, then rlpipe's."""
    own = Path("recipes").resolve()
    return [own, RECIPES] if own.is_dir() and own != RECIPES.resolve() else [RECIPES]


def choices(group: str) -> list[str]:
    """The names that may stand behind `group=`."""
    folders = recipe_folders() if group == "recipe" else [CONF / group]
    return sorted(
        {file.stem for folder in folders for file in folder.glob("*.yaml") if file.is_file()}
    )


def groups() -> list[str]:
    """Every group that the packaged configuration has."""
    return sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())
