"""Environments of their own for what is measured beside us: made once, from locked versions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1] / ".tools"


def python_of(requirements: Path) -> Path | None:
    """The Python of an environment with these packages; None if they cannot be had here."""
    folder = TOOLS / f"{requirements.stem}-venv"
    python, uv = folder / "bin" / "python", str(TOOLS / "bin" / "uv")
    make = [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)]
    install = [uv, "pip", "install", "--quiet", "--require-hashes", "--python", str(python)]
    made = _made(folder, requirements, make, [*install, "-r", str(requirements)])
    return python if made else None


def node_modules_of(lock: Path) -> Path | None:
    """A folder of modules as `lock` and the package.json beside it say."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    folder = TOOLS / "bench-modules"
    folder.mkdir(parents=True, exist_ok=True)
    for file in (lock, lock.with_name("package.json")):
        shutil.copy(file, folder)
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
    return folder / "node_modules" if _made(folder, lock, install) else None


def _made(folder: Path, lock: Path, *commands: Sequence[str]) -> bool:
    made_from, wanted = folder / "made-from", lock.read_text()
    if made_from.exists() and made_from.read_text() == wanted:
        return True
    try:
        for command in commands:
            subprocess.run(command, check=True)  # noqa: S603  the commands are the ones above
    except (OSError, subprocess.CalledProcessError):
        return False
    made_from.write_text(wanted)
    return True
