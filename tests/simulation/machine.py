"""The same fleet as processes of one machine, on SQLite's stores, whose clock goes wrong."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from heatsink.client.heatsink import Heatsink
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import now_ms
from heatsink.primitives.ids import Uuid7
from heatsink.registry import news
from heatsink.registry.closed_time import evidence_of
from heatsink.spread import fsck

from .backends import SqliteBackend
from .checks import RegistryAudit
from .history import History, Violation
from .nodes import Node
from .world import COUNTERS, YEAR_S, World, has_folds, play

TWO_DAYS_S = 2 * 86_400.0
PINNED_S = 10.0
FLEET_ASKS_S = 0.1  # as if 10,000 processes shared what the store answers


class MachineWorld(World):
    """Clocks jump for all processes at once, or one process has a wrong one; it starts anew.

    A third of the seeds has a kernel that is synchronised, and that all processes may ask.
    """

    def _skew_clocks(self) -> None:
        self._seed_kind = self.rng.randrange(3)
        self._boots = 0
        self._is_jumping = False
        for node in self.nodes:
            node.clock.offset_s = self.rng.uniform(-0.5, 0.5)
            node.clock.kernel_offset_s = 0.0 if self._seed_kind == 0 else None
        if self._seed_kind != 2 and self.rng.random() < 0.6:
            self.rng.choice(self.nodes).clock.offset_s = self.rng.choice((YEAR_S, -YEAR_S))

    def _workload(self) -> list[object]:
        trouble = [self._forever(self._jump_together, 2.0)]
        if self._seed_kind == 2:
            trouble.append(self._forever(self._reboot, 8.0))
        return [*super()._workload(), *trouble]

    async def _jump_together(self) -> None:
        """Somebody sets the machine's clock, and sets it right again."""
        if self._is_jumping:
            return
        self._is_jumping = True
        off_s = self.rng.choice((TWO_DAYS_S, -3_600.0, 3_600.0))
        try:
            await self._shifted(off_s, self.rng.choice((0.1, 0.5, 2.0, 8.0)))
            await asyncio.sleep(2.0)
        finally:
            self._is_jumping = False

    async def _shifted(self, off_s: float, seconds: float) -> None:
        for node in self.nodes:
            node.clock.offset_s += off_s
        try:
            await asyncio.sleep(seconds)
        finally:
            for node in self.nodes:
                node.clock.offset_s -= off_s

    async def _reboot(self) -> None:
        """Everybody goes at once, and comes back under another boot clock."""
        self._boots += 1
        for node in self.nodes:
            node.crash()
            node.clock.boot = f"boot {self._boots}"
        await asyncio.sleep(self.rng.choice((0.5, 3.0, 8.0)))
        down = [node for node in self.nodes if node.client is None]
        await asyncio.gather(*(_start(node) for node in down))


async def _start(node: Node) -> None:
    if node.client is None:
        await node.start()


class CuredWorld(World):
    """A kernel that claims to be synchronised moves the store two days ahead.

    Then its clock is set right, everybody stops, the closed time is reset, and life goes on.
    """

    backend: SqliteBackend
    ahead_s = TWO_DAYS_S

    async def run(self) -> History:
        for node in self.nodes:
            node.clock.offset_s = self.rng.uniform(-0.5, 0.5)
        await self.backend.open()
        await asyncio.gather(*(node.start() for node in self.nodes))
        await self._live_and_heal(4.0)
        self.audit.ahead_ms_max = float("inf")
        await self._live_ahead(self.rng.uniform(0.5, 3.0))
        await self._live_and_heal(2.0)
        await self._stop_all()
        await self._cure()
        await asyncio.gather(*(node.start() for node in self.nodes))
        await self._live(8.0)
        await self._calm_down()
        await self._check_cure()
        await self._final_checks()
        return self.history

    async def _live_and_heal(self, seconds: float) -> None:
        await self._live(seconds)
        self._heal()

    async def _live_ahead(self, seconds: float) -> None:
        self._set_clocks(self.ahead_s, self.ahead_s)
        await self._live_and_heal(seconds)
        self._set_clocks(-self.ahead_s, 0.0)

    def _set_clocks(self, shift_s: float, kernel_offset_s: float | None) -> None:
        for node in self.nodes:
            node.clock.offset_s += shift_s
            node.clock.kernel_offset_s = kernel_offset_s

    async def _stop_all(self) -> None:
        """What was sent has landed, since the file's lock keeps everybody out afterwards."""
        for node in self.nodes:
            await node.clock.awake()
            node.crash()
        while landings := [task for node in self.nodes for task in node.landings]:
            await asyncio.wait(landings)

    async def _cure(self) -> None:
        clock = self.truth_clock
        alone = self.backend.alone(clock)
        stores = alone.stores
        meta = (await stores.registry.meta()).meta
        if meta.closed_ms < now_ms(clock) + 1000 * self.ahead_s - 60_000:
            raise Violation("the store was not moved ahead")
        evidence = evidence_of(clock, now_ms(clock))
        await fsck.reset_closed_time(
            alone, stores.registry, stores.counters, evidence, fsck.OtherSubjects(), "cured"
        )
        self.audit = RegistryAudit()
        self._set_clocks(0.0, self.rng.choice((None, 0.0)))

    async def _check_cure(self) -> None:
        """Layouts change and counters count again, at once; every row is in its place."""
        node = self.app_servers[0]
        await node.clock.awake()
        await self._attempt(node, lambda hs: hs.pin("unheard of", buckets=3, reason="to see"))
        give_up_s = self.truth_clock.monotonic_s() + PINNED_S
        while (await self.backend.stores.registry.layout("unheard of")).buckets != 3:
            if self.truth_clock.monotonic_s() > give_up_s:
                raise Violation("layouts cannot change though the closed time was reset")
            await asyncio.sleep(0.1)
        for key in COUNTERS:
            if isinstance(await self._attempt(node, _adding(key)), HeatsinkError):
                raise Violation("a counter takes no adds though the closed time was reset")
            self._adds(key).attempted += 1
            self._adds(key).acknowledged += 1
        stores = self.backend.stores
        found = await fsck.check(stores.log, stores.counters, stores.registry, Uuid7())
        if not found.clean:
            raise Violation(found.problems[0])


class CuredFleet(CuredWorld):
    """The same by a minute, in a large fleet: its processes believe news from that far ahead.

    So only its incarnation tells news of before the cure from news of after it. Each process that
    starts after the cure finds the news of before it in Redis.
    """

    ahead_s = 75.0

    async def run(self) -> History:
        with patch.object(news, "ASKS_S", FLEET_ASKS_S):
            return await super().run()

    async def _cure(self) -> None:
        await super()._cure()
        self.audit.ahead_ms_max = float("inf")  # the longer no news comes, the further ahead


def _adding(key: str):  # type: ignore[no-untyped-def]
    async def add(hs: Heatsink) -> None:
        await hs.counters.add(key, 1)

    return add


def simulate_machine(seed: int) -> History:
    """Processes of one machine on SQLite's stores."""
    return play(seed, SqliteBackend, has_folds(seed), MachineWorld)


def simulate_cure(seed: int) -> History:
    """A store that was moved ahead, is cured, and goes on."""
    return play(seed, SqliteBackend, has_folds(seed), CuredWorld)


def simulate_cure_of_a_fleet(seed: int) -> History:
    """A store that was moved ahead by a minute, whose large fleet gets its news from Redis."""
    return play(2 * seed + 1, SqliteBackend, with_folds=False, make_world=CuredFleet)
