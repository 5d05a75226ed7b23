"""Clients that generators make from a running server's OpenAPI document work, and have types."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import nodejs
from tests.processes import Served, serving

HERE = Path(__file__).parent
TYPESCRIPT = HERE / "typescript"
RUN_S = 120
TOKEN = "admin-12"  # noqa: S105
ACTIONS = """
from heatsink.bulk import Actions, Fail

actions = Actions()


@actions.action("double", max_attempts=1)
async def double(item, context):
    if item["n"] == "odd":
        raise Fail("not a number")
    return 2 * item["n"]
"""
MYPY = """
[mypy]
strict = true

[mypy-heatsink_client.client]  # the same for every document
disable_error_code = arg-type

[mypy-heatsink_client.models.*]  # the generator casts lists of any JSON to what they are
disable_error_code = redundant-cast
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "client_app.py").write_text(ACTIONS)
    flags = ("--store", "memory://", "--actions", "client_app:actions")
    with serving(folder, *flags, "--token", f"admin:{TOKEN}") as served:
        yield served


def run(folder: Path, *command: str) -> str:
    """Run a command of Python's to its end, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def generate(server: Served, folder: Path) -> str:
    """Write the package heatsink_client and a program that uses it; return the warnings."""
    document = f"{server.url}/openapi.json"
    options = ("--url", document, "--meta", "none", "--output-path", "heatsink_client")
    said = run(folder, "-m", "openapi_python_client", "generate", *options)
    shutil.copy(HERE / "python_program.py", folder)
    return said


def test_a_python_client_works(server: Served, tmp_path: Path) -> None:
    said = generate(server, tmp_path)
    assert said.count("WARNING") == said.count("Unsupported content type application/x-ndjson") == 1
    run(tmp_path, "python_program.py", server.url, TOKEN)


@pytest.mark.full("mypy reads 140 modules; the client's calls are in the test above")
def test_a_python_client_has_strict_types(server: Served, tmp_path: Path) -> None:
    generate(server, tmp_path)
    (tmp_path / "mypy.ini").write_text(MYPY)
    run(tmp_path, "-m", "mypy", "heatsink_client", "python_program.py")


@pytest.mark.full("npm packages of 50 MB; the document is tested by the client in Python")
def test_a_typescript_client_has_types_and_works(server: Served, tmp_path: Path) -> None:
    installed = nodejs.installed(TYPESCRIPT)
    packages = installed / "node_modules"
    (tmp_path / "node_modules").symlink_to(packages)
    for name in ("program.ts", "tsconfig.json", "package.json"):
        shutil.copy(TYPESCRIPT / name, tmp_path)
    document = f"{server.url}/openapi.json"
    generator = packages / "openapi-typescript" / "bin" / "cli.js"
    nodejs.run(generator, document, "--output", "api.d.ts", folder=tmp_path)
    nodejs.run(packages / "typescript" / "bin" / "tsc", folder=tmp_path)
    nodejs.run(tmp_path / "program.ts", server.url, TOKEN, folder=tmp_path)
