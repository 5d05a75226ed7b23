"""What an act is: words, a run with real traffic (often a duel of two lanes), and a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from heatsink.primitives.clock import Clock

from .lanes import Contender, DemoLane, LaneNow
from .traffic import Pacer, Traffic, TrafficPlan
from .world import DemoWorld

Cell = int | str


Replays = tuple[tuple[str, str], ...]
AGAIN = (("", "Play it again"),)
DRAIN_POLL_S = 0.05


class About(msgspec.Struct, frozen=True):
    """An act in words. `look` says where to look, `small_print` what is special to this run.

    `replays` are the ways to play it again: shapes of its traffic, and their labels.
    """

    name: str
    title: str
    sentences: tuple[str, str, str]
    look: str
    small_print: str
    replays: Replays


def about(name: str, title: str, words: str, replays: Replays = AGAIN) -> About:
    """Make an `About` of five paragraphs: three sentences, where to look, the small print."""
    first, second, third, look, small_print = (" ".join(p.split()) for p in words.split("\n\n"))
    return About(name, title, (first, second, third), look, small_print, replays)


class ActSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """The state `second` seconds into the run; `leg` is the current part of it."""

    second: float
    leg: str

    def cells(self) -> dict[str, Cell]:
        """The figures by name, for one line of a table."""
        return {}


class ActFinding(msgspec.Struct, frozen=True):
    """One figure of a verdict: good, bad, or None if Heatsink promises nothing about it."""

    good: bool | None
    text: str


class ActVerdict(msgspec.Struct, frozen=True, tag="verdict"):
    """How a run ended: `line` in one sentence with its figures, `findings` one by one.

    `kept_everything`: nothing that Heatsink acknowledged is missing, duplicated or wrong.
    """

    line: str
    kept_everything: bool
    findings: list[ActFinding]


@dataclass(frozen=True)
class Watcher:
    """The receiver of a run's snapshots, and the interval between them."""

    tell: Callable[[ActSnapshot], None]
    every_s: float


class Act(Protocol):
    name: str

    def about(self, plan: TrafficPlan) -> About: ...

    def seconds(self, plan: TrafficPlan) -> float:
        """About how long a run takes, for the scales of charts."""

    async def run(self, world: DemoWorld, plan: TrafficPlan, watcher: Watcher) -> ActVerdict: ...


class Duel:
    """Two lanes under one pacer, so that both get the same traffic."""

    def __init__(self, traffic: Traffic, clock: Clock, plain: DemoLane, heatsink: DemoLane) -> None:
        self.traffic = traffic
        self.plain = plain
        self.heatsink = heatsink
        self._clock = clock
        self._pacer = Pacer(traffic, clock)
        self._sent = 0

    @property
    def second(self) -> float:
        return round(self._pacer.second, 2)

    @property
    def leg(self) -> str:
        return self.traffic.leg_at(self._pacer.second)[0].name

    @property
    def begun_s(self) -> float:
        return self._clock.monotonic_s() - self._pacer.second

    def _offer(self, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            body = f"message {self._sent}".encode()
            self.plain.offer(body)
            self.heatsink.offer(body)

    async def _run(self) -> None:
        """Offer all traffic, then wait for the last answers."""
        await self._pacer.run(self._offer)
        while self.plain.totals.waiting or self.heatsink.totals.waiting:
            await self._clock.sleep(DRAIN_POLL_S)

    async def fight(self, look: Callable[[], Awaitable[ActSnapshot]], watcher: Watcher) -> None:
        """Run the whole traffic on both lanes, and send snapshots to the watcher."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch(look, watcher, self._clock))
            await self._run()
            watching.cancel()
        watcher.tell(await look())

    async def now(self) -> tuple[LaneNow, LaneNow]:
        return await self.plain.now(), await self.heatsink.now()


async def watch(look: Callable[[], Awaitable[ActSnapshot]], watcher: Watcher, clock: Clock) -> None:
    while True:
        await clock.sleep(watcher.every_s)
        watcher.tell(await look())


@asynccontextmanager
async def duel_of(
    plain: Contender, heatsink: Contender, traffic: Traffic, clock: Clock
) -> AsyncIterator[Duel]:
    async with asyncio.TaskGroup() as tasks:
        lanes = DemoLane(plain, clock, tasks), DemoLane(heatsink, clock, tasks)
        yield Duel(traffic, clock, *lanes)
