"""Server processes that nobody has to clean up after.

A *tied* server cannot outlive the process that starts it, not even one that is killed with -9: the
child asks the kernel for a signal at its parent's death (prctl, Linux) and then becomes the server.
It asks itself, in a small Python program, because a hook between fork and exec is not safe in a
process with threads. Where there is no prctl, only a regular end cleans up.

A *kept* server lives as long as any process uses it. Each user holds a shared lock on a file, which
the kernel releases however that process ends. This module, run as a program, is the keeper: it
starts the server tied to itself, starts it again if it crashes, and ends it in good order once it
gets the lock alone. It needs nothing but the standard library.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import IO

TIE = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""
LOOK_S = 1.0
END_S = 30.0
READY = b"ready"


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


def locked(path: Path, alone: bool, wait: bool = True) -> IO[str] | None:
    """The file, locked until it is closed or this process ends; None if it would have to wait."""
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    file = path.open("a")
    try:
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def start_kept(command: Sequence[str | Path], folder: Path, users: Path, keeper: Path) -> bool:
    """Start a command under a keeper of its own; False if it has one.

    `users` is the file that users of the server lock, `keeper` the one that the keeper locks.
    """
    words = [str(word) for word in (folder, users, keeper, *command)]
    program = [sys.executable, "-I", "-S", __file__, *words]
    with (folder / "log").open("ab") as log:
        said = subprocess.run(  # noqa: S603 - the command is ours
            program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            check=True,
        )
    return said.stdout == READY


def _keep(folder: Path, users: Path, keeper: Path, command: Sequence[str]) -> None:
    """Only one keeper at a time; whoever started it reads until it lets go of the output."""
    mine = locked(keeper, alone=True, wait=False)
    if mine is None:
        return
    log = folder / "log"
    server = start_tied(command, folder, log)
    os.write(1, READY)
    os.close(1)
    while (over := locked(users, alone=True, wait=False)) is None:
        try:
            server.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            continue
        Event().wait(LOOK_S)
        server = start_tied(command, folder, log)
    server.terminate()
    try:
        server.wait(END_S)
    except subprocess.TimeoutExpired:
        end(server)
    mine.close()
    over.close()  # the last: who waits for it must find no keeper any more


if __name__ == "__main__" and os.fork() == 0:
    _keep(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
