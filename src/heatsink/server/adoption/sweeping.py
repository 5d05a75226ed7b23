"""Sweeps spread indexes while this process leads.

After a value of a spread index has cooled down, entries of the index are left in buckets that new
entries do not use any more. A sweep moves them (`door/migration.py`). The leader looks for such
values once a minute.

A sweep needs no fence. It moves an entry only if its item has not changed since the sweep read it.
It records a result only if no other sweep has recorded one since it began. So two sweeps at once do
no harm: they only read more. A sweep that was interrupted begins again, and finds the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.door.declaration import SpreadTable
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import Clock
from heatsink.primitives.words import counted
from heatsink.registry.decisions import View
from heatsink.registry.declarations import recorded
from heatsink.registry.spread_indexes import notes_on
from heatsink.server.door.tables import table_of
from heatsink.stores.dynamodb.client import DynamoClient

from .indexing import Indexing, Runner

logger = logging.getLogger("heatsink")


class SweepSettings(msgspec.Struct, frozen=True):
    """How an index is swept."""

    look_s: float = 60.0
    """Seconds between two looks for values that need a sweep."""
    calm_s: float = 3_600.0
    """For how many seconds the number of buckets of a value must not have changed."""
    in_flight_s: float = 60.0
    """How many seconds a call of a program may take to reach DynamoDB."""
    per_value_s: float = 200.0
    """How many items of one value are changed per second."""


class Sweeper:
    """Sweeps the spread indexes of some tables while this process leads."""

    def __init__(
        self,
        hs: Heatsink,
        client: DynamoClient,
        tables: Callable[[], Iterable[SpreadTable]],
        clock: Clock,
        settings: SweepSettings = SweepSettings(),  # noqa: B008 (frozen)
    ) -> None:
        """`tables` returns the tables as they are declared now."""
        self._leader = hs.parts.coordination.leader
        self._registry = hs.parts.registry
        self._client = client
        self._tables = tables
        self._clock = clock
        self._settings = settings

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._settings.look_s)
            try:
                await self.look()
            except HeatsinkError as error:
                logger.warning("a sweep failed and will be repeated: %s", error)

    async def look(self) -> None:
        """If this process leads, sweep all values that need it."""
        for table in self._tables() if self._leader.leads else ():
            for name, _ in list(notes_on(self._registry.view, table.name)):
                await self._sweep(table, name)

    async def _sweep(self, table: SpreadTable, name: str) -> None:
        changed = 0

        def told(_: str, count: int) -> None:
            nonlocal changed
            changed = count

        settings = self._settings
        indexing = Indexing(self._registry, table, name, self._client)
        migration = indexing.migration(settings.per_value_s, told)
        if not migration.is_sweep_due(self._registry.now_ms(), int(settings.calm_s * 1000)):
            return
        runner = Runner(self._registry, self._client, self._clock, settings.in_flight_s)
        left = await runner.run(migration.sweep(), lambda: self._leader.leads)
        if left == 0:
            moved = counted(changed, "index entry", "index entries")
            logger.info("table %s: swept index %s, %s moved", table.name, name, moved)


def recorded_table(view: View, name: str) -> list[SpreadTable]:
    """Return the table as the registry declares it; nothing if it is not known.

    If the declaration uses a function of the application's own, this process cannot know it.
    """
    declared = recorded(view, name)
    try:
        return [] if declared is None else [table_of(name, declared)]
    except HeatsinkError:
        return []


@asynccontextmanager
async def sweeping(sweepers: Sequence[Sweeper]) -> AsyncIterator[None]:
    """Run sweepers in the background."""
    running = [asyncio.ensure_future(one.run()) for one in sweepers]
    try:
        yield
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
