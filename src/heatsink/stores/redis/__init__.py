"""Redis beside a data store. It carries heat, news, soft decisions and invalidations.

Redis never holds the only copy: the data store stays authoritative.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from heatsink.primitives.clock import Clock
from heatsink.stores.stores import Stores

from .address import RedisKeys, parse
from .connection import Connection
from .heat import RedisBoard, RedisBus
from .news import RedisNews, RedisSoft, RedisWire


def with_redis(stores: Stores, url: str, name: str, clock: Clock, rng: Random) -> Stores:
    """Return the same stores, but heat, news, soft decisions and invalidations go over Redis.

    `name` is the name of this process as a consumer of heat reports.
    """
    address = parse(url)
    connection, keys = Connection(address, clock, rng), RedisKeys(address.options.prefix)

    async def close() -> None:
        await connection.close()
        await stores.close()

    return replace(
        stores,
        bus=RedisBus(connection, keys, name, clock),
        board=RedisBoard(connection, keys),
        news=RedisNews(connection, keys),
        soft=RedisSoft(connection, keys),
        wire=RedisWire(connection, address, keys, clock, rng),
        close=close,
    )
