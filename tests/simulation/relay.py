"""A Redis of which nothing can be relied on: down, slow, wiped, set back, forged, shared."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from random import Random

import msgspec
from msgspec import structs

from heatsink.primitives.chance import SECRET_BYTES
from heatsink.registry.decisions import BUCKETS, LogEntry, Meta, for_key
from heatsink.registry.news import MAC_BYTES, Seal
from heatsink.stores.memory.messages import MemoryBus, MemoryNews

from .nodes import Node

HOUR_MS = 3_600_000
THEIRS = Meta(0, 0, 0, 0, "", "theirs", b"", "")


def _with_another_secret(meta: Meta) -> Meta:
    return structs.replace(meta, secret=b"another" + bytes(SECRET_BYTES - 7))


class UnreliableRedis:
    def __init__(self, rng: Random) -> None:
        self.news = MemoryNews()
        self.bus = MemoryBus()
        self._nodes: list[Node] = []
        self._rng = rng

    def reach(self, nodes: list[Node]) -> None:
        self._nodes = nodes

    async def make_trouble(self) -> None:
        trouble = self._rng.choice(
            (
                self._go_down,
                self._slow_down,
                self._wipe,
                self._lag_and_fail_over,
                self._intrude,
                self._forge,
                self._forge,
            )
        )
        await trouble()

    async def _go_down(self) -> None:
        for node in self._nodes:
            node.relay_faults.cut = True
        await asyncio.sleep(self._rng.uniform(0.2, 6.0))
        for node in self._nodes:
            node.relay_faults.cut = False

    async def _slow_down(self) -> None:
        """Some of it is late, some is given up on and lands all the same."""
        for node in self._nodes:
            node.relay_faults.latency_s = (0.05, 0.5)
            node.relay_faults.late = 0.1
        await asyncio.sleep(self._rng.uniform(0.2, 4.0))
        for node in self._nodes:
            node.relay_faults.latency_s = (0.001, 0.02)
            node.relay_faults.late = 0.0

    async def _wipe(self) -> None:
        self.news.newest, self.news.log = None, {}
        await self.bus.receive()

    async def _lag_and_fail_over(self) -> None:
        """A replica falls behind and is promoted: everything since is gone."""
        pair, log = self.news.newest, deepcopy(self.news.log)
        await asyncio.sleep(self._rng.uniform(0.2, 5.0))
        self.news.newest, self.news.log = pair, log

    async def _intrude(self) -> None:
        """Another deployment, misconfigured, speaks under our prefix."""
        theirs = _with_another_secret(THEIRS)
        for _ in range(self._rng.randrange(1, 20)):
            closed_ms, version = self._told() or (0, 0)
            closed_ms = max(closed_ms + self._rng.randrange(-2_000, 2_000), 0)
            version = max(version - self._rng.randrange(3), 0)
            self.news.newest = Seal(theirs).pair(closed_ms, version)
            await asyncio.sleep(self._rng.uniform(0.01, 0.2))

    def _told(self) -> tuple[int, int] | None:
        """Closed time and version, as anybody can read them here."""
        if self.news.newest is None:
            return None
        closed_ms, version, _ = self.news.newest.split(b"|", 2)
        return int(closed_ms), int(version)

    async def _forge(self) -> None:
        """Somebody who can write here does so for a while, in our name; or bits are flipped."""
        forge = self._rng.choice(
            (
                self._raise_the_closed_time,
                self._sign_with_another_secret,
                self._alter_an_entry,
                self._plant_an_entry,
                self._sign_with_the_secret,
            )
        )
        for _ in range(self._rng.randrange(1, 30)):
            ours = next(
                (node.client.parts.registry._meta for node in self._nodes if node.client), None
            )
            told = self._told()
            if ours is not None and told is not None:
                forge(ours, *told)
            await asyncio.sleep(self._rng.uniform(0.01, 0.2))

    def _some_time_ahead(self) -> int:
        return self._rng.choice((400, 400, 2_000, HOUR_MS))

    def _raise_the_closed_time(self, _: Meta, closed_ms: int, __: int) -> None:
        assert self.news.newest is not None
        rest = self.news.newest.split(b"|", 1)[1]
        self.news.newest = b"%d|%b" % (closed_ms + self._some_time_ahead(), rest)

    def _sign_with_another_secret(self, ours: Meta, closed_ms: int, version: int) -> None:
        seal = Seal(_with_another_secret(ours))
        self.news.newest = seal.pair(closed_ms + self._some_time_ahead(), version)

    def _alter_an_entry(self, ours: Meta, _: int, __: int) -> None:
        """The newest ones get another number of buckets, and keep their signatures."""
        log = self.news.log.get(ours.incarnation, {})
        for version in sorted(log)[-3:]:
            mac, body = log[version][:MAC_BYTES], log[version][MAC_BYTES:]
            entry = msgspec.msgpack.decode(body, type=LogEntry)
            decisions = tuple(
                structs.replace(decision, value=decision.value % 8 + 1)
                for decision in entry.decisions
                if decision.value is not None
            )
            altered = structs.replace(entry, decisions=decisions)
            log[version] = mac + msgspec.msgpack.encode(altered)

    def _plant_an_entry(self, ours: Meta, closed_ms: int, version: int) -> None:
        """The next version, before the leader decides it."""
        decision = for_key(self._rng.choice(("hot", "warm")), BUCKETS, 5, "forged")
        entry = LogEntry(version + 1, closed_ms, closed_ms, (decision,))
        log = self.news.log.setdefault(ours.incarnation, {})
        log.setdefault(entry.version, Seal(_with_another_secret(ours)).entry(entry))

    def _sign_with_the_secret(self, ours: Meta, closed_ms: int, version: int) -> None:
        """It leaked. Then the store's time is the bound, and what is far beyond it is refused."""
        self.news.newest = Seal(ours).pair(closed_ms + HOUR_MS, version)

    def heal(self) -> None:
        for node in self._nodes:
            node.relay_faults.heal()
            node.relay_faults.latency_s = (0.001, 0.02)
