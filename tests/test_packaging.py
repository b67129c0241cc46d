"""What a user installs: wheel and sdist carry conf/ and recipes/, and run without the checkout."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist, and a wheel made from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def yaml_files():
    return {
        str(f.relative_to(ROOT)) for d in ("conf", "recipes") for f in (ROOT / d).rglob("*.yaml")
    }


def test_the_wheel_carries_every_choice_and_recipe(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    assert {f"rlpipe/_data/{name}" for name in yaml_files()} <= names
    assert "rlpipe/py.typed" in names
    assert not any(name.startswith(("tests/", "conf/")) for name in names)


def test_the_wheel_carries_the_pages_and_the_licences_of_their_libraries(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    assets = ROOT / "rlpipe" / "report" / "assets"
    files = {str(file.relative_to(ROOT)) for file in assets.rglob("*") if file.is_file()}
    assert len(files) > 10
    assert files <= names
    licences = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    assert {"LICENSE", "uplot.LICENSE", "prism.LICENSE"} <= licences


def test_the_sdist_carries_what_the_wheel_is_made_of(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert yaml_files() <= names
    assert {"pyproject.toml", "LICENSE", "README.md"} <= names


def test_an_installed_wheel_runs_a_recipe_dry(built, tmp_path):
    site = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        site,
        built[0],
    ]
    subprocess.run(command, check=True, timeout=120)
    # Ahead of the checkout's own entry, and started where no checkout is.
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import rlpipe; assert 'site' in rlpipe.__file__, rlpipe.__file__\n"
        "from rlpipe.cli import main; main(['+recipe=quickstart', 'dry_run=true'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "quickstart: valid" in done.stdout
