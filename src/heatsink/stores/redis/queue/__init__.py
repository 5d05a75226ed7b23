"""A queue in Redis: partitions, batches, limits and the fleet; durable before it says yes."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from heatsink.bulk.slot_time import Witness
from heatsink.bulk.store import QueueStores
from heatsink.checks import check_number
from heatsink.clock import Clock
from heatsink.stores.redis.keys import Keys
from heatsink.stores.redis.soft import RedisSoft

from .batches import RedisBatches
from .bell import RedisBell
from .durability import Durability, RedisBarrier
from .fleet import RedisFleet
from .health import Doctor
from .keys import STAGE, QueueKeys
from .limits import RedisLimits
from .places import Places
from .queue import RedisQueue
from .scripts import Now, SlotClock, server_time

KEEP_S = 7 * 24 * 3600.0

__all__ = ["KEEP_S", "open_queue"]


def open_queue(
    url: str,
    clock: Clock,
    rng: Random,
    *,
    stage: str = STAGE,
    durability: Durability = "fsync",
    places: Mapping[int, str] | None = None,
    keep_s: float = KEEP_S,
    replicas: int | None = None,
    now_ms: Now = server_time,
) -> QueueStores:
    """The queue at `url`. `places` puts partitions on other Redises: {3: "redis://other"}.

    Ended parts are kept for `keep_s`. `replicas` have to acknowledge what is accepted. `now_ms` is
    for tests: the clock of the server.
    """
    keys, homes = QueueKeys(stage), Places(url, clock, rng, places)
    keep_ms = int(check_number("keep_s", keep_s, 0) * 1000)
    barrier = RedisBarrier(homes, keys, clock, durability, replicas)
    time = SlotClock(Witness(clock), now_ms)
    queue = RedisQueue(homes, keys, keep_ms, time)
    bell = RedisBell(homes.addresses, keys.bell, clock, rng)

    async def close() -> None:
        await bell.close()
        await barrier.close()
        await homes.close()

    return QueueStores(
        queue=queue,
        batches=RedisBatches(homes.home, keys),
        limits=RedisLimits(homes.home, keys, time),
        fleet=RedisFleet(homes.home, keys, queue, time),
        bell=bell,
        soft=RedisSoft(homes.home, Keys(keys.soft)),
        barrier=barrier,
        health=Doctor(homes, clock).examine,
        open=barrier.verify,
        close=close,
    )
