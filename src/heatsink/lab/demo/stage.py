"""Plays the acts for all viewers, and keeps the events for viewers who join late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

from heatsink.errors import HeatsinkError

from .act import About, Act, ActSnapshot, ActVerdict, Watcher
from .acts import ACTS, find_act
from .traffic import TrafficPlan
from .world import DemoWorld

EVERY_S = 0.5


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The acts, the one played last, and those that can be shown without playing them."""

    acts: list[About]
    playing: str
    played: list[str]


class Start(msgspec.Struct, frozen=True, tag="start"):
    """A run begins: its act and plan, for scales and words."""

    plan: TrafficPlan
    seconds: float


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The run was stopped in favour of another act."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    text: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The demo ends: nothing follows."""


Event = Hello | Start | ActSnapshot | ActVerdict | Broken | Failed | Stop


class Told(msgspec.Struct, frozen=True):
    """An event and its act."""

    act: str
    event: Event


@dataclass(eq=False)
class Performance:
    act: Act
    events: list[bytes] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def is_broken(self) -> bool:
        return self.task is not None and self.task.cancelled()


class Stage:
    """One run at a time. `follow` sends a late viewer the last run of each act, then new events."""

    def __init__(self, world: DemoWorld, plan: TrafficPlan, opening: Act = ACTS[0]) -> None:
        self._world = world
        self._plan = plan
        self._opening = opening
        self._runs: dict[str, Performance] = {}
        self._latest: Performance | None = None
        self._under_way: list[Performance] = []
        self._news = asyncio.Event()
        self._closed = False

    def start(self, name: str, shape: str | None = None) -> bool:
        """Start a run, and stop that of another act; False while this act is running."""
        act, latest = find_act(name), self._latest
        if self._closed or (latest and latest.act is act and not latest.is_over):
            return False
        plan = msgspec.structs.replace(self._plan, shape=shape or self._plan.shape)
        others = [run for run in self._under_way if not run.is_over]
        self._latest = self._runs[act.name] = run = Performance(act)
        self._under_way = [*others, run]
        self._tell(run, Start(plan, act.seconds(plan)))
        run.task = asyncio.create_task(self._play(run, plan, others))
        return True

    async def _play(self, run: Performance, plan: TrafficPlan, others: list[Performance]) -> None:
        await self._break_off(others)

        def tell(event: ActSnapshot) -> None:
            self._tell(run, event)

        try:
            self._tell(run, await run.act.run(self._world, plan, Watcher(tell, EVERY_S)))
        except* HeatsinkError as errors:
            self._tell(run, Failed(_first(errors)))

    async def _break_off(self, runs: list[Performance]) -> None:
        tasks = [run.task for run in runs if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for run in runs:
            if run.is_broken:
                self._tell(run, Broken())

    def _tell(self, run: Performance, event: Event) -> None:
        run.events.append(msgspec.json.encode(Told(run.act.name, event)))
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self) -> AsyncIterator[bytes]:
        """Events as JSON, until the stage closes. The first viewer starts the first run."""
        if self._latest is None:
            self.start(self._opening.name)
        yield self._hello()
        told: dict[Performance, int] = {}
        while True:
            news = self._news
            fresh = [(run, event) for run in self._runs.values() for event in _since(run, told)]
            told = {run: told.get(run, 0) for run in self._runs.values()}
            for run, event in fresh:
                told[run] += 1
                yield event
            if fresh:
                continue
            if self._closed:
                yield msgspec.json.encode(Told("", Stop()))
                return
            await news.wait()

    def _hello(self) -> bytes:
        playing = self._latest.act.name if self._latest else self._opening.name
        acts = [act.about(self._plan) for act in ACTS]
        played = [name for name, run in self._runs.items() if not run.is_broken]
        return msgspec.json.encode(Told("", Hello(acts, playing, played)))

    def end(self) -> None:
        """Stop the run and end the streams of all viewers."""
        if not self._closed:
            self._closed = True
            for run in self._under_way:
                if run.task is not None:
                    run.task.cancel()
            self._wake()

    async def close(self) -> None:
        self.end()
        tasks = [run.task for run in self._under_way if run.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)


def _since(run: Performance, told: dict[Performance, int]) -> list[bytes]:
    return run.events[told.get(run, 0) :]


def _first(errors: BaseException) -> str:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return str(errors)
