"""An act of the demo: its text, a run with real traffic (often a duel of two lanes), a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from heatsink.primitives.clock import Clock

from .lanes import Contender, DemoLane, LaneNow
from .traffic import Pacer, Traffic, TrafficPlan
from .world import DemoWorld

Cell = int | str


Replays = tuple[tuple[str, str], ...]
AGAIN = (("", "Play it again"),)
DRAIN_POLL_S = 0.05
ENOUGH = 0.8  # of the calls that are due
TOO_BUSY = "This machine was too busy: play again."
Outcome = Literal["held", "not_held", "too_busy"]


class About(msgspec.Struct, frozen=True):
    """The text of an act.

    `look` says where to look on the page. `small_print` says how this run is set up. `replays` are
    the ways to play the act again: pairs of a traffic shape and a label.
    """

    name: str
    title: str
    sentences: tuple[str, str, str]
    look: str
    small_print: str
    replays: Replays


def about(name: str, title: str, words: str, replays: Replays = AGAIN) -> About:
    """Make an `About` from `words`, five paragraphs with an empty line between them.

    Three paragraphs tell the story, the fourth says where to look, and the fifth is the small
    print.
    """
    first, second, third, look, small_print = (" ".join(p.split()) for p in words.split("\n\n"))
    return About(name, title, (first, second, third), look, small_print, replays)


class ActSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """The state of a run after `second` seconds. `leg` names the current part of the run."""

    second: float
    leg: str

    def cells(self) -> dict[str, Cell]:
        """Return the figures of this snapshot by column name, for one line of a table."""
        return {}


class ActFinding(msgspec.Struct, frozen=True):
    """One sentence of a verdict. `good` is None if Heatsink promises nothing about its subject."""

    good: bool | None
    text: str


class Offer(msgspec.Struct, frozen=True):
    """How many calls (messages, likes, …) a run should have made, and how many this machine made.

    If `made` is less than the share `least` of `due`, the run proves nothing.
    """

    what: str
    due: int
    made: int
    least: float = ENOUGH

    @property
    def is_enough(self) -> bool:
        return self.made >= self.least * self.due


class ActVerdict(msgspec.Struct, frozen=True, tag="verdict"):
    """How a run ended. `line` is one sentence with figures, `findings` give the details."""

    line: str
    outcome: Outcome
    findings: list[ActFinding]


def settle(
    line: str, offer: Offer, findings: list[ActFinding], wrong: bool = False
) -> tuple[str, Outcome, list[ActFinding]]:
    """Return the fields of a verdict: its line, outcome and findings.

    If the machine offered too little traffic, the outcome is "too_busy". `wrong` says that
    acknowledged data is missing, duplicated or wrong. In this case the outcome is "not_held",
    however busy the machine was.
    """
    if not offer.is_enough and not wrong:
        share = offer.made / max(offer.due, 1)
        short = (
            f"This run managed {offer.made:,} of {offer.due:,} {offer.what} ({share:.0%}). It "
            f"counts from {offer.least:.0%} on."
        )
        facts = [ActFinding(None, text) for text in (short, line, *(f.text for f in findings))]
        return TOO_BUSY, "too_busy", facts
    held = not wrong and all(finding.good is not False for finding in findings)
    return line, "held" if held else "not_held", findings


@dataclass(frozen=True)
class Watcher:
    """Receives the snapshots of a run: `tell` is called with a snapshot every `every_s` seconds."""

    tell: Callable[[ActSnapshot], None]
    every_s: float


class Act(Protocol):
    name: str

    def about(self, plan: TrafficPlan) -> About: ...

    def seconds(self, plan: TrafficPlan) -> float:
        """Return about how many seconds a run takes, for the scales of charts."""

    async def run(self, world: DemoWorld, plan: TrafficPlan, watcher: Watcher) -> ActVerdict: ...


class Duel:
    """Offers the same traffic to two lanes: a plain store and Heatsink."""

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

    def offer(self, what: str) -> Offer:
        return Offer(what, self.traffic.calls, self._pacer.offered)

    def _offer(self, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            body = f"message {self._sent}".encode()
            self.plain.offer(body)
            self.heatsink.offer(body)

    async def _run(self) -> None:
        """Offer all traffic to both lanes, then wait for the last answers."""
        await self._pacer.run(self._offer)
        while self.plain.totals.waiting or self.heatsink.totals.waiting:
            await self._clock.sleep(DRAIN_POLL_S)

    async def fight(self, look: Callable[[], Awaitable[ActSnapshot]], watcher: Watcher) -> None:
        """Run the whole traffic on both lanes; `look` takes snapshots for the watcher."""
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
