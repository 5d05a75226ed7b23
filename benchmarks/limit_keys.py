"""What a batch costs whose items have many different keys of a limit: one item for each key.

The alternative is a batch of the same items without a limit. The queue's Redis is real, and the
worker, the producer and Redis run on one machine. Figures are CPU time of the process and of Redis
together, for each key: they do not depend on what else the machine does. While the worker runs, the
process looks at the batch's status now and then, as `wait` does.

The last figures are those of several batches that wait in the queue together. The docs compute from
them what a million keys cost.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable
from random import Random
from time import process_time

from redis.asyncio import Redis

import heatsink
from heatsink.bulk import Actions, BulkSettings, Context, Limit
from heatsink.bulk.limits import DeclaredLimits
from heatsink.primitives.clock import SystemClock
from heatsink.stores.redis.queue import open_queue
from heatsink.testing.redis import RedisServer

from .harness import Bench, Samples, Scale, at_most

ACCOUNTS = Limit("accounts", running=5, key="account")
SETTINGS = BulkSettings(durability="relaxed")
ANNOUNCED_MS = 3_600_000
TARGET_MS = {"submit": 1.0, "status": 0.5, "pause": 0.5}  # 10 s, 5 s and 5 s for 10,000 keys
TARGET_KB = 5.0


class Queue:
    """A queue on a Redis of its own. Its handlers wait until the gate is open."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)
        self._url = url
        self.gate = asyncio.Event()
        self.actions = Actions()
        self.actions.action("limited", limits=[ACCOUNTS])(self._handle)
        self.actions.action("free")(self._handle)

    async def _handle(self, _item: dict[str, object], _: Context) -> None:
        await self.gate.wait()

    def connect(self) -> heatsink.Heatsink:
        return heatsink.connect("memory://", queue=self._url, bulk=SETTINGS)

    async def announce(self) -> None:
        """Announce the limits of the actions, as workers do."""
        stores = open_queue(self._url, SystemClock(), Random(1), SETTINGS)
        declared = DeclaredLimits({ACCOUNTS.name: ACCOUNTS}, {"limited": (ACCOUNTS.name,)})
        await stores.places.declare("benchmark", declared, ANNOUNCED_MS)
        await stores.close()

    async def cpu_s(self) -> float:
        info = await self._redis.info("cpu")
        return process_time() + float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    async def bytes(self) -> float:
        return float((await self._redis.info("memory"))["used_memory"])

    async def close(self) -> None:
        await self._redis.aclose()


async def measured(action: str, keys: int, batches: int = 1) -> dict[str, float]:
    """Return CPU milliseconds and KB for each key of batches of this action.

    Each batch has `keys` keys of its own.
    """
    ids = [f"b{number}" for number in range(batches)]
    with RedisServer() as server:
        queue = Queue(server.url)
        found: dict[str, float] = {}

        async def timed(name: str, *calls: Awaitable[object]) -> None:
            before_s = await queue.cpu_s()
            for call in calls:
                await call
            found[name] = (await queue.cpu_s() - before_s) / keys / batches

        await queue.announce()
        async with queue.connect() as hs:
            warm = await hs.bulk.submit(action, [{"account": "a"}, {"account": "b"}])
            await hs.bulk.pause(warm.id)
            await hs.bulk.cancel(warm.id)  # Redis has loaded the scripts
            before = await queue.bytes()
            submits = (hs.bulk.submit(action, _items(id, keys), id=id) for id in ids)
            await timed("submit", *submits)
            found["memory"] = (await queue.bytes() - before) / keys / batches / 1_000
            await timed("status", *(hs.bulk.status(id) for id in ids))
            await timed("pause", *(hs.bulk.pause(id) for id in ids))
            for id in ids:
                await hs.bulk.resume(id)
            queue.gate.set()
            await timed("run", _run(hs, queue, ids))
        await queue.close()
    return found


def _items(id: str, keys: int) -> list[dict[str, object]]:
    return [{"account": f"account-{id}-{number}"} for number in range(keys)]


async def _run(hs: heatsink.Heatsink, queue: Queue, ids: list[str]) -> None:
    worker = hs.worker(queue.actions)
    running = asyncio.create_task(worker.run())
    for id in ids:
        await hs.bulk.wait(id)
    worker.stop()
    await running


async def run(bench: Bench, scale: Scale) -> None:
    single = scale(1_000, 10_000)
    for keys in (100, single):
        ours, free = defaultdict[str, Samples](list), defaultdict[str, Samples](list)
        for _ in range(scale(1, 2)):
            for action, samples in (("limited", ours), ("free", free)):
                for name, value in (await measured(action, keys)).items():
                    samples[name].append(value)
        for name in ("submit", "status", "pause", "run"):
            target = at_most(TARGET_MS[name]) if name in TARGET_MS and keys > 100 else None
            label = f"{keys:,} keys: CPU of {name}, per key"
            bench.add(label, "ms", ours[name], target, ("no limit", free[name]))
        target = at_most(TARGET_KB) if keys > 100 else None
        bench.add(
            f"{keys:,} keys: memory of Redis, per key",
            "KB",
            ours["memory"],
            target,
            ("no limit", free["memory"]),
        )
    keys, batches = single // 2, scale(4, 10)
    many = await measured("limited", keys, batches)
    for name in ("submit", "run"):
        target = at_most(TARGET_MS[name]) if name in TARGET_MS else None
        label = f"{batches} batches of {keys:,} keys: CPU of {name}, per key"
        bench.add(label, "ms", [many[name]], target)
    label = f"{batches} batches of {keys:,} keys: memory of Redis, per key"
    bench.add(label, "KB", [many["memory"]], at_most(TARGET_KB))
