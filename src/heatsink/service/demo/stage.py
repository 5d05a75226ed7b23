"""Runs the show for everybody who looks on, and keeps what happened for who comes late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import msgspec

from heatsink.clock import Clock
from heatsink.errors import HeatsinkError

from .show import Snapshot, Watcher, perform
from .traffic import Plan
from .verdict import Verdict

EVERY_S = 0.5


class Start(msgspec.Struct, frozen=True, tag="start"):
    """A run begins: what it will do, for scales and words."""

    plan: Plan
    seconds: float


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    text: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The demo ends: nothing follows."""


Event = Start | Snapshot | Verdict | Failed | Stop


class Stage:
    """One run at a time. `follow` gives a late viewer the whole present run, then what comes."""

    def __init__(self, plan: Plan, clock: Clock, rng: Random) -> None:
        self._plan = plan
        self._clock = clock
        self._rng = rng
        self._events: list[bytes] = []
        self._runs = 0
        self._running: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._closed = False

    @property
    def busy(self) -> bool:
        return self._running is not None and not self._running.done()

    def start(self, shape: str | None = None) -> bool:
        """Begin a run; False while another one is under way."""
        if self.busy or self._closed:
            return False
        if shape is not None:
            self._plan = msgspec.structs.replace(self._plan, shape=shape)
        self._runs += 1
        self._events = []
        self._tell(Start(self._plan, self._plan.traffic.seconds))
        self._running = asyncio.create_task(self._run(self._plan))
        return True

    async def _run(self, plan: Plan) -> None:
        try:
            watcher = Watcher(self._tell, EVERY_S)
            self._tell(await perform(plan, self._clock, self._rng, watcher))
        except* HeatsinkError as errors:
            self._tell(Failed(str(errors.exceptions[0])))

    def _tell(self, event: Event) -> None:
        self._events.append(msgspec.json.encode(event))
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self) -> AsyncIterator[bytes]:
        """Events as JSON, until the stage closes. The first viewer starts the first run."""
        if not self._runs:
            self.start()
        run, told = self._runs, 0
        while True:
            news = self._news
            if run != self._runs:
                run, told = self._runs, 0
            if told < len(self._events):
                told += 1
                yield self._events[told - 1]
            elif self._closed:
                return
            else:
                await news.wait()

    def end(self) -> None:
        """Break off the run and tell every viewer that nothing follows."""
        if not self._closed:
            self._closed = True
            self._tell(Stop())
            if self._running is not None:
                self._running.cancel()

    async def close(self) -> None:
        self.end()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
