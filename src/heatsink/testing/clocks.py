"""Clocks for tests: a clock that a test moves by hand, and an event loop on virtual time.

On virtual time the clock advances only when no task is ready to run. So an hour of timeouts,
retries and leases takes only as long as its computations, and every run is the same. The production
code runs unchanged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

BEGINNING_S = 1_800_000_000.0
ROUNDS_MAX = 10
CANCELLED_MAX = 100
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


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without sockets, signals and real time.

    If no callback is ready, its time leaps to the next timer. Timers of the same time are called in
    the order in which they were set. Simulations spend most of their time in an event loop. So for
    speed, this event loop has its own queues: those of asyncio also wait for sockets and threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._due: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._set = 0
        self._cancelled = 0

    def time(self) -> float:
        return self._now_s

    def block(self, seconds: float) -> None:
        """Advance the virtual time as if a handler blocked the event loop for `seconds`."""
        self._now_s += seconds

    def call_soon(  # type: ignore[override]  # the arguments are the caller's affair
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        self._due.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._check_open()
        timer: Any = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # so that `_timer_handle_cancelled` is called
        self._set += 1
        heappush(self._timers, (when, self._set, timer))
        found: asyncio.TimerHandle = timer
        return found

    def _check_open(self) -> None:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")

    def _timer_handle_cancelled(self, _: asyncio.TimerHandle) -> None:
        """Forget cancelled timers once they are many, as asyncio does."""
        self._cancelled += 1
        if self._cancelled > CANCELLED_MAX and 2 * self._cancelled > len(self._timers):
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapify(self._timers)
            self._cancelled = 0

    def _run_once(self) -> None:
        due = self._due
        if not due and not self._stopping:  # type: ignore[attr-defined]
            self._leap()
        while self._timers and self._timers[0][0] <= self._now_s:
            timer: Any = heappop(self._timers)[2]
            timer._scheduled = False
            due.append(timer)
        for _ in range(len(due)):
            handle: Any = due.popleft()
            if not handle._cancelled:
                handle._run()

    def _leap(self) -> None:
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
            self._cancelled -= 1
        if not self._timers:
            raise Deadlock("every task waits and no timer is set: nothing can run again")
        self._now_s = max(self._now_s, self._timers[0][0])

    def _write_to_self(self) -> None:
        """Another thread would wake the loop by this. No thread does."""

    def close(self) -> None:
        super().close()
        self._due.clear()
        self._timers.clear()


def run_on_virtual_time(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on virtual time, like `asyncio.run`. Raises `Deadlock` if nothing can run.

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
