"""Accepted means safe: what was written is on disk before anybody is told so.

WAITAOF waits for the fsync of all that came before it in the server's log, so one call after one
tiny write on the same connection covers whatever other connections had written. A server that
does not know it (before 7.2) must fsync every write itself: `appendfsync always`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal, get_args

from redis import exceptions

from heatsink.checks import shown
from heatsink.errors import HeatsinkError, InvalidSetting, Misconfigured, NoAccess, Unavailable
from heatsink.stores.redis.address import Address
from heatsink.stores.redis.connection import open_driver

from .keys import QueueKeys
from .places import Places

Durability = Literal["fsync", "relaxed"]
FSYNC_MS = 5_000
PATIENCE_S = 6.0
MARK_MS = 60_000
TROUBLE = (exceptions.RedisError, OSError, TimeoutError)
CURE = "set appendonly yes (before version 7.2 also appendfsync always), or durability='relaxed'"


class Syncer:
    """Remembers where this process wrote since the last sync; whoever waits shares the next one."""

    def __init__(self, places: Places, keys: QueueKeys, durability: Durability) -> None:
        if durability not in get_args(Durability):
            raise InvalidSetting(
                f"durability must be 'fsync' or 'relaxed', not {shown(durability)}"
            )
        self._places = places
        self._keys = keys
        self._asks = durability == "fsync"
        self._touched: set[tuple[Address, str]] = set()
        self._turn = asyncio.Lock()
        self._drivers: dict[Address, Any] = {}
        self._syncs_itself: dict[Address, bool] = {}

    def touch_partition(self, partition: int) -> None:
        self._touch(self._places.address(partition), self._keys.partition(partition))

    def touch_home(self, key: str) -> None:
        self._touch(self._places.home_address, f"{key}/")

    def _touch(self, address: Address, key: str) -> None:
        if self._asks:
            self._touched.add((address, key))

    async def verify(self) -> None:
        """Raises `Misconfigured` where nobody could tell whether a write is on disk.

        A partition's own Redis may be down meanwhile: it is asked before its first sync.
        """
        for connection in self._places.connections:
            try:
                await connection.run("PING")
                for node in await connection.nodes() if self._asks else []:
                    await self._verify(node)
                    await self._verify_room(node)
            except Unavailable:
                if connection is self._places.home:
                    raise

    async def _verify_room(self, node: Address) -> None:
        """A server that drops keys when it is full would drop what was accepted."""
        try:
            about = await self._driver(node).info("memory")
        except exceptions.ResponseError:
            return  # its user may not ask
        except TROUBLE as error:
            raise _unsure(node, error) from None
        if about.get("maxmemory") and about.get("maxmemory_policy") != "noeviction":
            raise Misconfigured(
                f"Redis at {node} may evict what was accepted: set maxmemory-policy noeviction"
            )

    async def _verify(self, node: Address) -> None:
        try:
            await self._driver(node).execute_command("WAITAOF", 1, 0, 1)
            self._syncs_itself[node] = False
        except exceptions.ResponseError as error:
            unknown = "unknown command" in str(error).lower()
            self._syncs_itself[node] = unknown and await self._fsyncs_always(node)
            if not self._syncs_itself[node]:
                raise Misconfigured(
                    f"Redis at {node} cannot say that a write is on disk: {CURE}"
                ) from None
        except TROUBLE as error:
            raise _unsure(node, error) from None

    async def _fsyncs_always(self, node: Address) -> bool:
        try:
            ask = self._driver(node).config_get
            found = {**await ask("appendonly"), **await ask("appendfsync")}
        except exceptions.ResponseError:
            return False
        return found == {"appendonly": "yes", "appendfsync": "always"}

    async def sync(self) -> None:
        async with self._turn:
            touched, self._touched = self._touched, set()
            try:
                await self._sync(touched)
            except BaseException:
                self._touched |= touched
                raise

    async def _sync(self, touched: set[tuple[Address, str]]) -> None:
        marks: dict[Address, str] = {}
        for address, key in touched:
            for node in await self._places.at(address).nodes(key):
                marks[node] = f"{key}synced"
        await asyncio.gather(*(self._wait(node, mark) for node, mark in marks.items()))

    async def _wait(self, node: Address, mark: str) -> None:
        if node not in self._syncs_itself:
            await self._verify(node)
        if self._syncs_itself[node]:
            return
        pipeline = self._driver(node).pipeline(transaction=False)
        pipeline.execute_command("SET", mark, 1, "PX", MARK_MS)
        pipeline.execute_command("WAITAOF", 1, 0, FSYNC_MS)
        try:
            _, (fsynced, _) = await pipeline.execute()
        except TROUBLE as error:
            raise _unsure(node, error) from None
        if not fsynced:
            raise Unavailable(f"Redis at {node} took more than {FSYNC_MS} ms to fsync: retry later")

    def _driver(self, node: Address) -> Any:
        if node not in self._drivers:
            self._drivers[node] = open_driver(node.patient(PATIENCE_S))
        return self._drivers[node]

    async def close(self) -> None:
        drivers, self._drivers = self._drivers, {}
        for driver in drivers.values():
            await driver.aclose()


def _unsure(node: Address, error: Exception) -> HeatsinkError:
    if isinstance(error, exceptions.AuthenticationError):
        return NoAccess(
            f"Redis at {node} refuses the user or the password: check the URL of the queue"
        )
    if isinstance(error, exceptions.ConnectionError | OSError):
        return Unavailable(
            f"Redis at {node} cannot be reached: start it, or check the URL of the queue"
        )
    reason = type(error).__name__
    return Unavailable(f"Redis at {node} did not confirm its fsync ({reason}): retry later")
