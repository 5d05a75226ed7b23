"""The runs of an experiment, each in a process of its own, with a progress bar.

A run on virtual time keeps its process busy for seconds. Since each run has its own process, the
runs use all cores, and Ctrl-C ends them immediately.

Each process has a pipe of its own, and the processes share no lock. So a signal may kill any of the
processes at any time, for example a signal to the whole process group. `multiprocessing.Pool` would
then wait for ever for the lock of its dead process.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection, wait
from signal import pthread_sigmask
from typing import Any, TypeVar

from heatsink.errors import Unavailable
from heatsink.server.commands.progress import progress_bar
from heatsink.server.running import SIGNALS
from heatsink.testing import run_on_virtual_time

T = TypeVar("T")
Run = Callable[[], Any]
LOOK_S = 1.0  # how often an idle process looks whether its parent is still there


def simulated(play: Callable[..., Coroutine[Any, Any, Any]], *arguments: object) -> Run:
    """Return a function that runs `play(*arguments)` on virtual time."""
    return partial(_play, play, *arguments)


def _play(play: Callable[..., Coroutine[Any, Any, T]], *arguments: object) -> T:
    return run_on_virtual_time(play(*arguments))


def run_all(runs: Sequence[Run]) -> list[Any]:
    """Run all functions in parallel processes; return their results in the order of `runs`.

    The functions, their arguments and results must be picklable.
    """
    results: list[Any] = [None] * len(runs)
    waiting, busy = deque(enumerate(runs)), dict[Connection, int]()
    # The processes come first: the bar has a thread, and a fork copies locks that a thread holds.
    with _processes(min(len(runs), os.cpu_count() or 1)) as idle, progress_bar() as bar:
        task = bar.add_task("running on virtual time", total=len(runs))
        while waiting or busy:
            while waiting and idle:
                pipe, (number, run) = idle.pop(), waiting.popleft()
                pipe.send(run)
                busy[pipe] = number
            for pipe in busy.keys() & set(wait(busy)):
                results[busy.pop(pipe)] = _result(pipe)
                idle.append(pipe)
                bar.advance(task)
    return results


def _result(pipe: Connection) -> Any:
    try:
        result, error = pipe.recv()
    except EOFError:
        raise Unavailable("the process of a run was killed: run the command again") from None
    if error is not None:
        raise error
    return result


@contextmanager
def _processes(count: int) -> Iterator[list[Connection]]:
    """Yield the pipes of processes that run functions. The processes end with the block.

    A signal is held back until all processes have started.
    """
    pipes, processes = [], []
    pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        for _ in range(count):
            ours, theirs = Pipe()
            process = Process(target=_work, args=(theirs, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        yield pipes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _work(pipe: Connection, parent: int) -> None:
    """Run functions from the pipe until the parent ends this process, or ends itself.

    The process ignores Ctrl-C, which a terminal sends to all processes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    while True:
        while not pipe.poll(LOOK_S):
            if os.getppid() != parent:
                return
        run = pipe.recv()
        try:
            result, error = run(), None
        except Exception as raised:  # raised again in the parent
            result, error = None, raised
        pipe.send((result, error))
