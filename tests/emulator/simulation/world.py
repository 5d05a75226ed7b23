"""One seeded run: clients at a table whose partitions run hot, adapt, and are changed by force."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch
from zlib import crc32

import msgspec
from msgspec.structs import replace

from heatsink.emulator import adaptation
from heatsink.emulator.capacity.limits import LEAST_READ, LEAST_WRITE
from heatsink.emulator.capacity.table import SPACE, PartitionMap
from heatsink.emulator.rows import token_of
from heatsink.emulator.settings import EngineSettings
from heatsink.testing import SkewedClock, run_on_virtual_time
from tests.emulator.calls import TABLE, Calls
from tests.emulator.forced import FORCED, ForcedChanges
from tests.simulation.history import Violation

from .clients import ACTS, Client
from .plain import Allowances, Item, Plain, by_token
from .writes import Writer

BUSY_S, QUIET_S = 6.0, 3.0
SETTLE_S = 60.0
CLIENTS = 5
LOOK_S = 0.05


@dataclass
class Ran:
    """What happened, for tests: `trace` is of every answer."""

    counts: Counter[str]
    trace: int


class World:
    acts = ACTS
    client: type[Client] = Client
    index_lag_s = 0.0

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.clock = SkewedClock()
        self.counts: Counter[str] = Counter()
        self.trace = 0
        self.settings = replace(_drawn_settings(rng), index_lag_s=self.index_lag_s)
        self.calls = Calls(self.clock, self.settings)
        self._create(_drawn_capacity(rng))
        self.table = self.calls.engine.table(TABLE)
        self.plain: Any = Plain(self.settings.replica_lag_s)
        self.writer = Writer(rng)
        self.sorts = rng.choice((2, 8, 20))
        self._keys = [f"room{number}" for number in range(rng.choice((4, 12, 40)))]
        self._skew = rng.uniform(0.3, 4.0)
        self._busy_s = rng.choice((15.0, 25.0, 35.0))
        self._forced = ForcedChanges(self.table)
        self._force_s = rng.choice((0.2, 1.0, 100.0))
        self._writes = Allowances(self.settings.write_limit, LEAST_WRITE)
        self._reads = Allowances(self.settings.read_limit, LEAST_READ)
        self._map: tuple[list[int], int] = ([], 0)

    def _create(self, capacity: Item) -> None:
        self.calls.create(**capacity)

    def now_s(self) -> float:
        return self.clock.monotonic_s()

    def rate_s(self) -> float:
        """Requests of one client: many at first, then few, so that partitions cool."""
        return self._busy_s if self.now_s() < BUSY_S else 3.0

    def draw_key(self, rng: Random) -> str:
        return self._keys[int(len(self._keys) * rng.random() ** self._skew)]

    def changes(self) -> int:
        """Grows whenever rows come to lie elsewhere."""
        moving = [shelf.move.moved for shelf in self.table.rows.map if shelf.move]
        return self.table.rows.map.version * 10_000 + sum(moving)

    def written(self, key: str, used: Item, _old: Item | None, _new: Item | None) -> None:
        local = used.get("LocalSecondaryIndexes", {}).values()
        units = used["Table"]["CapacityUnits"] + sum(one["CapacityUnits"] for one in local)
        self._writes.take(key, units, self.now_s())

    def has_read(self, key: str, units: float) -> None:
        self._reads.take(key, units, self.now_s())

    def ask(self, operation: str, **request: Any) -> Any:
        """The answer, or None if it was throttled. A failed condition is an answer."""
        try:
            answer = self.calls(operation, **request)
        except Exception as error:
            raise Violation(f"{operation} breaks the engine: {error!r}") from error
        self.trace = crc32(msgspec.json.encode(answer), self.trace)
        if self.calls.status == 200 or _is_condition(answer):
            self.counts[operation] += 1
            return answer
        if not _is_throttled(answer):
            raise Violation(f"{operation} is refused: {answer}")
        self.counts["throttled"] += 1
        return None

    async def run(self) -> Ran:
        clients = [self.client(self, Random(self.rng.random())) for _ in range(CLIENTS)]
        engine = asyncio.ensure_future(self._tend())
        await self._for_a_while([client.run() for client in clients], engine)
        await self._settle(engine)
        engine.cancel()
        self._final_checks()
        return Ran(self.counts, self.trace)

    async def _tend(self) -> None:
        try:
            await self.calls.engine.keep_tending()
        except Exception as error:
            raise Violation(f"moving rows breaks the engine: {error!r}") from error

    async def _for_a_while(
        self, clients: list[Coroutine[Any, Any, None]], engine: asyncio.Future[None]
    ) -> None:
        work = [*clients, *self._others()]
        tasks = [engine, *map(asyncio.ensure_future, work)]
        done, _ = await asyncio.wait(
            tasks, timeout=BUSY_S + QUIET_S, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        for task in done:
            task.result()

    def _others(self) -> list[Coroutine[Any, Any, None]]:
        """What else happens while clients are at work."""
        return [self._watch(), self._force()]

    async def _watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        """At any moment: every hash has one partition, changes raise the version, rows add up."""
        _edges(self.table.throughput.adaptive.map)
        _edges(self.table.rows.map)
        report = self.calls.engine.partitions()[0]
        numbers = [partition.state.number for partition in report.partitions]
        before, version = self._map
        if (numbers != before) != (report.version > version):
            raise Violation(f"version {report.version} after {version}: {numbers}, not {before}")
        self._map = numbers, report.version
        rows = sum(partition.rows for partition in report.partitions)
        if rows != len(self.plain.rows):
            raise Violation(f"the partitions hold {rows} rows, not {len(self.plain.rows)}")

    async def _force(self) -> None:
        """Somebody splits, isolates and merges without any reason."""
        places = [*map(token_of, self._keys), *(self.rng.getrandbits(64) for _ in range(5))]
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / self._force_s))
            forced = self._forced
            change = self.rng.choice((forced.split, forced.isolate, forced.merge))
            self.counts["forced"] += change(self.rng.choice(places))

    async def _settle(self, engine: asyncio.Future[None]) -> None:
        """Moves that have begun come to an end, and replicas up to date."""
        until_s = self.now_s() + SETTLE_S
        await asyncio.sleep(self.settings.replica_lag_s + LOOK_S)
        while any(partition.changing for partition in self.table.throughput.adaptive.map):
            await asyncio.wait([engine], timeout=LOOK_S)
            if engine.done():
                engine.result()
            if self.now_s() > until_s:
                raise Violation("a change of partitions never ends")

    def _final_checks(self) -> None:
        self._look()
        self._look_at_rest()
        for consistent in (True, False):
            rows = [row.item for row in self.table.read_from(consistent).scan()]
            places = sorted(self.plain.rows, key=by_token)
            if rows != [self.plain.rows[place] for place in places]:
                raise Violation(f"at the end rows differ (consistent: {consistent})")
        report = self.calls.engine.partitions()[0]
        done = [event for event in report.events if event.done]
        self.counts.update(event.what for event in done)
        self.counts["by policy"] += sum(event.reason != FORCED for event in done)
        self.counts.update(e.what for e in report.events if e.what in ("CannotHelp", "Lend"))

    def _look_at_rest(self) -> None:
        """Rows are where the capacity model thinks they are."""
        partitions = self.table.throughput.adaptive.map
        if _edges(partitions) != _edges(self.table.rows.map):
            raise Violation("rows and limits are partitioned in two ways")
        numbers = [partition.number for partition in partitions]
        if len(set(numbers)) != len(numbers):
            raise Violation("two partitions have one number")
        for partition in partitions:
            size = self.table.rows.size(partition.start, partition.end)
            tokens = [token_of(key) for key, _ in self.plain.rows]
            expected = sum(partition.start <= token < partition.end for token in tokens)
            if size[0] != expected:
                raise Violation(f"partition {partition.number} holds {size[0]}, not {expected}")


def _edges(partitions: PartitionMap[Any]) -> list[int]:
    """Where partitions begin. They lie side by side from one end of the space to the other."""
    ranges = [(one.start, one.end) for one in partitions]
    touching = all(end == start for (_, end), (start, _) in pairwise(ranges))
    if not touching or ranges[0][0] != 0 or ranges[-1][1] != SPACE:
        raise Violation(f"partitions do not cover every hash once: {ranges}")
    return [start for start, _ in ranges]


def _is_condition(answer: Item) -> bool:
    codes = {reason["Code"] for reason in answer.get("CancellationReasons", [])}
    failed = "ConditionalCheckFailedException" in answer["__type"]
    return failed or "ConditionalCheckFailed" in codes


def _is_throttled(answer: Item) -> bool:
    codes = {reason["Code"] for reason in answer.get("CancellationReasons", [])}
    return any(kind in answer["__type"] for kind in ("Throttling", "ThroughputExceeded")) or bool(
        codes & {"ThrottlingError", "ProvisionedThroughputExceeded"}
    )


def _drawn_settings(rng: Random) -> EngineSettings:
    return EngineSettings(
        write_limit=rng.choice((10.0, 20.0, 40.0, 1e6)),
        read_limit=rng.choice((30.0, 100.0, 1e6)),
        burst_s=rng.choice((0.0, 2.0, 300.0)),
        partitions=rng.randint(1, 3),
        split_after_s=rng.uniform(0.5, 2.0),
        cool_down_s=rng.uniform(0.0, 1.0),
        merge_after_s=rng.choice((None, 1.0, 2.0)),
        replica_lag_s=rng.choice((0.0, 0.05, 0.5)),
    )


def _drawn_capacity(rng: Random) -> Item:
    if rng.random() < 0.5:
        return {}
    writes, reads = rng.choice((40, 100, 300)), rng.choice((100, 1_000))
    return {"ProvisionedThroughput": {"WriteCapacityUnits": writes, "ReadCapacityUnits": reads}}


def simulate(seed: int, world: type[World] = World) -> Ran:
    """Run one seed. Raises `Violation` if an answer is not a dictionary's."""

    async def run() -> Ran:
        return await world(seed).run()

    with patch.object(adaptation, "MOVED_AT_ONCE", Random(seed).choice((1, 1, 2, 5))):
        return run_on_virtual_time(run())
