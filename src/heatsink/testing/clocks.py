"""Clocks for tests: one turned by hand, and an event loop on virtual time.

On virtual time the clock advances only when no task is ready to run. So an hour of timeouts,
retries and leases takes only as long as its computations, and every run is the same. The production
code runs unchanged.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, TypeVar

BEGINNING_S = 1_800_000_000.0
ROUNDS_MAX = 10
Result = TypeVar("Result")


class ManualClock:
    """A clock that stands still until `advance` or `set_wall` moves it.

    `boot` identifies the boot of the machine. By default it is the same for all manual clocks.

    Example::

        clock = ManualClock()
        await clock.advance(30.0)
    """

    def __init__(self, now_s: float = BEGINNING_S) -> None:
        self.boot = "this boot"
        self.is_synchronised = False
        self._began_s = now_s
        self._passed_s = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = 0

    def now_s(self) -> float:
        return self._began_s + self._passed_s

    def monotonic_s(self) -> float:
        return self._passed_s

    def boot_id(self) -> str:
        return self.boot

    def boot_s(self) -> float:
        return self._passed_s

    def synchronised_s(self) -> float | None:
        return self.now_s() if self.is_synchronised else None

    async def sleep(self, seconds: float) -> None:
        awake = asyncio.get_running_loop().create_future()
        self._order += 1
        heappush(self._sleepers, (self._passed_s + seconds, self._order, awake))
        await awake

    def set_wall(self, now_s: float) -> None:
        """Make the wall clock jump to `now_s`; no time passes."""
        self._began_s = now_s - self._passed_s

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass.

        Sleepers are woken in order, and each runs before the next one wakes.
        """
        until_s = self._passed_s + seconds
        await self._let_others_run()
        while self._sleepers and self._sleepers[0][0] <= until_s:
            wake_s, _, awake = heappop(self._sleepers)
            self._passed_s = max(wake_s, self._passed_s)
            if not awake.done():
                awake.set_result(None)
            await self._let_others_run()
        self._passed_s = until_s

    async def _let_others_run(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


class SkewedClock:
    """One process's clock on virtual time: wrong by `offset_s`, and stopped by `stall`.

    `boot` identifies the boot of the process's machine. `kernel_offset_s` is the error of the
    kernel's clock if the kernel reports it as synchronised, otherwise None.

    Example::

        clock = SkewedClock(offset_s=3.0)
        clock.stall(10.0)
    """

    def __init__(self, offset_s: float = 0.0) -> None:
        self.offset_s = offset_s
        self.boot = "this boot"
        self.kernel_offset_s: float | None = None
        self._stalled_until_s = 0.0

    def now_s(self) -> float:
        return BEGINNING_S + self.monotonic_s() + self.offset_s

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def boot_id(self) -> str:
        return self.boot

    def boot_s(self) -> float:
        return self.monotonic_s()

    def synchronised_s(self) -> float | None:
        off_s = self.kernel_offset_s
        return None if off_s is None else BEGINNING_S + self.monotonic_s() + off_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.awake()

    def stall(self, seconds: float) -> None:
        """Freeze the process: no sleep or call returns for `seconds`."""
        self._stalled_until_s = max(self._stalled_until_s, self.monotonic_s() + seconds)

    async def awake(self) -> None:
        """Wait until the process is no longer stalled."""
        while (left_s := self._stalled_until_s - self.monotonic_s()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left_s)


class Deadlock(RuntimeError):
    """Every task waits, and no timer is left that could wake one."""


class _LeapingSelector(selectors.DefaultSelector):
    """A selector that never waits: it advances the virtual time by the timeout instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set: nothing can run again")
        self.now_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _LeapingSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now_s

    def block(self, seconds: float) -> None:
        """Advance the virtual time as if a handler blocked the event loop for `seconds`."""
        self._leaping.now_s += seconds


def run_on_virtual_time(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine like `asyncio.run`, on virtual time; raises `Deadlock` if nothing can run.

    Threads and sockets do not work on virtual time.

    Example::

        run_on_virtual_time(asyncio.sleep(3600))  # returns immediately
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(work)
        finally:
            with suppress(Deadlock):
                runner.run(_end_all())


async def _end_all() -> None:
    """Cancel all tasks, and then the tasks that these start while they end."""
    me = asyncio.current_task()
    for _ in range(ROUNDS_MAX):
        left = [task for task in asyncio.all_tasks() if task is not me]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
