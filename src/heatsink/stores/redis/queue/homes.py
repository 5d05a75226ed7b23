"""A queue's data outside its partitions, in Redis: batch records, rate limits, fleet, bell."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace
from redis import exceptions

from heatsink.bulk.actions import BUILT_IN
from heatsink.bulk.batch import KEEP_MS, Batch, PartEnd, Rate
from heatsink.bulk.limits import Offer
from heatsink.bulk.plan import QueuePlan
from heatsink.bulk.store import ANNOUNCED_MS, BOOKED_MS_MAX, LATE_MS, Grants, Handover, Roll
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import Clock
from heatsink.primitives.nudge import Nudge
from heatsink.stores.redis.address import RedisAddress
from heatsink.stores.redis.connection import Connection, Word, open_driver
from heatsink.stores.redis.prompt import PromptRedis

from .keys import QueueKeys
from .queue import RedisQueue, handover_of
from .scripts import Script, SlotClock

INDEX_MAX = 10_000
INDEX_KEEP_S = 30 * 24 * 3600
PAGE = 100
_BATCH = msgspec.msgpack.Decoder(Batch)
_packed = msgspec.msgpack.Encoder().encode
_OPERATIONS = ("declare", "reserve", "refused", "rate")
_OFFER = msgspec.msgpack.Decoder(Offer)
_PLAN = msgspec.msgpack.Decoder(QueuePlan)
_ANY_VERSION = "-inf"
HANDOVER = b"H"
OFFER = b"\x93"  # an array of three, which no number begins with
LISTEN_S = 5.0
AGAIN_S = 1.0
TROUBLE = (exceptions.RedisError, HeatsinkError, OSError, TimeoutError, RuntimeError)


class RedisBatches:
    """Batch records. An update succeeds only if the record has not changed since it was read.

    A record is written before its entry in the index. So an entry without a record is outdated, and
    reads of the index delete it.
    """

    def __init__(self, connection: Connection, keys: QueueKeys) -> None:
        self._connection = connection
        self._keys = keys
        self._open = Script("homes/batch_open", "record")
        self._update = Script("homes/batch_update", "record")
        self._index = Script("homes/batch_index")
        self._restore = Script("homes/batch_restore", "record")

    async def open(self, batch: Batch) -> Batch:
        key = self._keys.batch(batch.id)
        words = (batch.version, batch.tag, _packed(batch), KEEP_MS)
        kept = await self._open.run(self._connection, key, *words)
        found = _decoded(kept)
        await self._list(found)
        return found

    async def _list(self, found: Batch) -> None:
        indexes = self._keys.newest(), self._keys.newest(found.tenant)
        await asyncio.gather(*(self._enter(index, found) for index in indexes))

    async def _enter(self, index: str, batch: Batch) -> None:
        words = (batch.submitted_ms, batch.id, INDEX_MAX, INDEX_KEEP_S)
        await self._index.run(self._connection, index, *words)

    async def update(self, batch: Batch) -> Batch | None:
        key = self._keys.batch(batch.id)
        newer = batch.next()
        keep_ms = 0 if batch.is_sealed else KEEP_MS
        words = (batch.version, batch.tag, newer.version, newer.tag, _packed(newer), keep_ms)
        replaced = await self._update.run(self._connection, key, *words)
        return newer if replaced else None

    async def restore(self, batch: Batch) -> Batch:
        words = (batch.version, batch.tag, _packed(batch))
        kept = await self._restore.run(self._connection, self._keys.batch(batch.id), *words)
        found = _decoded(kept)
        await self._list(found)
        return found

    async def get(self, id: str) -> Batch | None:
        return record_of(await self._connection.run("GET", self._keys.batch(id)))

    async def list(self, limit: int, tenant: str = "") -> builtins.list[Batch]:
        found: builtins.list[Batch] = []
        while len(found) < limit:
            page = await self._page(len(found), PAGE, tenant)
            found += page
            if len(page) < PAGE:
                break
        return sorted(found, key=lambda batch: (-batch.submitted_ms, batch.id))[:limit]

    async def browse(self, start: int, limit: int) -> builtins.list[Batch]:
        return await self._page(start, limit, "")

    async def _page(self, start: int, limit: int, tenant: str) -> builtins.list[Batch]:
        """Read a page of the index and the records of its entries.

        If some entries have no record, delete these entries and read the page again.
        """
        index = self._keys.newest(tenant)
        while True:
            ids = await self._connection.run("ZRANGE", index, start, start + limit - 1, "REV")
            found = await asyncio.gather(*(self.get(id.decode()) for id in ids))
            gone = [id for id, batch in zip(ids, found, strict=True) if batch is None]
            if not gone:
                return [batch for batch in found if batch is not None]
            await self._connection.run("ZREM", index, *gone)

    async def forget(self, id: str, after_ms: int) -> None:
        await self._connection.run("PEXPIRE", self._keys.batch(id), after_ms)


def text_of(batch: Batch) -> bytes:
    """Return how Redis keeps a batch's record: version, tag and the packed record."""
    return b"%d %s %s" % (batch.version, batch.tag.encode(), _packed(batch))


def record_of(text: bytes | None) -> Batch | None:
    return _decoded(text.split(b" ", 2)[2]) if text else None


def _decoded(record: bytes) -> Batch:
    """Return a packed record.

    The record of a single may begin with `E`, the time at which its item was done, and the tag of
    the ended record. The record from before the end follows.
    """
    if not record.startswith(b"E"):
        return _BATCH.decode(record)
    ended_ms, tag, before = record[1:].split(b" ", 2)
    batch = _BATCH.decode(before)
    return replace(
        batch,
        state="done",
        ends=(PartEnd(batch.id, batch.parts[0].id, batch.lap, 1, 0, 0),),
        ended_ms=int(ended_ms),
        version=batch.version + 1,
        tag=tag.decode(),
    )


def plan_of(word: bytes | None) -> QueuePlan | None:
    return _PLAN.decode(word) if word else None


class RedisLimits:
    """Rate limits, each with its own slot time. The scripts behave like `MemoryLimits`."""

    def __init__(self, connection: Connection, keys: QueueKeys, time: SlotClock) -> None:
        self._connection = connection
        self._keys = keys
        self._time = time
        self._scripts = {name: Script(f"homes/limit_{name}", "clock limit") for name in _OPERATIONS}

    async def _run(self, operation: str, lane: str, *words: Word) -> Any:
        key = self._keys.limit(lane)
        script, now = self._scripts[operation], self._time.words(key)
        return await script.run(self._connection, key, now, *words, others=[key])

    async def declare(self, lane: str, rate: Rate | None) -> None:
        words = (rate.count, repr(rate.period_s)) if rate else ("", "")
        await self._run("declare", lane, *words)

    async def reserve(
        self, lane: str, starts: int, ahead_ms: int, late_ms: float = LATE_MS
    ) -> Grants:
        words = (starts, ahead_ms, repr(float(late_ms)))
        size, count, *times, told = await self._run("reserve", lane, *words)
        self._time.heard(self._keys.limit(lane), told)
        first_ms, step_ms, now_ms = map(float, times)
        waits = [first_ms + step_ms * i - now_ms for i in range(count)]
        free_ms = BOOKED_MS_MAX if count and not step_ms else 0.0
        return Grants(size, waits, now_ms, first_ms + step_ms * count - now_ms, free_ms)

    async def refused(self, lane: str, started_per_s: float, retry_after_ms: int) -> None:
        await self._run("refused", lane, repr(float(started_per_s)), retry_after_ms)

    async def rate_of(self, lane: str) -> float | None:
        found = await self._run("rate", lane)
        return None if found is None else float(found)


class RedisFleet:
    """The consumers of the queue, the actions that they offer, and the plan.

    The owner of a partition is stored in the partition, since every claim checks the owner.
    """

    def __init__(
        self,
        connection: Connection,
        keys: QueueKeys,
        queue: RedisQueue,
        time: SlotClock,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._queue = queue
        self._time = time
        self._time_key = keys.fleet("time")
        self._join = Script("homes/fleet_join", "clock")
        self._offer = Script("homes/fleet_offer", "clock")
        self._plan = Script("homes/fleet_plan")

    async def join(self, consumer: str, actions: Sequence[str], ttl_ms: int) -> Roll:
        offered = await self._offers(0, ttl_ms, actions)
        told, members = await self._timed(self._join, "members", "offers", consumer, ttl_ms)
        self._time.heard(self._time_key, told)
        return Roll(sorted(member.decode() for member in members), offered)

    async def leave(self, consumer: str) -> None:
        await self._connection.run("ZREM", self._keys.fleet("members"), consumer)

    async def actions(self) -> list[str]:
        names = await self._offers(ANNOUNCED_MS)
        return [name for name in names if not name.startswith(BUILT_IN)]

    async def offered(self) -> list[str]:
        is_anybody_there = await self._connection.run("ZCARD", self._keys.fleet("members"))
        return await self._offers(0) if is_anybody_there else []

    async def _offers(self, age_ms: int, ttl_ms: int = 0, actions: Sequence[str] = ()) -> list[str]:
        words: list[Word] = [age_ms, ANNOUNCED_MS, ttl_ms, *actions]
        names = await self._timed(self._offer, "offers", "members", *words)
        return sorted(name.decode() for name in names)

    async def _timed(self, script: Script, name: str, other: str, *words: Word) -> Any:
        now, others = self._time.words(self._time_key), [self._time_key, self._keys.fleet(other)]
        key = self._keys.fleet(name)
        return await script.run(self._connection, key, now, *words, others=others)

    async def own(self, partition: int, consumer: str, ttl_ms: int, workers: int = 0) -> bool:
        words = (consumer, ttl_ms, workers)
        owned, told = await self._queue.run("own", partition, *words, together=True)
        self._queue.heard(partition, told)
        return bool(owned)

    async def disown(self, partition: int, consumer: str, mark: str = "") -> None:
        await self._queue.run("disown", partition, consumer, mark, together=True)

    async def plan(self, default: QueuePlan, keep: bool = True) -> QueuePlan:
        if keep:
            return await self._put(_ANY_VERSION, default)
        found = await self._connection.run("HGET", self._keys.fleet("plan"), "record")
        return plan_of(found) or default

    async def change(self, plan: QueuePlan) -> QueuePlan:
        return await self._put(str(plan.version), plan)

    async def durable(self) -> int:
        found = await self._connection.run("HGET", self._keys.fleet("plan"), "durable")
        return -1 if found is None else int(found)

    async def made_durable(self, version: int) -> None:
        await self._connection.run("HSET", self._keys.fleet("plan"), "durable", version)

    async def _put(self, version: str, plan: QueuePlan) -> QueuePlan:
        key = self._keys.fleet("plan")
        words = (version, plan.version, _packed(plan))
        return _PLAN.decode(await self._plan.run(self._connection, key, *words))


class RedisBell:
    """Wakes a process when a queue partition may have work, over one subscription per Redis.

    After a missed message, the process finds the work at its next poll. So failures raise no error.
    """

    def __init__(
        self,
        addresses: Callable[[], Sequence[RedisAddress]],
        channel: str,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._addresses = addresses
        self._channel = channel
        self._clock = clock
        self._rng = rng
        self._rung: set[int] = set()
        self._offers: list[Offer] = []
        self._handovers: list[Handover] = []
        self.address = f"{channel}/{rng.getrandbits(64):016x}"
        self._ring = Nudge()
        self._ears: dict[RedisAddress, asyncio.Task[None]] = {}

    async def wait(self, timeout_s: float) -> set[int]:
        for address in self._addresses():
            if address not in self._ears:
                self._ears[address] = asyncio.ensure_future(self._listen(address))
        if not (self._rung or self._offers or self._handovers):
            await self._ring.wait(timeout_s)
        rung, self._rung = self._rung, set()
        return rung

    async def _listen(self, address: RedisAddress) -> None:
        while True:
            with suppress(*TROUBLE):
                await self._hear(address)
            await self._clock.sleep(AGAIN_S * self._rng.uniform(0.5, 1.0))

    async def _hear(self, address: RedisAddress) -> None:
        """Subscribe at the Redis, and receive messages until the connection breaks.

        In a cluster, any node will do, since the nodes forward all messages to each other.
        """
        if address.kind == "cluster":
            address = address.node(*self._rng.choice(address.hosts))
        driver: Any = open_driver(address)
        try:
            if isinstance(driver, PromptRedis):
                await driver.listen((self._channel, self.address), self._heard, LISTEN_S)
            else:
                await self._hear_slowly(driver.pubsub())
        finally:
            await driver.aclose()

    async def _hear_slowly(self, pubsub: Any) -> None:
        try:
            await pubsub.subscribe(self._channel, self.address)
            while await self._hears(pubsub):
                pass
        finally:
            await pubsub.aclose()

    async def _hears(self, pubsub: Any) -> bool:
        """Receive a message. If none comes within 5 s, ping the server.

        Returns False if the ping gets no reply within another 5 s.
        """
        message = await pubsub.get_message(timeout=LISTEN_S)
        if message is None:
            await pubsub.ping()
            message = await pubsub.get_message(timeout=LISTEN_S)
        if message is not None and message["type"] == "message":
            self._heard(message["data"])
        return message is not None

    def _heard(self, data: bytes) -> None:
        if data.startswith(OFFER):
            self._offers.append(_OFFER.decode(data))
        elif data.startswith(HANDOVER):
            self._handovers.append(handover_of(data))
        else:
            self._rung.add(int(data))
        self._ring()

    def handovers(self) -> list[Handover]:
        handovers, self._handovers = self._handovers, []
        return handovers

    def offers(self) -> list[Offer]:
        offers, self._offers = self._offers, []
        return offers

    async def close(self) -> None:
        ears, self._ears = list(self._ears.values()), {}
        for ear in ears:
            ear.cancel()
        await asyncio.gather(*ears, return_exceptions=True)
