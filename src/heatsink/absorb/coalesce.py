"""One load in flight per key, however many readers wait for it.

A load is a task of its own, so no reader's end is the load's end: one that is cancelled leaves, and
only when the last one has left is the load cancelled. Readers never wait for the task itself but
for its landing, which comes whatever happens to the task: it returns, raises, is cancelled before
its first step, or takes longer than the patience allows.

A key's newest flight is the one that may be joined and whose value may be kept. `forget` takes that
away from it: its own readers still get what it brings, nobody else does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from heatsink.clock import Clock
from heatsink.errors import Closed, InvalidSetting, Unavailable

from .shelf import Landing

Load = Callable[[], Awaitable[Any]]
Landed = Callable[["Flight"], None]


class Flight(Landing):
    """A load on its way. `is_wanted` keeps it going without readers: a refresh."""

    __slots__ = ("has_landed", "is_wanted", "loop", "on_landing", "task", "timer", "waiting")

    def __init__(self, began_s: float, on_landing: Landed, is_wanted: bool) -> None:
        super().__init__(began_s)
        self.on_landing = on_landing
        self.is_wanted = is_wanted
        self.has_landed = False
        self.loop = asyncio.get_running_loop()
        self.task: asyncio.Task[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.waiting: dict[asyncio.Future[None], None] = {}  # woken in order

    def land(self) -> None:
        self.has_landed = True
        if self.timer is not None:
            self.timer.cancel()
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


class Coalescer:
    """Takes no part in what becomes of a value: see `start`."""

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._now = clock.monotonic_s
        self._patience_s = patience_s
        self._flights: dict[str, Flight] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def flying(self, key: str, since_s: float) -> Flight | None:
        """The key's flight, if it began at `since_s` or later and in this event loop."""
        flight = self._flights.get(key)
        if flight is None or flight.began_s < since_s:
            return None
        return flight if flight.loop is asyncio.get_running_loop() else None

    def start(self, key: str, load: Load, on_landing: Landed, is_wanted: bool = False) -> Flight:
        """Begin a load. `on_landing` is told if the key has no newer one when it lands."""
        flight = Flight(self._now(), on_landing, is_wanted)
        flight.task = flight.loop.create_task(_called(load))
        flight.timer = flight.loop.call_later(self._patience_s, self._give_up, key, flight)
        self._flights[key] = flight
        self._tasks[flight.task] = None
        flight.task.add_done_callback(lambda task: self._ended(key, flight, task))
        return flight

    async def wait(self, key: str, flight: Flight) -> Any:
        flight.readers += 1
        waiter = flight.loop.create_future()
        flight.waiting[waiter] = None
        try:
            await waiter
        finally:
            del flight.waiting[waiter]
            if not (flight.has_landed or flight.waiting or flight.is_wanted):
                self._abandon(key, flight)
        return flight.outcome()

    def _abandon(self, key: str, flight: Flight) -> None:
        """Nobody waits any more. At once, so that the next reader does not join a dying load."""
        self._retire(key, flight)
        if flight.task is not None and not flight.loop.is_closed():
            flight.task.cancel()

    def _give_up(self, key: str, flight: Flight) -> None:
        text = f"the load of {key!r} took longer than {self._patience_s:g} s: retry later"
        self._land(key, flight, Unavailable(text))
        assert flight.task is not None
        flight.task.cancel()

    def _ended(self, key: str, flight: Flight, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            error: BaseException | None = Unavailable(f"the load of {key!r} was cancelled: retry")
        else:
            error = task.exception()
        if flight.has_landed:
            return
        if error is None:
            flight.value = task.result()
        self._land(key, flight, error)

    def _land(self, key: str, flight: Flight, error: BaseException | None) -> None:
        if error is not None:
            flight.fail(key, error)
        try:
            if self._retire(key, flight):
                flight.on_landing(flight)
        finally:  # whatever a user's `weigh` does, those who wait must hear of the landing
            flight.land()

    def _retire(self, key: str, flight: Flight) -> bool:
        """Whether the flight was its key's newest."""
        if self._flights.get(key) is not flight:
            return False
        del self._flights[key]
        return True

    def forget(self, key: str) -> None:
        """Whoever comes from now on must not be served by a load that began before."""
        self._flights.pop(key, None)

    def forget_all(self) -> None:
        self._flights.clear()

    def close(self) -> None:
        """End all loads; their readers get `Closed`."""
        for key, flight in list(self._flights.items()):
            flight.fail(key, Closed(f"closed during the load of {key!r}"))
            flight.land()
        self._flights.clear()
        for task in self._tasks:
            task.cancel()


async def _called(load: Load) -> Any:
    loading = load()
    if not isawaitable(loading):
        raise InvalidSetting("load must be an async function without parameters")
    return await loading
