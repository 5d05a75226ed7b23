"""Every block of the README, as a stranger runs it: one by one, each in a fresh shell.

The machine is fresh too: a home of its own, no package of this checkout, and the wheel in place of
this folder. The blocks may rely on nothing but the install line.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from heatsink.stores.embedded import free_port
from tests.docs.pages import PAGES, Block, blocks, name_of

from .building import ROOT, RUN_S, Environment, build, find_uv

README = ROOT / "README.md"
ENVIRONMENT = "heatsink-env"
INSTALL = "python3 -m venv ~/heatsink-env && ~/heatsink-env/bin/pip install '.[local]'"
EXTRAS = re.compile(r"pip install\s+'?([^\s'`]*\[[\w,]+\])")
PORT = "8321"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home after the install line: with the wheel, and exactly what its extra asks for."""
    home = tmp_path_factory.mktemp("home")
    Environment(
        home / ENVIRONMENT, build("wheel", ROOT, tmp_path_factory.mktemp("wheel")), find_uv()
    ).install("local")
    return home


@pytest.fixture
def port() -> int:
    return free_port()


def in_a_fresh_shell(command: str, home: Path, folder: Path, port: int) -> str:
    """What the command prints. It runs in a session of its own, and all that it started ends."""
    variables = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    shell = subprocess.Popen(
        ["bash", "-c", f"set -e\n{command.replace(PORT, str(port))}"],
        cwd=folder,
        env={**variables, "HEATSINK_SERVE_PORT": str(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = _said(shell)
    finally:
        _end(shell.pid)
    assert shell.returncode == 0, said
    return said


def _said(shell: subprocess.Popen[str]) -> str:
    """Everything up to the end of the shell; a server that it leaves keeps the pipe open."""
    shell.wait(RUN_S)
    _end(shell.pid)
    said, _ = shell.communicate(timeout=RUN_S)
    return said


def _end(session: int) -> None:
    try:
        os.killpg(session, signal.SIGTERM)
    except ProcessLookupError:
        return


def of_language(language: str) -> list[Block]:
    return [block for block in blocks(README) if block.language == language and block.is_run]


def test_the_readme_has_one_install_line() -> None:
    lines = [line for block in blocks(README) for line in block.text.splitlines()]
    assert [line for line in lines if "pip install" in line] == [INSTALL]


def test_no_page_installs_from_an_index() -> None:
    """Heatsink is not on one: `'heatsink[redis]'` would fetch the package of somebody else."""
    found = {
        (name_of(page), what)
        for page in PAGES
        for what in EXTRAS.findall(page.read_text())
        if not what.startswith(".[")
    }
    assert found == set()


@pytest.mark.parametrize("number", range(len(of_language("python"))))
def test_each_python_block_runs_by_itself(
    number: int, home: Path, tmp_path: Path, port: int
) -> None:
    block = of_language("python")[number]
    text = README.read_text()
    before = text[: text.index(block.text)]
    name = re.findall(r"[Ss]ave this as `(\w+\.py)`", before)[-1]
    (tmp_path / name).write_text(block.text)
    command = f"~/{ENVIRONMENT}/bin/python {name}"
    assert command in " ".join(before.split()[-20:])
    said = in_a_fresh_shell(command, home, tmp_path, port)
    assert said.strip()


@pytest.mark.parametrize("number", range(len(of_language("sh"))))
def test_each_shell_block_runs_by_itself(
    number: int, home: Path, tmp_path: Path, port: int
) -> None:
    command = of_language("sh")[number].text
    if command == INSTALL:
        command = f"~/{ENVIRONMENT}/bin/heatsink --version"
    said = in_a_fresh_shell(command, home, tmp_path, port)
    assert "heatsink, version" in said or '"id"' in said
