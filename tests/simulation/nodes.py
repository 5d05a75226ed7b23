"""Processes of the simulated fleet: production code behind a bad link and a wrong clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from heatsink.client.heatsink import Heatsink
from heatsink.client.settings import Settings
from heatsink.errors import HeatsinkError
from heatsink.primitives.chance import SECRET_BYTES
from heatsink.spread.backoff import Retries
from heatsink.spread.counters import TOKEN_TTL_S
from heatsink.spread.policy import BucketRules
from heatsink.stores.stores import Stores
from heatsink.testing import Faults, Link, SkewedClock

RULES = BucketRules(bucket_units_s=8, buckets_max=8, cool_down_s=3.0)
RETRIES = Retries(first_s=0.05, longest_s=0.5, deadline_s=4.0)


class Node:
    """An app server or a coordinator. It can stall, crash and start again."""

    def __init__(
        self, name: str, connect: Callable[[Node], Stores], coordinates: bool, rng: Random
    ) -> None:
        self.name = name
        self.clock = SkewedClock()
        self.faults = Faults()
        self.link = Link(self.clock, self.faults, rng)
        self.relay_faults = Faults(timeout_s=0.25)
        self.relay_link = Link(self.clock, self.relay_faults, rng)
        self.token_ttl_s = TOKEN_TTL_S
        self.client: Heatsink | None = None
        self._connect = connect
        self._coordinates = coordinates
        self._rng = rng
        self._lives = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order, so that a seed replays

    async def start(self) -> None:
        """Come up, however long the store takes to answer."""
        self._lives += 1
        settings = Settings(
            rules=RULES,
            retries=RETRIES,
            coordinate=self._coordinates,
            lease_s=1.5,
            name=f"{self.name}.{self._lives}",
        )
        while True:
            stores = self._connect(self)
            client = Heatsink(
                stores, settings, self.clock, self._rng, make_secret=self._make_secret
            )
            try:
                await client.__aenter__()
            except HeatsinkError:
                await self.clock.sleep(0.2)
                continue
            client.counters._token_ttl_s = self.token_ttl_s
            self.client = client
            return

    def _make_secret(self) -> bytes:
        return self._rng.randbytes(SECRET_BYTES)

    @property
    def landings(self) -> list[asyncio.Task[Any]]:
        """What was sent and has not landed yet."""
        return [*self.link.landings, *self.relay_link.landings]

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something on this node; a crash of the node cancels it."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return await task

    def crash(self) -> None:
        """End at once: no farewell, nothing flushed. What was sent may still land."""
        client, self.client = self.client, None
        for task in list(self._tasks):
            task.cancel()
        if client is not None:
            renewal = client.parts.registry._renewal
            for task in [*client.parts.tasks, *([renewal] if renewal else [])]:
                task.cancel()
