"""Messages between simulated processes, in memory. `stores/redis` must behave the same."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from heatsink.heat.heat import Report
from heatsink.primitives.clock import Clock
from heatsink.reads.invalidation import Ear
from heatsink.registry.decisions import Decision, SoftDecision
from heatsink.timelines.store import HOME_MAX, HomeEntry

REPORTS_MAX = 1_000


class MemoryBus:
    """Heat reports. Only the newest 1,000 are kept, since a coordinator does not use old ones."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque(maxlen=REPORTS_MAX)

    async def send(self, report: Report) -> None:
        self._reports.append(report)

    async def receive(self) -> list[Report]:
        received = list(self._reports)
        self._reports.clear()
        return received


class MemoryNews:
    """Passes registry news (the pair and log entries) to all clients of this process."""

    def __init__(self) -> None:
        self.newest: bytes | None = None
        self.log: dict[str, dict[int, bytes]] = {}

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        known = self.log.setdefault(log, {})
        for version, entry in entries.items():
            if version > max(known, default=0):
                known[version] = entry
        self.newest = pair

    async def pair(self, _servers: int = 1, /) -> bytes | None:
        return self.newest

    async def entries(self, log: str, after: int, upto: int) -> list[bytes]:
        known = self.log.get(log, {})
        return [entry for version, entry in sorted(known.items()) if after < version <= upto]


class MemorySoft:
    """Soft decisions, which all processes share in `log`.

    Each process has an object of its own, which remembers how far the process has read.
    """

    def __init__(self, log: list[SoftDecision]) -> None:
        self._log = log
        self._next = 0

    async def publish(self, decisions: Sequence[Decision], term: int) -> None:
        self._log.extend(SoftDecision(term, decision) for decision in decisions)

    async def read(self) -> list[SoftDecision]:
        if self._next > len(self._log):
            self._next = 0
        read = self._log[self._next :]
        self._next += len(read)
        return read


class MemoryWire:
    """One process's end of the channel for invalidations (`forget`).

    All processes share the list `ends`, which holds the ends that listen.
    """

    def __init__(self, ends: list[MemoryWire]) -> None:
        self._ends = ends
        self._ear: Ear | None = None
        self._broken: asyncio.Event | None = None

    async def send(self, keys: Sequence[str]) -> None:
        for end in self._ends:
            if end is not self:
                end.hear(keys)

    def hear(self, keys: Sequence[str]) -> None:
        if self._ear is not None:
            self._ear.heard(keys)

    async def listen(self, ear: Ear) -> None:
        self._ear, self._broken = ear, asyncio.Event()
        self._ends.append(self)
        ear.linked()
        try:
            await self._broken.wait()
        finally:
            self._ear = None
            self._ends.remove(self)

    def cut(self) -> None:
        """Break the link of this process, as a lost connection does."""
        if self._broken is not None:
            self._broken.set()


class MemoryHomes:
    """Home timelines in the memory of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_s: dict[str, float] = {}
        self._homes: dict[str, set[HomeEntry]] = {}
        self._built: set[str] = set()

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        await self.fill(users, [entry], built=False)

    async def page(self, user: str, below: HomeEntry | None, limit: int) -> list[HomeEntry] | None:
        if user not in self._built:
            return None
        self._looked_s[user] = self._clock.monotonic_s()
        entries = sorted(self._homes.get(user, ()), reverse=True)
        return [e for e in entries if below is None or e < below][:limit]

    async def fill(self, users: Sequence[str], entries: Sequence[HomeEntry], built: bool) -> None:
        for user in users:
            home = self._homes.setdefault(user, set())
            home.update(entries)
            if len(home) > HOME_MAX:
                self._homes[user] = set(sorted(home, reverse=True)[:HOME_MAX])
            self._looked_s.setdefault(user, self._clock.monotonic_s())
        if built:
            self._built.update(users)

    async def drop(self, user: str, author: str) -> None:
        self._homes[user] = {e for e in self._homes.get(user, ()) if e.author != author}
        self._built.discard(user)

    async def looked_at_s(self, users: Sequence[str]) -> list[float | None]:
        now_s, looked_s = self._clock.monotonic_s(), self._looked_s
        return [now_s - looked_s[user] if user in looked_s else None for user in users]
