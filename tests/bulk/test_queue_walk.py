"""The queue in Redis and its reference in memory, led through the same random steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import msgspec
import pytest

from heatsink.bulk.batch import PartEnd
from heatsink.bulk.store import (
    Chunk,
    Claimed,
    ClaimRequest,
    LivePart,
    Outcome,
    Part,
    PartitionLoad,
    QueueStores,
    Setback,
    Single,
    Slice,
    Verb,
)
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.stores.redis.queue.keys import handle
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisServer
from tests.planted import usually

from .conftest import redis_queue
from .driver import handovers, listening, lose_chunk, single_of
from .stepped import HOUR_S, ServerClock

Answer = TypeVar("Answer")
PARTITION = 3
VERBS: list[Verb] = [
    "limit",
    "release",
    "release",
    "pause",
    "resume",
    "resume",
    "cancel",
    "retry",
    "drop",
]


def _same_order(kind: str, count: int) -> list[str]:
    """Names that sort like their hashes: Redis breaks ties by those, the reference by names."""
    names: list[str] = []
    for name in (f"{kind}-{number:05d}" for number in range(10_000)):
        if int(handle(kind, name)[:4], 16) * count // 65_536 == len(names) < count:
            names.append(name)
    return names


TENANTS, PARTS = _same_order("tenant", 4), _same_order("part", 64)


@dataclass
class Walk:
    reference: QueueStores
    tested: QueueStores
    clock: ManualClock
    of_server: ServerClock
    rng: Random
    parts: dict[str, Part] = field(default_factory=dict)
    held: list[Slice] = field(default_factory=list)
    ends: list[PartEnd] = field(default_factory=list)
    singles: list[Single] = field(default_factory=list)
    attempts: int = 0
    handed_over: int = 0
    last: ClaimRequest | None = None

    async def both(
        self,
        ask: Callable[[QueueStores], Awaitable[Answer]],
        tidy: Callable[[Answer], Any] = lambda answer: answer,
    ) -> Answer:
        expected, found = await ask(self.reference), await ask(self.tested)
        assert tidy(found) == tidy(expected)
        return found

    async def both_loads(self, ask: Callable[[QueueStores], Awaitable[PartitionLoad]]) -> None:
        expected, found = await ask(self.reference), await ask(self.tested)
        assert found.service_us == pytest.approx(expected.service_us)
        assert msgspec.structs.replace(found, service_us=expected.service_us) == expected

    async def step(self) -> None:
        kinds = [
            self.stage,
            self.accept,
            self.steer,
            self.claim,
            self.claim,
            self.settle,
            self.settle,
        ]
        kinds += [
            self.settle,
            self.wait,
            self.chores,
            self.look,
            self.look_at_failures,
            self.look_at_results,
            self.look_at_records,
        ]
        kinds += [self.damage] if self.rng.random() < 0.3 else []
        await self.rng.choice(kinds)()

    async def stage(self) -> None:
        if len(self.parts) > 12 and self.rng.random() < 0.8:
            return
        rng, number = self.rng, len(self.parts)
        part = Part(
            id=PARTS[number],
            batch=f"batch-{number // 2}",
            tenant=rng.choice(TENANTS),
            action=rng.choice(["mail", "push"]),
            submitted_ms=int(self.clock.now_s() * 1000) + number,
            lane=rng.choice(["slow", "fast"]),
            limited=rng.random() < 0.4,
            weight=rng.choice([1.0, 1.0, 2.0, 0.5]),
            priority=rng.choice([0, 0, 0, 1, -1]),
            start_ms=int(self.clock.now_s() * 1000) + rng.choice([0, 0, 0, 400, 3_000]),
            result_bytes=rng.choice([0, 100]),
            keeps_items=rng.random() < 0.3,
        )
        counts = [rng.randint(1, 12) for _ in range(rng.randint(0, 4))]
        chunks = [Chunk(n, count, b"%d" % n * count) for n, count in enumerate(counts)]
        self.parts[part.id] = part
        for _ in range(rng.randint(1, 2)):
            await self.both_loads(lambda s: s.queue.stage(PARTITION, part, chunks))
        if rng.random() < 0.8:
            await self.both(lambda s: s.queue.steer(PARTITION, part.id, "release"))

    async def accept(self) -> None:
        """Batches of one item, some of them again."""
        if len(self.parts) > 12 and self.rng.random() < 0.8:
            return
        singles = []
        for _ in range(self.rng.randint(1, 3)):
            part = PARTS[len(self.parts)]
            single = single_of(
                part,
                tenant=self.rng.choice(TENANTS),
                submitted_ms=int(self.clock.now_s() * 1000),
                fingerprint="kept for a week",
                on_done=self.rng.choice(["", "", "", "mail"]),
                start_ms=int(self.clock.now_s() * 1000) + self.rng.choice([0, 0, 0, 400]),
            )
            self.parts[part] = single.part
            singles += [single] * self.rng.choice([1, 1, 1, 2])
            self.singles.append(single)
        await self.both(lambda s: s.singles.accept(PARTITION, singles))
        expected = self.reference.bell.handovers()
        assert await handovers(self.tested, len(expected)) == expected
        self.held += [handover.slice for handover in expected]
        self.handed_over += len(expected)

    async def look_at_records(self) -> None:
        for single in self.singles[-3:]:
            await self.both(
                lambda s, id=single.record.id: s.batches.get(id),  # type: ignore[misc]
                lambda batch: batch and msgspec.structs.replace(batch, tag=""),
            )

    async def steer(self) -> None:
        part = self.rng.choice([*self.parts, "nobody"])
        verb, lap, since = self.rng.choice(VERBS), self.rng.randint(0, 3), self.rng.randint(0, 4)
        await self.both(lambda s: s.queue.steer(PARTITION, part, verb, lap, since))
        await self.both(lambda s: s.queue.part(PARTITION, part))

    async def claim(self) -> None:
        lanes = self.rng.sample(["slow", "fast"], self.rng.randint(0, 2))
        request = ClaimRequest(
            owner=self.rng.choice(["me", "me", "me", "me", "you"]),
            attempt=f"attempt-{self.attempts}",
            want=self.rng.randint(0, 40),
            lease_ms=self.rng.choice([50, 500, 5_000]),
            grants={lane: self.rng.randint(0, 10) for lane in lanes},
            each_max=self.rng.choice([0, 0, 1, 3]),
        )
        self.attempts += 1
        if self.last and self.rng.random() < 0.15:
            request = msgspec.structs.replace(request, unanswered=[self.last.attempt])
        elif self.last and self.rng.random() < 0.05:
            request = msgspec.structs.replace(request, attempt=self.last.attempt)
        self.last = request
        stands = self.rng.random() < 0.5

        def about(stores: QueueStores) -> ClaimRequest:
            bell = stores.bell.address if stands else ""
            return msgspec.structs.replace(request, bell=bell)

        claimed = await self.both(lambda s: s.queue.claim(PARTITION, about(s)), _sorted_lanes)
        again = {item.attempt for item in claimed.slices}
        self.held = [item for item in self.held if item.attempt not in again] + claimed.slices

    async def settle(self) -> None:
        count = self.rng.randint(0, min(len(self.held), 6))
        outcomes = [self._outcome(item) for item in self.rng.sample(self.held, count)]
        beats = [i.attempt for i in self.rng.sample(self.held, min(len(self.held), 2))]
        await self.both(lambda s: s.queue.settle(PARTITION, outcomes, [*beats, "no:0"], 700))

    def _outcome(self, item: Slice) -> Outcome:
        rng = self.rng
        marks = rng.choice(["d", "d", ".drfb", "d.", "drrrr", "f", "b"])
        text = "".join(rng.choice(marks) for _ in range(item.count + (rng.random() < 0.05)))
        setbacks = [
            Setback(offset, f"why {offset}", rng.choice([0, 30, 3_000]), rng.random() < 0.7)
            for offset in range(item.count)
            if rng.random() < 0.5
        ]
        offsets = rng.sample(range(item.count), rng.randint(0, item.count))
        results = [(offset, b"%d" % rng.randint(0, 99)) for offset in offsets]
        return Outcome(item.attempt, text, rng.randint(0, 5_000) * item.count, setbacks, results)

    async def wait(self) -> None:
        await self.clock.advance(self.rng.choice([0.001, 0.01, 0.05, 0.6, 6.0, 61.0]))
        if self.rng.random() < 0.2:
            self.of_server.offset_s += self.rng.choice([-HOUR_S, -3.0, -0.1, 0.1, 3.0, HOUR_S])
        await self.both(lambda s: s.fleet.own(PARTITION, "me", 30_000))

    async def chores(self) -> None:
        reported = [end for end in self.ends if self.rng.random() < 0.7]
        chores = await self.both(
            lambda s: s.queue.chores(PARTITION, reported),
            lambda found: (sorted(found.ends, key=repr), sorted(found.stale)),
        )
        self.ends = chores.ends

    async def damage(self) -> None:
        """A chunk is gone, as no server should lose one."""
        part, chunk = self.rng.choice([*self.parts, "nobody"]), self.rng.randint(0, 3)
        await lose_chunk(self.reference, part, chunk)
        await lose_chunk(self.tested, part, chunk)

    async def look(self) -> None:
        for part in [*self.parts, "nobody"]:
            await self.both(lambda s, part=part: s.queue.part(PARTITION, part))  # type: ignore[misc]
            await self.both(lambda s, part=part: s.losses.gaps(PARTITION, part, 4))  # type: ignore[misc]
        live = await self.both(lambda s: s.losses.live_parts(PARTITION, "", 100), _sorted_parts)
        assert {part.id for part in live} <= set(self.parts)
        await self.both_loads(lambda s: s.queue.load(PARTITION))
        await self.both(lambda s: s.queue.is_idle(PARTITION))

    async def look_at_failures(self) -> None:
        for part in self.parts:
            after = self.rng.choice(["", "00000000:0003", "00000001:0000"])
            await self.both(
                lambda s, part=part, after=after: s.queue.failures(PARTITION, part, after, 5)  # type: ignore[misc]
            )

    async def look_at_results(self) -> None:
        chunks = [(number, 12) for number in range(4)]
        for part in [*self.parts, "nobody"]:
            with_items = self.rng.random() < 0.5
            await self.both(
                lambda s, part=part, items=with_items: s.queue.results(  # type: ignore[misc]
                    PARTITION, part, chunks, items
                )
            )


def _sorted_parts(live: list[LivePart]) -> list[LivePart]:
    return sorted(live, key=repr)


def _sorted_lanes(claimed: Claimed) -> Claimed:
    lanes = sorted(claimed.lanes, key=lambda depth: depth.lane)
    return msgspec.structs.replace(claimed, lanes=lanes)


@pytest.mark.parametrize("seed", range(usually(6, full=40)))
async def test_redis_does_what_the_reference_does(
    seed: int, server: RedisServer, clock: ManualClock
) -> None:
    of_server = ServerClock(clock)
    async with redis_queue(server.url, clock, of_server) as tested:
        reference = MemoryQueueServer(of_server).stores(clock)
        walk = Walk(reference, tested, clock, of_server, Random(seed))
        await listening(tested, server)
        await walk.both(lambda s: s.fleet.own(PARTITION, "me", 30_000))
        for _ in range(150):
            await walk.step()
        await walk.look()
        await walk.look_at_results()
