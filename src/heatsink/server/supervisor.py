"""A parent that runs several processes of one service, without serving anything itself.

It starts the processes, and restarts one that dies: after a second the first time, later the next
time. For each process that dies, it may start a further one, which frees what the dead one had. On
SIGHUP it replaces the processes one by one. SIGINT and SIGTERM end all of them. A second of these
signals kills them. On Linux, if the parent is killed (kill -9), the system kills the processes,
too.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from heatsink.errors import HeatsinkError, Misconfigured
from heatsink.primitives.clock import Clock
from heatsink.primitives.processes import tie_to

from .running import tell

logger = logging.getLogger("heatsink")
PROCESSES_MAX = 256
RESTART_PAUSE_S = 1.0
RESTART_PAUSE_S_MAX = 30.0
STABLE_S = 60.0  # a process that ran so long is restarted after `RESTART_PAUSE_S` again
LOOK_S = 0.1
ENDING = {signal.SIGTERM, signal.SIGINT}
WATCHED = ENDING | {signal.SIGHUP, signal.SIGCHLD}
Ready = Callable[[int], None]


class Child(NamedTuple):
    """A process of a supervisor: its number, and how many processes were started before it.

    A process that replaces another one has the same number.
    """

    number: int
    earlier: int


class Supervisor:
    """Starts processes, restarts those that die, and replaces all at SIGHUP.

    `work` is the function that each process runs. Its arguments are the `Child`, and a function to
    call when the process is ready. When a child dies, a separate process calls `died`, so that the
    parent only waits for signals. Messages call a process `what`.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[Child, Ready], None],
        clock: Clock,
        what: str = "process",
        died: Callable[[Child], None] | None = None,
    ) -> None:
        self._count = count
        self._work = work
        self._clock = clock
        self._what = what
        self._died = died
        self._started = 0
        self._running: dict[int, Child] = {}  # by process ids
        self._helpers: set[int] = set()  # processes that call `died`
        self._leaving: set[int] = set()
        self._started_s = dict.fromkeys(range(count), 0.0)
        self._pauses_s = dict.fromkeys(range(count), RESTART_PAUSE_S)
        self._due_s: dict[int, float] = {}  # when to restart the processes that died

    def run(self, started: Callable[[], None]) -> int:
        """Run until SIGINT or SIGTERM, and return the signal. Call `started` when all are ready.

        Raises `Misconfigured` if a process cannot start.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        try:
            for number in range(self._count):
                is_ready = self._start(number)
                if _is_ending():
                    return self._watch()
                if not is_ready:
                    raise Misconfigured(f"a {self._what} could not start: see its log")
            started()
            return self._watch()
        finally:
            self._stop_all()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _watch(self) -> int:
        while True:
            came = signal.sigtimedwait(WATCHED, self._until_restart_s())
            if came is not None and came.si_signo in ENDING:
                return came.si_signo
            if came is not None and came.si_signo == signal.SIGHUP:
                self._replace_all()
            self._reap()
            self._restart_due()

    def _until_restart_s(self) -> float:
        due_s = min(self._due_s.values(), default=None)
        return 3_600.0 if due_s is None else max(due_s - self._clock.monotonic_s(), 0.0)

    def _restart_due(self) -> None:
        for number, due_s in list(self._due_s.items()):
            if due_s > self._clock.monotonic_s() or _is_ending():
                continue
            del self._due_s[number]
            self._start(number)  # if it fails, its end is noticed as any other

    def _plan_restart(self, number: int) -> float:
        """Plan to restart a process that ended. Returns the seconds until then."""
        now_s = self._clock.monotonic_s()
        if now_s - self._started_s[number] > STABLE_S:
            self._pauses_s[number] = RESTART_PAUSE_S
        pause_s = self._pauses_s[number]
        self._pauses_s[number] = min(2 * pause_s, RESTART_PAUSE_S_MAX)
        self._due_s.setdefault(number, now_s + pause_s)
        return pause_s

    def _start(self, number: int) -> bool:
        """Start a process, and return whether it became ready. A signal to end stops the wait."""
        reading, writing = os.pipe()
        sys.stdout.flush()
        about, self._started = Child(number, self._started), self._started + 1
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            os.close(reading)
            work = partial(self._work, about, lambda _: _tell(writing))
            os._exit(self._in_child(f"{self._what} {number}", work, parent))
        os.close(writing)
        self._running[child] = about
        self._started_s[number] = self._clock.monotonic_s()
        with os.fdopen(reading, "rb") as pipe:
            while not _is_ending():
                if select.select([pipe], [], [], LOOK_S)[0]:
                    return bool(pipe.read(1))
        return False

    def _in_child(self, name: str, work: Callable[[], None], parent: int) -> int:
        try:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
            tie_to(parent)
            work()
        except HeatsinkError as error:
            logger.error("%s ends: %s", name, error)
            return 1
        except BaseException:
            logger.exception("%s ends", name)
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return 0

    def _replace_all(self) -> None:
        tell("restarting", "replacing the processes one by one")
        for child, (number, _) in list(self._running.items()):
            if child in self._leaving:
                continue
            is_ready = self._start(number)
            if _is_ending():
                return
            if not is_ready:
                logger.error("%s %d could not be replaced: the old one goes on", self._what, number)
                continue
            self._leaving.add(child)
            os.kill(child, signal.SIGTERM)

    def _reap(self) -> None:
        """Collect processes that ended, and plan restarts of those that should not have."""
        while self._running or self._helpers:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                break
            if child in self._helpers:
                self._helpers.discard(child)
                continue
            about, code = self._running.pop(child), os.waitstatus_to_exitcode(status)
            numbers = {each.number for each in self._running.values()}
            if child in self._leaving:
                self._leaving.discard(child)
            elif about.number not in numbers and about.number not in self._due_s:
                logger.error(
                    "%s %d died (%d): restarting it in %.0f s",
                    self._what,
                    about.number,
                    code,
                    self._plan_restart(about.number),
                )
            if code != 0:
                self._tell_died(about)

    def _tell_died(self, about: Child) -> None:
        """Call `died` in a process of its own."""
        if self._died is None:
            return
        sys.stdout.flush()
        parent = os.getpid()
        helper = os.fork()
        if helper == 0:
            name = f"the process that frees what {self._what} {about.number} had"
            os._exit(self._in_child(name, partial(self._died, about), parent))
        self._helpers.add(helper)

    def _stop_all(self) -> None:
        """Ask all processes to end, and wait for them. A second signal kills them."""
        self._signal_all(signal.SIGTERM)
        while self._running:
            child, _ = os.waitpid(-1, os.WNOHANG)
            if child:
                self._running.pop(child, None)
                continue
            came = signal.sigtimedwait(ENDING | {signal.SIGCHLD}, LOOK_S)
            if came is not None and came.si_signo in ENDING:
                self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._running:
            os.kill(child, number)


def _is_ending() -> bool:
    """Return whether a signal to end waits: the parent blocks its signals and takes them later."""
    return not ENDING.isdisjoint(signal.sigpending())


def _tell(writing: int) -> None:
    os.write(writing, b"1")
    os.close(writing)
