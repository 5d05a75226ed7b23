"""The wheel is whole: what the package reads at run time is inside, and it runs from there."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
USE = """
import asyncio, pathlib, sys
import heatsink
from heatsink.client.otel import Tracing
from heatsink.client.starlette import lifespan
from heatsink.lab import report
from heatsink.server.dashboard import make_pages

async def main():
    async with heatsink.connect("sqlite:///wheel.db") as hs:
        await hs.log.append("conv", b"hey")
        assert (await hs.bulk.submit("say", [1, 2, 3])).items == 3

assert pathlib.Path(heatsink.__file__).is_relative_to(sys.argv[1]), heatsink.__file__
assert make_pages()
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built, unpacked = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("unpacked")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    return unpacked


def run(unpacked: Path, folder: Path, *arguments: str) -> str:
    variables = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_of_the_package_is_inside(unpacked: Path) -> None:
    ours = {
        str(file.relative_to(SOURCE))
        for file in (SOURCE / "heatsink").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    packed = {str(file.relative_to(unpacked)) for file in (unpacked / "heatsink").rglob("*.*")}
    assert ours <= packed
    kinds = {Path(name).suffix for name in packed}
    assert {".lua", ".sql", ".html", ".js", ".css", ".typed"} <= kinds


def test_it_runs_from_the_wheel_alone(unpacked: Path, tmp_path: Path) -> None:
    run(unpacked, tmp_path, "-c", USE, str(unpacked))
    assert "coordinator" in run(unpacked, tmp_path, "-m", "heatsink", "--help")


def test_it_says_what_it_is(unpacked: Path) -> None:
    (about,) = unpacked.glob("heatsink-*.dist-info")
    assert "heatsink = heatsink.cli:main" in (about / "entry_points.txt").read_text()
    metadata = (about / "METADATA").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"aws", "redis", "server", "otel"} <= set(project["optional-dependencies"])
    for extra in project["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in metadata
    assert (about / "licenses" / "LICENSE").exists()
