"""What holds the fleet's data: stores in memory, or DynamoDB's over an engine that adapts.

Nodes reach it over their links. An observer inside is shown every change of the registry.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.client.settings import Settings
from heatsink.emulator.engine import API, Engine
from heatsink.emulator.rows import StoredItem
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import Throttled, Unavailable
from heatsink.primitives.clock import Clock, now_ms
from heatsink.registry.decisions import LogEntry, Meta, Reading
from heatsink.stores.dynamodb import stores_over
from heatsink.stores.dynamodb.client import DynamoClient, FixedCredentials, Item, Result, Turns
from heatsink.stores.dynamodb.connections import WireAnswer
from heatsink.stores.dynamodb.registry import _meta_of
from heatsink.stores.dynamodb.table import LOG, META, NOTHING, DynamoTable, binary
from heatsink.stores.dynamodb.wire.keys import Key
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.messages import MemoryBus
from heatsink.stores.sqlite.alone import SqliteAlone
from heatsink.stores.sqlite.engine import SCHEMA
from heatsink.stores.stores import Stores, _nothing
from heatsink.stores.throttled import PartitionLimit, throttled
from heatsink.testing import SkewedClock, linked_stores
from heatsink.testing.faults import _Linked

from .history import Violation
from .nodes import Node
from .relay import UnreliableRedis

TABLE = "heatsink"
TRIMS_MAX = 20
Answer = tuple[int, Mapping[str, str], bytes]


class Observer(Protocol):
    """Told of every change of the registry as it is committed."""

    def saw(self, reading: Reading) -> None: ...

    def saw_append(self, entry: LogEntry, term: int | None, before: Meta) -> None: ...


class Backend(Protocol):
    """`stores` are the data without links and faults, for checks. `close` says what it did."""

    stores: Stores

    def connect(self, node: Node) -> Stores: ...

    async def open(self) -> None: ...

    async def close(self) -> dict[str, int]: ...


MakeBackend = Callable[[int, Observer, UnreliableRedis | None], Backend]


class MemoryBackend:
    """A call of a store is atomic: it lands or it does not."""

    def __init__(self, _seed: int, observer: Observer, redis: UnreliableRedis | None) -> None:
        clock = SkewedClock()
        limit = PartitionLimit(writes_s=12, reads_s=400, burst_s=2.0)
        stores = throttled(memory_stores(clock), limit, clock)
        registry: Any = AuditedRegistry(stores.registry, observer)
        self.stores = replace(stores, registry=registry)
        if redis is not None:
            self.stores = replace(self.stores, news=redis.news, bus=redis.bus)

    def connect(self, node: Node) -> Stores:
        relay = node.relay_link if self.stores.news else None
        return linked_stores(self.stores, node.link, relay)

    async def open(self) -> None:
        pass

    async def close(self) -> dict[str, int]:
        return {}


class SqliteBackend:
    """One machine: each process with SQLite's stores of its own, by its own clock, over one file.

    A call is atomic, as in memory: there is no thread, and a write is done when it has landed.
    """

    def __init__(self, seed: int, observer: Observer, redis: UnreliableRedis | None) -> None:
        self._observer = observer
        self._redis = redis
        self._rng = Random(seed)
        self._clock = SkewedClock()
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.executescript(SCHEMA)
        self.stores = self._stores(self._clock)

    def _stores(self, clock: SkewedClock) -> Stores:
        stores = self.alone(clock).stores
        registry: Any = AuditedRegistry(stores.registry, self._observer)
        if self._redis is not None:
            stores = replace(stores, news=self._redis.news, bus=self._redis.bus)
        return replace(stores, registry=registry, close=_nothing)

    def alone(self, clock: SkewedClock) -> SqliteAlone:
        return SqliteAlone(Path(":memory:"), self._connection, clock)

    def connect(self, node: Node) -> Stores:
        relay = node.relay_link if self.stores.news else None
        return linked_stores(self._stores(node.clock), node.link, relay)

    async def open(self) -> None:
        """Founded by a right clock: a new store has no evidence against a wrong one."""
        async with Heatsink(self.stores, Settings(coordinate=False), self._clock, self._rng):
            pass

    async def close(self) -> dict[str, int]:
        self._connection.close()
        return {}


class AuditedRegistry:
    """The store's registry with an observer inside, to whom every change is shown."""

    def __init__(self, registry: Any, observer: Observer) -> None:
        self._registry = registry
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    async def advance(self, closed_ms: int) -> Reading:
        reading: Reading = await self._registry.advance(closed_ms)
        self._observer.saw(reading)
        return reading

    async def append(self, entry: LogEntry, term: int | None) -> None:
        before = (await self._registry.meta()).meta
        await self._registry.append(entry, term)
        self._observer.saw_append(entry, term, before)


class DynamoBackend:
    """Every request of the store lands for itself, at an engine that splits beneath it.

    Limits are low: the registry's requests and a few writes make a partition hot.
    """

    def __init__(self, seed: int, observer: Observer, redis: UnreliableRedis | None) -> None:
        self._clock = SkewedClock()
        self._observer = observer
        self._engine = Engine(_drawn_settings(Random(seed)), self._clock, Random(seed))
        self._redis = redis
        self._bus = redis.bus if redis else MemoryBus()
        self._tending: asyncio.Task[None] | None = None
        client = PatientClient(self.answer, self._clock)
        self._table = DynamoTable(client, TABLE)
        self.stores = stores_over(client, TABLE, self._clock)

    def connect(self, node: Node) -> Stores:
        """The stores of a process that has just started."""

        def send(operation: str, body: bytes) -> Any:
            return node.link.call(self.answer, operation, body)

        relay: Any = node.relay_link if self._redis else node.link
        bus: Any = _Linked(relay, self._bus)
        news: Any = _Linked(relay, self._redis.news) if self._redis else None
        stores = stores_over(WiredClient(send, node.clock), TABLE, node.clock)
        return replace(stores, bus=bus, news=news, answers_in_s=node.faults.timeout_s)

    async def open(self) -> None:
        await self._table.create()
        self._tending = asyncio.ensure_future(self._engine.keep_tending())

    async def close(self) -> dict[str, int]:
        self._check_engine()
        await self._check_trim()
        if self._tending is not None:
            self._tending.cancel()
        [report] = self._engine.partitions()
        done = Counter(event.what for event in report.events if event.done)
        return {**done, "throttles": sum(report.throttles.values())}

    async def _check_trim(self) -> None:
        """What is trimmed is no longer in any shard of the log, where `log` might pass it over."""
        version = (await self.stores.registry.meta()).meta.version
        for _ in range(TRIMS_MAX):
            try:
                await self.stores.registry.trim(version)
                break
            except Unavailable:  # throttled in the middle of a batch
                await self._clock.sleep(1.0)
        left = await self._table.everything(LOG, binary(NOTHING), binary(b"\xff" * 4))
        if len(left) > 1:
            raise Violation(f"{len(left)} versions are in the log, trimmed to one")

    def _check_engine(self) -> None:
        if self._tending is not None and self._tending.done():
            raise Violation(f"moving rows breaks the engine: {self._tending.exception()!r}")

    async def answer(self, operation: str, body: bytes) -> Answer:
        self._check_engine()
        before = self._meta()
        status, answer = self._engine.answer(API + operation, body)
        after = self._meta()
        if after is not None and after is not before:
            self._observe(body, before, _meta_of(after.item))
        return status, {"Date": formatdate(self._clock.now_s(), usegmt=True)}, answer

    def _meta(self) -> StoredItem | None:
        """As it lies in the engine: to look at it costs no units."""
        if self._tending is None:
            return None
        return self._engine.table(TABLE).rows.get(Key(META, NOTHING))

    def _observe(self, body: bytes, old: StoredItem | None, after: Meta) -> None:
        self._observer.saw(Reading(after, now_ms(self._clock)))
        before = after if old is None else _meta_of(old.item)
        if after.version != before.version:
            self._saw_append(msgspec.json.decode(body), before)

    def _saw_append(self, request: Item, before: Meta) -> None:
        update, put, *_ = request["TransactItems"]
        values = update["Update"]["ExpressionAttributeValues"]
        term = int(values[":term"]["N"]) if ":term" in values else None
        entry = msgspec.json.decode(put["Put"]["Item"]["entry"]["S"], type=LogEntry)
        self._observer.saw_append(entry, term, before)


def _drawn_settings(rng: Random) -> EngineSettings:
    return EngineSettings(
        write_limit=rng.choice((15.0, 40.0)),
        read_limit=rng.choice((50.0, 400.0)),
        partitions=rng.choice((1, 2, 4)),
        split_after_s=rng.uniform(0.5, 2.0),
        cool_down_s=rng.uniform(0.0, 1.0),
        merge_after_s=rng.choice((None, 2.0)),
        replica_lag_s=rng.choice((0.0, 0.5)),
    )


class WiredClient(DynamoClient):
    """The production client, with a function in place of the socket."""

    def __init__(self, send: Callable[[str, bytes], Any], clock: Clock) -> None:
        super().__init__("http://engine", "us-east-1", FixedCredentials(), clock)
        self._wire = send

    async def post(self, operation: str, body: bytes, _: object) -> Any:
        status, headers, answer = await self._wire(operation, body)
        return WireAnswer(status, headers.get("Date", "").encode(), answer)


class PatientClient(WiredClient):
    """For checks: waits until it is served."""

    async def call(
        self, operation: str, payload: Item, turns: Turns | None = None, *others: Any
    ) -> Result:
        while True:
            try:
                return await super().call(operation, payload, turns, *others)
            except Throttled:
                await self._clock.sleep(0.1)
