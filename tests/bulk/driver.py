"""One worker at one partition: what the conformance tests drive a queue store with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from msgspec.structs import replace
from redis.asyncio import Redis

from heatsink.bulk import changes
from heatsink.bulk.batch import Batch, PartEnd, PartPlace, digest_of
from heatsink.bulk.groups import common_lane
from heatsink.bulk.store import (
    Chunk,
    Claimed,
    ClaimRequest,
    Handover,
    Outcome,
    Part,
    PartCounts,
    QueueStores,
    Setback,
    Single,
    Slice,
    Verb,
)
from heatsink.bulk.submit import part_of
from heatsink.stores.memory.queue.queue import MemoryQueue
from heatsink.stores.redis.queue.queue import RedisQueue
from heatsink.testing import ManualClock
from heatsink.testing.clocks import BEGINNING_S
from heatsink.testing.redis import RedisServer

PARTITION = 3
LEASE_MS = 10_000
NOW_MS = int(BEGINNING_S * 1000)
COST_US = 1_000
HEARD_S = 30.0
RING_AGAIN_S = 0.1


@dataclass
class Driver:
    stores: QueueStores
    clock: ManualClock
    attempts: int = 0

    async def submit(
        self, id: str, sizes: Sequence[int], release: bool = True, **about: object
    ) -> Part:
        """A part of a batch of the same name, with chunks of these sizes."""
        fields = {
            "batch": f"batch-{id}",
            "tenant": "ada",
            "action": "mail",
            "submitted_ms": NOW_MS,
            "lane": "mail/ada",
        }
        part = Part(id=id, **{**fields, **about})  # type: ignore[arg-type]
        chunks = [Chunk(n, size, f"{id}/{n}".encode()) for n, size in enumerate(sizes)]
        await self.stores.queue.stage(PARTITION, part, chunks)
        if release:
            await self.steer(id, "release")
        return part

    async def steer(self, part: str, verb: Verb, lap: int = 0, since: int = 0) -> bool:
        return await self.stores.queue.steer(PARTITION, part, verb, lap, since)

    async def claim(
        self,
        want: int = 100,
        attempt: str = "",
        grants: dict[str, int] | None = None,
        unanswered: list[str] | None = None,
        bell: str = "",
    ) -> Claimed:
        self.attempts += 1
        name = attempt or f"attempt-{self.attempts}"
        await self.stores.fleet.own(PARTITION, "me", 60_000)
        known = grants or {}, unanswered or []
        request = ClaimRequest("me", name, want, LEASE_MS, *known, bell=bell)
        return await self.stores.queue.claim(PARTITION, request)

    async def slices(self, want: int = 100, **grants: int) -> list[Slice]:
        return (await self.claim(want, grants=grants)).slices

    async def settle(
        self,
        item: Slice,
        marks: str,
        *setbacks: Setback,
        used_us: int = -1,
        results: Sequence[tuple[int, bytes]] = (),
    ) -> bool:
        """False if the lease was lost. A single mark is for all items of it."""
        text = marks * item.count if len(marks) == 1 else marks
        us = COST_US * len(text.replace(".", "").replace("b", "")) if used_us < 0 else used_us
        outcome = Outcome(item.attempt, text, us, list(setbacks), list(results))
        return not await self.stores.queue.settle(PARTITION, [outcome], [], LEASE_MS)

    async def beat(self, *attempts: str) -> list[str]:
        return await self.stores.queue.settle(PARTITION, [], attempts, LEASE_MS)

    async def work(self, want: int = 100, mark: str = "d") -> int:
        """Claim and settle all alike; how many items that were."""
        found = await self.slices(want)
        for item in found:
            await self.settle(item, mark)
        return sum(item.count for item in found)

    async def lose(self, want: int = 100) -> list[Slice]:
        """A worker that claims and dies; the next claim notices."""
        found = await self.slices(want)
        await self.wait(LEASE_MS)
        return found

    async def wait(self, ms: float) -> None:
        await self.clock.advance(ms / 1000)

    async def counts(self, part: str) -> PartCounts:
        found = await self.stores.queue.part(PARTITION, part)
        assert found is not None
        return found

    async def ends(self, *reported: PartEnd) -> list[PartEnd]:
        return (await self.stores.queue.chores(PARTITION, reported)).ends


def single_of(id: str, **about: Any) -> Single:
    """A batch of one item, with a part of the same name. `about` are fields of its record."""
    fields = {"action": "mail", "tenant": "ada", "submitted_ms": NOW_MS, **about}
    body = f"{id}/0".encode()
    opened = Batch(id=f"batch-{id}", **fields)
    place = PartPlace(id, PARTITION, 1, digest_of(body), ((0, 1, 1),))
    generation = f"generation-{id}"
    record = changes.sealed(opened, generation, [place], NOW_MS, opened.fingerprint).next()
    part = part_of(record, generation, PARTITION, bool(record.limits), common_lane(record))
    return Single(record, replace(part, id=id), Chunk(0, 1, body))


async def ring_until_heard(driver: Driver, waiting: asyncio.Task[set[int]]) -> set[int]:
    """A bell may miss a ring: before its subscription is there, or between nodes that are young."""
    async with asyncio.timeout(HEARD_S):
        for number in count():
            await driver.submit(f"ring-{number}", [1])
            await asyncio.wait({waiting}, timeout=RING_AGAIN_S)
            if waiting.done():
                break
    return await waiting


async def listening(stores: QueueStores, server: RedisServer | None) -> None:
    """Return when the bell hears what is handed over."""
    if server is not None:
        await stores.bell.wait(0.0)
        async with asyncio.timeout(HEARD_S), Redis.from_url(server.url) as redis:
            while not (await redis.pubsub_numsub(stores.bell.address))[0][1]:
                await asyncio.sleep(0.01)


async def handovers(stores: QueueStores, count: int = 1) -> list[Handover]:
    """Wait until so many singles were handed over."""
    found: list[Handover] = []
    async with asyncio.timeout(HEARD_S):
        while len(found) < count:
            found += stores.bell.handovers()
            await asyncio.sleep(0)
    return found


def places(slices: Sequence[Slice]) -> list[tuple[str, int, int]]:
    return [(item.body.decode(), item.start, item.count) for item in slices]


def below(store: Any) -> Any:
    """The store of a server, below the router of a process."""
    return store.below


async def lose_chunk(stores: QueueStores, part: str, chunk: int) -> None:
    """Damage a part, as an operator or a server that evicts could."""
    queue = below(stores.queue)
    if isinstance(queue, MemoryQueue):
        if share := queue.partitions[PARTITION].shares.get(part):
            share.chunks.pop(chunk, None)
        return
    assert isinstance(queue, RedisQueue)
    await queue.gaps(PARTITION, part, chunk + 2)  # makes a part in short form an ordinary hash
    key = queue._keys.part(PARTITION, part)
    for name in (key, f"{key}/chunks"):  # a small single item is in the part's own hash
        await queue._places.connection(PARTITION).run("HDEL", name, f"b{chunk}", f"c{chunk}")


async def lose_part(stores: QueueStores, partition: int, part: str) -> None:
    """All of it, as a server does that comes back with an old file."""
    queue = below(stores.queue)
    if isinstance(queue, MemoryQueue):
        held = queue.partitions[partition]
        if share := held.shares.pop(part, None):
            held.rotation.remove(share.part)
            held.sleeping.pop(part, None)
            held.outbox.pop(part, None)
            held.leases = {n: lease for n, lease in held.leases.items() if lease.share is not share}
        return
    assert isinstance(queue, RedisQueue)
    key = queue._keys.part(partition, part)
    for suffix in ("", "/chunks", "/delayed", "/suspects", "/notes", "/missing", "/record"):
        await queue._places.connection(partition).run("DEL", key + suffix)
    _, *short = queue._keys.short(partition, part)
    await queue._places.connection(partition).run("HDEL", *short)
