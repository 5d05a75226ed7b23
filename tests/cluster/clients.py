"""Clients of a cluster under test: an open-loop Zipf load, and writes that are confirmed.

`ZipfLoad` sends requests at times that do not depend on the answers, and keeps their latencies and
errors. `ConfirmedWriter` appends numbers, and remembers those that a replica confirmed (`WAIT 1`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Sequence
from contextlib import suppress
from itertools import accumulate, count
from random import Random
from typing import Any

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio import RedisCluster as Client
from redis.crc import key_slot

S = 1.1
KEYS = 2_000
HOT = 30  # so many of the hottest keys are on one node at first
IN_FLIGHT_MAX = 500
PROBERS, PROBES = 8, 100
ROWS = 100


def zipf_keys(rng: Random, crowded: Container[int]) -> list[str]:
    """Keys, the hottest first. The hottest of all have slots in `crowded`."""
    names = [f"user:{number}" for number in range(KEYS)]
    rng.shuffle(names)
    unlucky = [name for name in names if key_slot(name.encode()) in crowded][:HOT]
    return unlucky + [name for name in names if name not in unlucky]


class ZipfLoad:
    """Reads of lists (and one write in five), by keys with a Zipf distribution."""

    def __init__(self, client: Client, keys: Sequence[str], rng: Random, rows: int = ROWS) -> None:
        self._rows = rows
        self._client = client
        self._keys = keys
        self._rng = rng
        self._sums = list(accumulate(1 / (rank + 1) ** S for rank in range(len(keys))))
        self.latencies: list[tuple[float, float]] = []
        """When each request was due, and how long after that it was answered."""
        self.errors: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def fill(self) -> None:
        """Make every list, so that all nodes have data."""
        for name in self._keys:
            await self._client.rpush(name, *range(self._rows))

    async def capacity(self) -> float:
        """Measure how many requests a second this machine carries now, in a closed loop."""
        began_s = time.monotonic()

        async def ask() -> None:
            for _ in range(PROBES):
                await self._request(time.monotonic())

        await asyncio.gather(*(ask() for _ in range(PROBERS)))
        self.latencies.clear()
        return PROBERS * PROBES / (time.monotonic() - began_s)

    async def run(self, per_s: float, stop: asyncio.Event) -> None:
        """Send requests at this rate until `stop`, whether the answers come or not."""
        due_s = time.monotonic()
        while not stop.is_set():
            due_s += self._rng.expovariate(per_s)
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            if len(self._tasks) < IN_FLIGHT_MAX:
                task = asyncio.ensure_future(self._request(due_s))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self.errors.append("too many requests in flight")
        await asyncio.gather(*self._tasks)

    async def _request(self, due_s: float) -> None:
        name = self._rng.choices(self._keys, cum_weights=self._sums)[0]
        try:
            if self._rng.random() < 0.2:
                await self._client.lset(name, 0, "new")
            else:
                await self._client.lrange(name, 0, -1)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        self.latencies.append((due_s, time.monotonic() - due_s))

    def p99_ms(self, first_s: float = 0.0, last_s: float = float("inf")) -> float:
        """The latency within which 99 % of the requests of a time were answered."""
        taken = sorted(took for due_s, took in self.latencies if first_s <= due_s <= last_s)
        return 1000 * taken[int(0.99 * (len(taken) - 1))] if taken else 0.0


class ConfirmedWriter:
    """Appends numbers to lists, each on one connection with `WAIT 1`, and follows redirects."""

    def __init__(self, seeds: Sequence[int], keys: Sequence[str]) -> None:
        """`seeds` are the ports of nodes; `keys` the lists, in turn."""
        self._seeds = list(seeds)
        self._keys = keys
        self._connections: dict[int, Redis] = {}
        self._owner: dict[int, int] = {}
        self.confirmed: list[tuple[str, int]] = []
        self.failed = 0

    async def run(self, stop: asyncio.Event, pause_s: float = 0.005) -> None:
        for number in count():
            if stop.is_set():
                return
            await self._append(self._keys[number % len(self._keys)], number)
            await asyncio.sleep(pause_s)

    async def _append(self, key: str, number: int) -> None:
        """Try a few times. A write whose answer is lost is not confirmed, and not repeated."""
        slot = key_slot(key.encode())
        for attempt in range(8):
            port = self._owner.get(slot, self._seeds[attempt % len(self._seeds)])
            try:
                pipeline: Any = self._to(port).pipeline(transaction=False)
                pipeline.execute_command("RPUSH", key, number)
                pipeline.execute_command("WAIT", 1, 2_000)
                written, replicas = await pipeline.execute(raise_on_error=False)
            except (exceptions.RedisError, OSError):
                self._owner.pop(slot, None)
                self.failed += 1
                return
            if isinstance(written, exceptions.MovedError | exceptions.AskError):
                self._owner[slot] = written.port
                continue
            if not isinstance(written, Exception):
                if replicas >= 1:
                    self.confirmed.append((key, number))
                return
            await asyncio.sleep(0.05)
        self.failed += 1

    def _to(self, port: int) -> Redis:
        if port not in self._connections:
            self._connections[port] = Redis(host="127.0.0.1", port=port, socket_timeout=3.0)
        return self._connections[port]

    async def missing(self, client: Client) -> list[tuple[str, int]]:
        """Confirmed writes that the cluster does not have."""
        kept = {(key, int(each)) for key in self._keys for each in await client.lrange(key, 0, -1)}
        return [each for each in self.confirmed if each not in kept]

    async def close(self) -> None:
        for connection in self._connections.values():
            with suppress(exceptions.RedisError, OSError):
                await connection.aclose()
