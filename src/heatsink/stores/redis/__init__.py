"""Redis beside a data store. It carries heat, news, soft decisions and invalidations.

Redis never holds the only copy: the data store stays authoritative.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from heatsink.primitives.clock import Clock
from heatsink.registry.news import Polls
from heatsink.stores.stores import Stores

from .address import RedisKeys, parse
from .connection import Connection
from .heat import RedisBoard, RedisBus
from .news import SOFT_POLLS_S, RedisNews, RedisSoft, RedisWire

LEADING_S = 2.0  # the timeout of a leader's calls


def with_redis(stores: Stores, url: str, clock: Clock, rng: Random) -> Stores:
    """Return the same stores, but heat, news, soft decisions and invalidations go over Redis.

    A leader reads reports and publishes news on a connection of its own, with a longer timeout.
    While Redis sends news to 10,000 processes, it answers no other command for a while. An
    application should not wait for that: it can do without Redis. A leader can wait, since its
    lease and the closed time do not depend on these calls.
    """
    address = parse(url)
    patient = address.patient(max(LEADING_S, address.options.timeout_s))
    keys = RedisKeys(address.options.prefix)
    connection, leading = Connection(address, clock, rng), Connection(patient, clock, rng)

    async def close() -> None:
        await connection.close()
        await leading.close()
        await stores.close()

    news = RedisNews(connection, keys, clock, leading, rng)
    polls = Polls(clock, rng, SOFT_POLLS_S)
    return replace(
        stores,
        bus=RedisBus(connection, keys, leading=leading, servers=lambda: news.servers),
        board=RedisBoard(connection, keys),
        news=news,
        soft=RedisSoft(connection, keys, news, polls),
        wire=RedisWire(connection, address, keys, clock, rng, news),
        close=close,
    )
