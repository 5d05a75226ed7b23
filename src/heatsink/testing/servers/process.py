"""A child process that cannot outlive its parent, not even one that is killed with -9.

The child asks the kernel for a signal at its parent's death (prctl, Linux) and then becomes the
server. It asks itself, in a small Python program, because a hook between fork and exec is not safe
in a process with threads. Where there is no prctl, only a regular end cleans up.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from heatsink.errors import HeatsinkError

TIE = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""


class MissingServer(HeatsinkError):
    """There is no such server on this machine. The message names the command that gets it."""


def start_tied(command: Sequence[str | Path], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a command in a folder, with its output in a file, tied to the life of this process."""
    words = [str(word) for word in command]
    tied = [sys.executable, "-I", "-S", "-c", TIE, str(os.getpid()), *words]
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - the command is ours
            tied, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """kill -9, and wait until it is gone."""
    process.kill()
    process.wait()
