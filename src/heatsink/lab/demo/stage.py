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
    """The first event of a stream: all acts, and the name of the act that was started last.

    The acts named in `played` can be shown without playing them again.
    """

    acts: list[About]
    playing: str
    played: list[str]


class Start(msgspec.Struct, frozen=True, tag="start"):
    """A run starts: its plan, its act in words, and whether a smaller run is possible."""

    plan: TrafficPlan
    seconds: float
    about: About
    shrinks: bool


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The run was stopped because another act was started."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    text: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The demo ends. No event follows."""


Event = Hello | Start | ActSnapshot | ActVerdict | Broken | Failed | Stop


class Told(msgspec.Struct, frozen=True):
    """An event, and the name of the act that it belongs to."""

    act: str
    event: Event


@dataclass(eq=False)
class Performance:
    act: Act
    events: list[bytes] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    entered: bool = False

    @property
    def is_over(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def is_broken(self) -> bool:
        return self.task is not None and self.task.cancelled()


class Stage:
    """Plays acts, one run at a time, and sends their events to all viewers.

    `plan` is the plan of the next run. A world has the limits of one plan. So a run with another
    plan waits until `enter` brings a world for that plan. `wants_another` returns when such a world
    is needed.
    """

    def __init__(self, plan: TrafficPlan, opening: Act = ACTS[0]) -> None:
        self.plan = plan
        self._opening = opening
        self._world: tuple[DemoWorld, TrafficPlan] | None = None
        self._runs: dict[str, Performance] = {}
        self._latest: Performance | None = None
        self._under_way: list[Performance] = []
        self._news = asyncio.Event()
        self._moved = asyncio.Event()
        self._closed = False

    def start(self, name: str, shape: str | None = None, smaller: bool = False) -> bool:
        """Start a run of the act `name`, and stop a run of any other act.

        Returns False, without a new run, if this act is already running or the stage is closed.
        """
        act, latest = find_act(name), self._latest
        if self._closed or (latest and latest.act is act and not latest.is_over):
            return False
        if smaller:
            self.plan = self.plan.smaller() or self.plan
        plan = msgspec.structs.replace(self.plan, shape=shape or self.plan.shape)
        others = [run for run in self._under_way if not run.is_over]
        self._latest = self._runs[act.name] = run = Performance(act)
        self._under_way = [*others, run]
        shrinks = plan.smaller() is not None
        self._tell(run, Start(plan, act.seconds(plan), act.about(plan), shrinks))
        run.task = asyncio.create_task(self._play(run, plan, others))
        return True

    def enter(self, world: DemoWorld) -> None:
        """Play the next runs in this world, which has the limits of the stage's plan."""
        self._world = world, self.plan
        self._move()

    async def wants_another(self) -> None:
        """Wait until a run needs another world, and no run uses the present one."""
        while self._world is None or self._world[1] == self.plan or self._is_playing_in_it():
            await self._moved.wait()
        self._world = None

    def _is_playing_in_it(self) -> bool:
        return any(not run.is_over and run.entered for run in self._under_way)

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _play(self, run: Performance, plan: TrafficPlan, others: list[Performance]) -> None:
        await self._break_off(others)
        self._move()

        def tell(event: ActSnapshot) -> None:
            self._tell(run, event)

        while self._world is None or self._world[1] != self.plan:
            await self._moved.wait()
        run.entered = True
        try:
            verdict = await run.act.run(self._world[0], plan, Watcher(tell, EVERY_S))
            self._tell(run, verdict)
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
        """Yield events as JSON, until the stage closes.

        A late viewer first gets all events of the last run of each act. The first viewer starts the
        first run.
        """
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
        acts = [act.about(self.plan) for act in ACTS]
        played = [name for name, run in self._runs.items() if not run.is_broken]
        return msgspec.json.encode(Told("", Hello(acts, playing, played)))

    def end(self) -> None:
        """Stop all runs, and end the streams of all viewers."""
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
