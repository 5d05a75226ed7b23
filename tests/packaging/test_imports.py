"""What a program imports that only imports Heatsink, or asks for its version."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("starlette", "uvicorn", "plotly", "redis", "aiohttp", "botocore", "rich", "httptools")
LOADED = "import sys; print(*sorted(m for m in sys.modules if '.' not in m or 'heatsink' in m))"


def loaded_by(code: str) -> set[str]:
    command = [sys.executable, "-c", f"{code}\n{LOADED}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(said.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import heatsink",
        "from heatsink import connect, connect_sync",
        "from heatsink.cli import main; main(['--version'], standalone_mode=False)",
    ],
)
def test_no_package_is_imported_that_is_not_needed(code: str) -> None:
    assert not loaded_by(code) & {*HEAVY}


def test_a_bare_import_imports_nothing_of_ours() -> None:
    ours = {name for name in loaded_by("import heatsink") if name.startswith("heatsink")}
    assert ours == {"heatsink"}


def test_asking_for_the_version_imports_no_command() -> None:
    code = "from heatsink.cli import main; main(['--version'], standalone_mode=False)"
    ours = {name for name in loaded_by(code) if name.startswith("heatsink.")}
    assert not any(name.startswith(("heatsink.server", "heatsink.lab")) for name in ours)


@pytest.mark.parametrize("name", ["errors", "client", "testing"])
def test_packages_can_be_reached_from_the_root(name: str) -> None:
    assert f"heatsink.{name}" in loaded_by(f"import heatsink; heatsink.{name}")
