"""The wheel and the sdist as a release would build them, and one environment to install them in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALL_S = 120
RUN_S = 60


def build(target: str, source: Path, folder: Path) -> Path:
    """Build a wheel or an sdist of a source tree with the environment's own hatchling."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def find_uv() -> str:
    """The uv that ./dev fetched, or one on the PATH."""
    fetched = ROOT / ".tools" / "bin" / "uv"
    found = str(fetched) if fetched.exists() else shutil.which("uv")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("uv is missing: run the tests with ./dev test")
        pytest.skip("needs uv: ./dev test fetches it")
    return found


@dataclass
class Environment:
    """A virtual environment that holds the wheel, and exactly what its extras ask for.

    It is one folder for all extras, so that Python compiles a package once. uv links the packages
    from its cache in the versions of the lock, and removes all others.
    """

    folder: Path
    wheel: Path
    uv: str

    def __post_init__(self) -> None:
        self._uv("venv", "--python", sys.executable, str(self.folder))

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, extras: str, *others: str) -> None:
        """Have the wheel with these extras ("aws,redis"), these other packages and nothing else."""
        what = f"heatsink[{extras}]" if extras else "heatsink"
        options = ["--exact", "--no-verify-hashes", "--constraint", str(ROOT / "requirements.lock")]
        command = ["pip", "install", "--python", str(self.python), *options]
        wanted = [f"{what} @ {self.wheel.as_uri()}", *others]
        try:
            self._uv(*command, "--offline", *wanted)
        except subprocess.CalledProcessError:  # the cache was cleaned since ./dev filled it
            self._uv(*command, *wanted)

    def _uv(self, *arguments: str) -> None:
        command = [self.uv, *arguments, "--quiet"]
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_S)

    @property
    def variables(self) -> dict[str, str]:
        """Nothing of this process's own packages, and no Redis server from elsewhere."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        return {**kept, "PATH": str(self.folder / "bin"), "COLUMNS": "200"}

    def run(self, *command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
        words = [str(self.folder / "bin" / command[0]), *map(str, command[1:])]
        return subprocess.run(
            words,
            cwd=folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
