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


def with_redis(stores: Stores, url: str, clock: Clock, rng: Random) -> Stores:
    """Return the same stores, but heat, news, soft decisions and invalidations go over Redis."""
    address = parse(url)
    connection, keys = Connection(address, clock, rng), RedisKeys(address.options.prefix)

    async def close() -> None:
        await connection.close()
        await stores.close()

    news = RedisNews(connection, keys, clock)
    return replace(
        stores,
        bus=RedisBus(connection, keys),
        board=RedisBoard(connection, keys),
        news=news,
        soft=RedisSoft(connection, keys, news),
        wire=RedisWire(connection, address, keys, clock, rng, news),
        close=close,
    )
