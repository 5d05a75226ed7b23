"""The wheel and the sdist hold what a release needs, and nothing else."""

from __future__ import annotations

import subprocess
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from .building import ROOT, build

SOURCE = "src/"
LEFT_OUT = (".ci/", ".gitignore")  # of the sdist: they serve this repository alone


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout to know which files belong to the project")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def names_in(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_file_of_the_package(wheel: Path, tracked: set[str]) -> None:
    ours = {name.removeprefix(SOURCE) for name in tracked if name.startswith(SOURCE)}
    assert {name for name in names_in(wheel) if ".dist-info/" not in name} == ours
    assert "heatsink/py.typed" in ours
    assert {".lua", ".sql", ".html", ".js", ".css", ".svg", ".txt"} <= {
        Path(n).suffix for n in ours
    }


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = f"heatsink-{project['version']}.dist-info"
    with ZipFile(wheel) as archive:
        assert f"{about}/licenses/LICENSE" in archive.namelist()
        entry_points = archive.read(f"{about}/entry_points.txt").decode()
        metadata = archive.read(f"{about}/METADATA").decode()
    assert "heatsink = heatsink.cli:main" in entry_points
    for extra in project["optional-dependencies"]:
        assert f"Provides-Extra: {extra}\n" in metadata


def test_the_sdist_holds_the_project(sdist: Path, tracked: set[str]) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {name for name in tracked if not name.startswith(LEFT_OUT)}
    assert names - {"PKG-INFO", ".gitignore"} == wanted


def test_a_wheel_made_from_the_sdist_is_the_same(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    again = build("wheel", source, tmp_path / "again")
    with ZipFile(wheel) as first, ZipFile(again) as second:
        assert {n: first.read(n) for n in first.namelist()} == {
            n: second.read(n) for n in second.namelist()
        }
