"""Stores that count what is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, replace
from typing import Any

from heatsink.registry.decisions import RegistryStore
from heatsink.spread.store import Answer, Ask, LogStore, Row
from heatsink.stores.stores import Stores


@dataclass
class Counts:
    """What was asked since the last `clear`."""

    queries: int = 0
    rows: int = 0
    rounds: int = 0
    layouts: int = 0
    in_flight: int = 0

    def clear(self) -> None:
        self.queries = self.rows = self.rounds = self.layouts = 0


class CountingLog:
    def __init__(self, store: LogStore, counts: Counts) -> None:
        self._store = store
        self._counts = counts

    async def query(self, partition: str, ask: Ask) -> Answer:
        """A round begins with a query that is asked while no other waits for its answer."""
        counts = self._counts
        counts.rounds += counts.in_flight == 0
        counts.queries += 1
        counts.in_flight += 1
        await asyncio.sleep(0)  # so that all queries of a round are asked before one is answered
        answer = await self._store.query(partition, ask)
        counts.in_flight -= 1
        counts.rows += len(answer.rows)
        return answer

    def put(self, partition: str, row: Row) -> Awaitable[Row | None]:
        return self._store.put(partition, row)

    async def get(self, partition: str, raw: bytes) -> Row | None:
        return await self._store.get(partition, raw)

    async def delete(self, partition: str, tombstone: Row) -> bool:
        return await self._store.delete(partition, tombstone)

    async def erase(self, partition: str) -> int:
        return await self._store.erase(partition)

    def scan(self) -> AsyncIterator[tuple[str, Row]]:
        return self._store.scan()


class CountingRegistry:
    """Counts the strong reads of a layout; everything else passes through."""

    def __init__(self, store: RegistryStore, counts: Counts) -> None:
        self._store = store
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        self._counts.layouts += name == "layout"
        return getattr(self._store, name)


def counting(stores: Stores, counts: Counts) -> Stores:
    registry: Any = CountingRegistry(stores.registry, counts)
    return replace(stores, log=CountingLog(stores.log, counts), registry=registry)
