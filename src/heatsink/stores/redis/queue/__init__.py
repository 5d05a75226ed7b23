"""The queue in Redis: partitions, batches, rate limits, the fleet, and durability."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from heatsink.bulk.batch import KEEP_MS
from heatsink.bulk.plan import bare, founding
from heatsink.bulk.reconcile import routed
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import QueueStores
from heatsink.primitives.clock import Clock
from heatsink.primitives.slot_time import SlotWitness
from heatsink.stores.redis.address import RedisKeys
from heatsink.stores.redis.news import RedisSoft

from .durability import Doctor, RedisBarrier
from .homes import RedisBatches, RedisBell, RedisFleet, RedisLimits
from .keys import QueueKeys, QueuePlaces, place_address
from .places import RedisPlaces, own_name
from .queue import RedisMoves, RedisQueue
from .scripts import Now, SlotClock, server_time
from .singles import RedisSingles

DEFAULTS = BulkSettings()

__all__ = ["open_queue"]


def open_queue(
    url: str,
    clock: Clock,
    rng: Random,
    settings: BulkSettings = DEFAULTS,
    now_ms: Now = server_time,
    server: Callable[[], str] = own_name,
) -> QueueStores:
    """Open the queue at `url`, with the stage, places and durability in `settings`.

    In tests, `now_ms` replaces the server's clock, and `server` its name.
    """
    keys = QueueKeys(settings.stage)
    homes = QueuePlaces(url, clock, rng)
    home = bare(url)
    for partition, place in settings.places.items():
        place_address(place, partition)
    barrier = RedisBarrier(homes, keys, clock, settings.durability, settings.replicas)
    time = SlotClock(SlotWitness(clock), now_ms)
    queue = RedisQueue(homes, keys, KEEP_MS, time)
    bell = RedisBell(lambda: homes.addresses, keys.bell, clock, rng)

    def check_place(place: str) -> None:
        place_address(place)

    async def close() -> None:
        await bell.close()
        await barrier.close()
        await homes.close()

    stores = QueueStores(
        queue=queue,
        singles=RedisSingles(homes, keys, queue, barrier),
        losses=queue,
        batches=RedisBatches(homes.home, keys),
        limits=RedisLimits(homes.home, keys, time),
        places=RedisPlaces(homes.home, keys, barrier, time, clock, server),
        fleet=RedisFleet(homes.home, keys, queue, time),
        bell=bell,
        moves=RedisMoves(queue),
        soft=RedisSoft(homes.home, RedisKeys(keys.soft)),
        barrier=barrier,
        health=Doctor(homes, clock).examine,
        home=home,
        check_place=check_place,
        open=barrier.verify,
        close=close,
    )
    return routed(stores, founding(settings, home))
