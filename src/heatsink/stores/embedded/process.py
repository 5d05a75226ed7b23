"""Server processes that do not outlive the processes that need them.

A *tied* server cannot outlive the process that started it, even if SIGKILL ends that process. On
Linux, a small Python program asks the kernel (prctl) for a signal at the death of its parent. Then
this program becomes the server. A separate program is needed because a hook between fork and exec
is not safe in a process with threads. Without prctl, the server ends only if its parent exits
normally.

A *kept* server runs as long as any process uses it. Each process that uses it holds a shared lock
on a file. The kernel releases that lock however the process ends. This module, run as a program, is
the keeper. The keeper starts the server tied to itself and restarts it after a crash. When no
process uses the server any more, the keeper gets an exclusive lock on the file, and shuts the
server down. The keeper needs only the standard library.
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
        sys.exit("the parent process has already ended")
os.execv(sys.argv[2], sys.argv[2:])
"""
LOOK_S = 1.0
END_S = 30.0
READY = b"ready"


def start_tied(command: Sequence[str | Path], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a command in `folder`, with its output in `log`.

    The command is killed when this process ends. Ctrl-C in a terminal does not reach it: this
    process may still need the server while it ends.
    """
    words = [str(word) for word in command]
    tied = [sys.executable, "-I", "-S", "-c", TIE, str(os.getpid()), *words]
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - the command is ours
            tied,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process (kill -9) and wait until it is gone."""
    process.kill()
    process.wait()


def locked(path: Path, alone: bool, wait: bool = True) -> IO[str] | None:
    """Lock a file until the returned file is closed or this process ends.

    With `alone` the lock is exclusive, otherwise shared. With `wait=False`, returns None if another
    process holds a conflicting lock.
    """
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    file = path.open("a")
    try:
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def start_kept(command: Sequence[str | Path], folder: Path, users: Path, keeper: Path) -> bool:
    """Start a keeper, which runs the server with `command`. Returns False if a keeper runs.

    Each process that uses the server locks the file `users`. The keeper locks the file `keeper`.
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
    """Run the server until no process uses it. Return immediately if another keeper runs.

    The keeper closes its standard output when the server was started: its parent waits for this.
    """
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
    over.close()  # last: a process that waits for this lock must find no keeper


if __name__ == "__main__" and os.fork() == 0:
    _keep(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
