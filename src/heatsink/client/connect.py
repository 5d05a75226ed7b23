"""`connect`: make a client from a URL and settings."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from socket import gethostname
from typing import Any, Unpack

from heatsink.errors import InvalidSetting, Misconfigured
from heatsink.primitives.chance import fresh_random
from heatsink.primitives.checks import check_kind
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.hooks import Hook, Hooks
from heatsink.stores.stores import Stores
from heatsink.stores.throttled import PartitionLimit, throttled

from .heatsink import Heatsink
from .queue import Queue, connect_queue, default_queue
from .settings import Options, Settings
from .urls import open_stores


def connect(
    url: str,
    *,
    news: str | None = None,
    queue: str | None = None,
    limit: PartitionLimit | None = None,
    clock: Clock | None = None,
    rng: Random | None = None,
    hooks: Sequence[Hook] = (),
    **settings: Unpack[Options],
) -> Heatsink:
    """A client of the store at `url`, to be used with `async with`.

    `settings` are the fields of `Settings`. `news` is the URL of a Redis (`redis://…`) that carries
    heat and news between processes; it never holds data. `queue` is the URL of the Redis that holds
    bulk actions; by default that is a private server beside the store. `limit` gives every
    partition key a limit as DynamoDB's, to try things out on a laptop. `hooks` observe the client,
    such as `heatsink.client.otel.Tracing()`. Raises `InvalidSetting` for a bad argument; opening
    the client raises `Unavailable` or `Misconfigured` if the store cannot be used::

        async with heatsink.connect("sqlite:///chat.db") as hs:
            await hs.log.append("conv_1", b"hello")
    """
    clock, rng = clock or SystemClock(), rng or fresh_random()
    check_kind("rng", rng, Random)
    if limit is not None:
        check_kind("limit", limit, PartitionLimit)
    chosen, observers = _settings({**settings}), Hooks(hooks)
    stores = open_stores(url, clock)
    if news is not None:
        name = f"{chosen.name or gethostname()}:{rng.getrandbits(32):08x}"
        stores = _with_news(stores, news, name, clock, rng)
    if limit is not None:
        stores = throttled(stores, limit, clock)

    def make_queue() -> Queue:
        return connect_queue(queue or default_queue(url), chosen.bulk, clock, rng, hooks)

    return Heatsink(stores, chosen, clock, rng, make_queue, observers)


def _with_news(stores: Stores, url: str, name: str, clock: Clock, rng: Random) -> Stores:
    try:
        from heatsink.stores.redis import with_redis
    except ImportError:
        raise Misconfigured(
            "news needs a Redis client: pip install 'heatsink[redis]'", field="news"
        ) from None
    return with_redis(stores, url, name, clock, rng)


def _settings(values: dict[str, Any]) -> Settings:
    known = Settings.__struct_fields__
    for name in values:
        if name not in known:
            raise InvalidSetting(f"connect() has no setting {name!r}: it takes {', '.join(known)}")
    return Settings(**values)
