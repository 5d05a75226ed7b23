"""One process's ear for partitions that got something to claim: a subscription for each Redis.

A ring may be missed and costs only the time until the next poll, so trouble is never an error here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from redis import exceptions

from heatsink.clock import Clock
from heatsink.errors import HeatsinkError
from heatsink.stores.redis.address import Address
from heatsink.stores.redis.connection import open_driver

LISTEN_S = 5.0
AGAIN_S = 1.0
TROUBLE = (exceptions.RedisError, HeatsinkError, OSError, TimeoutError, RuntimeError)


class RedisBell:
    def __init__(
        self, addresses: Sequence[Address], channel: str, clock: Clock, rng: Random
    ) -> None:
        self._addresses = addresses
        self._channel = channel
        self._clock = clock
        self._rng = rng
        self._rung: set[int] = set()
        self._ring = asyncio.Event()
        self._ears: list[asyncio.Task[None]] = []

    async def wait(self, timeout_s: float) -> set[int]:
        if not self._ears:
            self._ears = [asyncio.ensure_future(self._listen(place)) for place in self._addresses]
        if not self._rung:
            await self._pause(timeout_s)
        rung, self._rung = self._rung, set()
        self._ring.clear()
        return rung

    async def _pause(self, timeout_s: float) -> None:
        ring = asyncio.ensure_future(self._ring.wait())
        pause = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait({ring, pause}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ring.cancel()
            pause.cancel()

    async def _listen(self, address: Address) -> None:
        while True:
            with suppress(*TROUBLE):
                await self._hear(address)
            await self._clock.sleep(AGAIN_S * self._rng.uniform(0.5, 1.0))

    async def _hear(self, address: Address) -> None:
        """Until the connection breaks. In a cluster every node hears what any node publishes."""
        if address.kind == "cluster":
            address = address.node(*self._rng.choice(address.hosts))
        driver: Any = open_driver(address)
        pubsub = driver.pubsub()
        try:
            await pubsub.subscribe(self._channel)
            while await self._hears(pubsub):
                pass
        finally:
            await pubsub.aclose()
            await driver.aclose()

    async def _hears(self, pubsub: Any) -> bool:
        """One message, or an answer after a silence; False if there is not even that."""
        message = await pubsub.get_message(timeout=LISTEN_S)
        if message is None:
            await pubsub.ping()
            message = await pubsub.get_message(timeout=LISTEN_S)
        if message is not None and message["type"] == "message":
            self._rung.add(int(message["data"]))
            self._ring.set()
        return message is not None

    async def close(self) -> None:
        for ear in self._ears:
            ear.cancel()
        await asyncio.gather(*self._ears, return_exceptions=True)
        self._ears = []
