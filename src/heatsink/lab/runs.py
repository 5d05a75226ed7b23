"""The runs of an experiment, each in a process of its own, with a progress bar.

A run on virtual time keeps its process busy for seconds. Since each run has its own process, the
runs use all cores, and Ctrl-C ends them immediately.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pool
from multiprocessing.pool import Pool as PoolType
from os import cpu_count
from signal import pthread_sigmask
from typing import Any, TypeVar

from heatsink.server.commands.progress import progress_bar
from heatsink.server.running import SIGNALS
from heatsink.testing import run_on_virtual_time

T = TypeVar("T")
Run = Callable[[], Any]


def simulated(play: Callable[..., Coroutine[Any, Any, Any]], *arguments: object) -> Run:
    """Return a function that runs `play(*arguments)` on virtual time."""
    return partial(_play, play, *arguments)


def _play(play: Callable[..., Coroutine[Any, Any, T]], *arguments: object) -> T:
    return run_on_virtual_time(play(*arguments))


def run_all(runs: Sequence[Run]) -> list[Any]:
    """Run all functions in parallel processes; return their results in the order of `runs`.

    The functions and their arguments must be picklable.
    """
    found = []
    # The pool comes first: the bar has a thread, and a fork copies locks that a thread holds.
    with _pool(min(len(runs), cpu_count() or 1)) as pool, progress_bar() as bar:
        task = bar.add_task("running on virtual time", total=len(runs))
        for result in pool.imap(_call, runs):
            found.append(result)
            bar.advance(task)
    return found


@contextmanager
def _pool(processes: int) -> Iterator[PoolType]:
    """Yield a pool of processes, which end with the block.

    A signal is held back until all processes have started.
    """
    pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        pool = Pool(processes, _obey)
    except BaseException:
        pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        raise
    with pool:
        pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        yield pool


def _obey() -> None:
    """Make a process of the pool ignore Ctrl-C, which a terminal sends to all processes.

    The parent process ends the pool's processes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _call(run: Run) -> Any:
    return run()
