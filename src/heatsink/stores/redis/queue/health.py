"""How the servers of a queue are doing."""

from __future__ import annotations

import asyncio

from heatsink.bulk.store import LEGACY, ServerHealth
from heatsink.clock import Clock
from heatsink.stores.redis.address import Address
from heatsink.stores.redis.connection import Connection

from .places import Places

PINGS = 3  # the quickest counts: the others may have waited for us


class Doctor:
    """Asks each Redis once; `partitions` is how many there are."""

    def __init__(self, places: Places, clock: Clock) -> None:
        self._places = places
        self._clock = clock

    async def examine(self, partitions: int) -> list[ServerHealth]:
        by_address: dict[Address, list[int]] = {a: [] for a in self._places.addresses}
        for partition in (LEGACY, *range(partitions)):
            by_address[self._places.address(partition)].append(partition)
        return list(
            await asyncio.gather(*(self._ask(a, tuple(held)) for a, held in by_address.items()))
        )

    async def _ask(self, address: Address, partitions: tuple[int, ...]) -> ServerHealth:
        connection = self._places.at(address)
        facts = await _info(connection)
        return ServerHealth(
            place=str(address),
            cpu_used_s=facts.get("used_cpu_sys", 0.0) + facts.get("used_cpu_user", 0.0),
            memory=int(facts.get("used_memory", 0)),
            memory_max=int(facts.get("maxmemory", 0)),
            latency_ms=min([await self._ping_ms(connection) for _ in range(PINGS)]),
            partitions=partitions,
        )

    async def _ping_ms(self, connection: Connection) -> float:
        began_s = self._clock.monotonic_s()
        await connection.run("PING")
        return (self._clock.monotonic_s() - began_s) * 1000


async def _info(connection: Connection) -> dict[str, float]:
    """The numbers of INFO. A cluster answers for each node: the busiest counts."""
    found: dict[str, float] = {}
    for section in ("cpu", "memory"):
        answer = await connection.run("INFO", section)
        nodes = answer.values() if _is_by_node(answer) else [answer]
        for node in nodes:
            for name, value in node.items():
                if isinstance(value, int | float):
                    found[name] = max(found.get(name, 0.0), float(value))
    return found


def _is_by_node(answer: dict[str, object]) -> bool:
    return any(isinstance(value, dict) for value in answer.values())
