"""One seeded run: processes that read through caches, write, and forget, while all goes wrong."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from heatsink.errors import Unavailable
from heatsink.reads.invalidation import Ear, Invalidation
from heatsink.reads.near_cache import ReadSettings
from heatsink.reads.reads import Reads
from heatsink.reads.tags import tag_in, tag_message
from heatsink.testing import SkewedClock, run_on_virtual_time

SECONDS = 10.0
KEYS = ("a", "b", "c", "d", "e")
TAGS: dict[str, tuple[str, ...]] = {"a": ("x",), "b": ("x", "y"), "c": ("y",), "d": (), "e": ()}
PATIENCE_S = 4.0
SLACK_S = 0.01
TIMES = ((0.0, 1.0), (0.3, 0.3), (0.5, 2.0), (0.5, 5.0), (2.0, 3.0))


class Violation(AssertionError):
    """Something happened that never may."""


class LoadFailed(Exception):
    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.load = load


class StrangeEnd(BaseException):
    """What a loader may raise that is no Exception."""


@dataclass(eq=False)
class Load:
    """How one call of a loader went."""

    began_s: float
    ended_s: float | None = None
    is_odd: bool = False

    def lasts(self, now_s: float) -> bool:
        return (self.ended_s or now_s) - self.began_s >= PATIENCE_S - SLACK_S


@dataclass
class Truth:
    """Every version a key ever had, and since when."""

    since_s: dict[str, list[float]] = field(default_factory=lambda: {key: [0.0] for key in KEYS})

    def write(self, key: str, now_s: float) -> int:
        self.since_s[key].append(now_s)
        return len(self.since_s[key]) - 1

    def at(self, key: str, time_s: float) -> int:
        return max(bisect_right(self.since_s[key], time_s) - 1, 0)


class BadWire:
    """Late, lossy, out of order, and now and then cut."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._ear: Ear | None = None
        self._cut = asyncio.Event()
        self.is_up = False

    async def send(self, keys: Sequence[str]) -> None:
        world, rng = self._world, self._world.rng
        if rng.random() < 0.1:
            raise Unavailable("the wire is down")
        sent_s = world.now_s()
        for process in world.processes:
            if process is not self._process and rng.random() > 0.1:
                delay_s = rng.choice((0.0, 0.01, 0.5, 3.0))
                world.later(delay_s, partial(process.wire.hear, keys, sent_s))

    def hear(self, keys: Sequence[str], sent_s: float) -> None:
        if self._ear is not None:
            self._ear.heard(keys)
            for key in forgotten(keys):
                self._process.raise_floor(key, self._world.truth.at(key, sent_s))

    async def listen(self, ear: Ear) -> None:
        await self._process.clock.sleep(self._world.rng.uniform(0.0, 1.0))
        self._ear, self._cut, self.is_up = ear, asyncio.Event(), True
        ear.linked()
        now_s = self._world.now_s()
        for key in KEYS:
            self._process.raise_floor(key, self._world.truth.at(key, now_s))
        await self._cut.wait()
        self.is_up = False

    def cut(self) -> None:
        self._ear = None
        self._cut.set()


class Process:
    def __init__(self, world: World) -> None:
        self.clock = SkewedClock()
        self.wire = BadWire(world, self)
        settings = ReadSettings(capacity=4, patience_s=PATIENCE_S)
        self.reads = Reads(settings, clock=self.clock, rng=world.rng)
        self.invalidation = Invalidation(self.wire, self.clock, world.rng)
        self.invalidation.tie(self.reads)
        self.loads: dict[str, list[Load]] = {key: [] for key in KEYS}
        self.floors = dict.fromkeys(KEYS, 0)

    def raise_floor(self, key: str, version: int) -> None:
        """From now on nothing older may be returned here: it was written, heard or linked since."""
        self.floors[key] = max(self.floors[key], version)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.truth = Truth()
        self.processes = [Process(self) for _ in range(3)]
        self.counts: Counter[str] = Counter()
        self._acts: set[asyncio.Task[Any]] = set()
        self._violation: BaseException | None = None

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def later(self, delay_s: float, act: Callable[[], Any]) -> None:
        asyncio.get_running_loop().call_later(delay_s, act)

    async def run(self) -> Counter[str]:
        background = [asyncio.ensure_future(p.invalidation.run()) for p in self.processes]
        kinds = ((self._read, 60), (self._rush, 6), (self._write, 8), (self._trouble, 2))
        acts, weights = [act for act, _ in kinds], [weight for _, weight in kinds]
        while self.now_s() < SECONDS and self._violation is None:
            await asyncio.sleep(self.rng.expovariate(25))
            self._start(self.rng.choices(acts, weights)[0]())
        while self._acts and self._violation is None:
            await asyncio.sleep(1.0)
            if self.now_s() > SECONDS + 60:
                raise Violation(f"{len(self._acts)} readers hang")
        for task in [*background, *self._acts]:
            task.cancel()
        await asyncio.gather(*background, *self._acts, return_exceptions=True)
        if self._violation is not None:
            raise self._violation
        self._count_up()
        return self.counts

    def _start(self, act: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(act)
        self._acts.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._acts.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._violation = self._violation or task.exception()

    def _count_up(self) -> None:
        for process in self.processes:
            stats = process.reads.stats()
            for name in stats.__struct_fields__:
                self.counts[name] += getattr(stats, name)

    async def _rush(self) -> None:
        """Many readers of one key on one process at once; some give up, the first one often."""
        process, key = self.rng.choice(self.processes), self.rng.choice(KEYS)
        for number in range(self.rng.randint(2, 12)):
            impatient = self.rng.random() < (0.4 if number == 0 else 0.2)
            self._start(self._read_one(process, key, impatient))

    async def _read(self) -> None:
        process, key = self.rng.choice(self.processes), self.rng.choice(KEYS)
        await self._read_one(process, key, impatient=self.rng.random() < 0.1)

    async def _read_one(self, process: Process, key: str, impatient: bool) -> None:
        fresh_for, stale_for = self.rng.choice(TIMES)
        called_s, floor = self.now_s(), process.floors[key]
        bound_s = stale_for if process.wire.is_up else fresh_for
        oldest = max(floor, self.truth.at(key, called_s - bound_s - 1e-9))
        load = self._loader(process, key)
        times = {"fresh_for": fresh_for, "stale_for": stale_for}
        reading = asyncio.ensure_future(process.reads.get(key, load, **times, tags=TAGS[key]))
        if impatient:
            self.later(self.rng.choice((0.0, 0.01, 0.2, 1.0)), reading.cancel)
        done, _ = await asyncio.wait({reading}, timeout=PATIENCE_S + SLACK_S)
        if not done:
            raise Violation(f"a reader of {key} hangs since {called_s:.2f} s")
        self._judge(process, key, reading, called_s, oldest, impatient)

    def _judge(
        self,
        process: Process,
        key: str,
        reading: asyncio.Future[int],
        called_s: float,
        oldest: int,
        impatient: bool,
    ) -> None:
        if reading.cancelled():
            if not impatient:
                raise Violation("a reader was cancelled whom nobody cancelled")
            return
        error = reading.exception()
        if error is None:
            self.counts["values"] += 1
            if reading.result() < oldest:
                raise Violation(f"{key} is version {reading.result()}, older than {oldest}")
            return
        self.counts["errors"] += 1
        loads = [load for load in process.loads[key] if _overlap(load, called_s, self.now_s())]
        if isinstance(error, LoadFailed):
            if error.load not in loads:
                raise Violation("a reader got the error of a load that ended before it came")
        elif not isinstance(error, Unavailable):
            raise Violation(f"a reader got {error!r}")
        elif not any(load.is_odd or load.lasts(self.now_s()) for load in loads):
            raise Violation(f"nothing was wrong, and a reader got {error!r}")

    def _loader(self, process: Process, key: str) -> Callable[[], Any]:
        chance, rng = self.rng.random(), self.rng
        latency_s = rng.choice((0.0, 0.01, 0.05, 0.3, 1.0, 3.0))
        looks = rng.random()

        async def load() -> int:
            made = Load(self.now_s())
            process.loads[key].append(made)
            try:
                await process.clock.awake()
                await asyncio.sleep(latency_s * looks)
                version = self.truth.at(key, self.now_s())
                await asyncio.sleep(latency_s * (1 - looks))
                await process.clock.awake()
                made.is_odd = 0.15 <= chance < 0.25
                if chance < 0.15:
                    raise LoadFailed(made)
                if chance < 0.18:
                    raise asyncio.CancelledError
                if chance < 0.21:
                    raise StrangeEnd
                if chance < 0.25:
                    await asyncio.sleep(1e6)
            finally:
                made.ended_s = self.now_s()
            return version

        return load

    async def _write(self) -> None:
        if self.rng.random() < 0.25:
            await self._write_tagged()
            return
        process, key = self.rng.choice(self.processes), self.rng.choice(KEYS)
        await asyncio.sleep(self.rng.uniform(0.0, 0.1))
        version = self.truth.write(key, self.now_s())
        await asyncio.sleep(self.rng.uniform(0.0, 0.1))
        process.reads.forget(key)
        process.raise_floor(key, version)

    async def _write_tagged(self) -> None:
        """Write all keys with a tag, and forget them by their tag."""
        process, tag = self.rng.choice(self.processes), self.rng.choice("xy")
        keys = forgotten([tag_message(tag)])
        versions = [self.truth.write(key, self.now_s()) for key in keys]
        await asyncio.sleep(self.rng.uniform(0.0, 0.1))
        process.reads.forget_tag(tag)
        for key, version in zip(keys, versions, strict=True):
            process.raise_floor(key, version)

    async def _trouble(self) -> None:
        process = self.rng.choice(self.processes)
        if self.rng.random() < 0.5:
            process.wire.cut()
        else:
            process.clock.stall(self.rng.uniform(0.1, 2.0))


def forgotten(messages: Sequence[str]) -> list[str]:
    """The keys that these messages of the wire are about."""
    tags = [tag_in(message) for message in messages]
    return [
        key
        for key in KEYS
        if not messages or key in messages or any(tag in tags for tag in TAGS[key])
    ]


def _overlap(load: Load, since_s: float, until_s: float) -> bool:
    return load.began_s <= until_s and (load.ended_s is None or load.ended_s >= since_s)


def simulate(seed: int) -> Counter[str]:
    async def run() -> Counter[str]:
        return await World(seed).run()

    return run_on_virtual_time(run())
