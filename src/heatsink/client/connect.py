"""`connect`: make a client from a URL and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Unpack

from heatsink.errors import InvalidSetting, Misconfigured
from heatsink.primitives.chance import fresh_random
from heatsink.primitives.checks import check_kind, check_names, shown
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.hooks import Hook, Hooks
from heatsink.primitives.words import pip_install
from heatsink.stores.stores import Stores
from heatsink.stores.throttled import PartitionLimit, throttled

from .heatsink import Heatsink
from .queue import Queue, check_queue, connect_queue, default_queue
from .settings import ConnectOptions, Options, Settings
from .urls import open_stores

CONNECT_NAMES = tuple(ConnectOptions.__annotations__)


def connect(
    url: str,
    *,
    news: str | None = None,
    queue: str | None = None,
    limit: PartitionLimit | None = None,
    clock: Clock | None = None,
    rng: Random | None = None,
    hooks: Sequence[Hook] = (),
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> Heatsink:
    """Return a client of the store at `url`, to be used with `async with`.

    `options` are the fields of `Settings`, for this process. `settings` are settings of the whole
    deployment, such as `{"rules.shrink": False}`. The first process that opens a new store writes
    them to the registry, and every process follows them. `news` is the URL of a Redis
    (`redis://…`) that carries heat and news between processes. This Redis never holds data. `queue`
    is the URL of the Redis that holds bulk actions. For a SQLite store, the default is a private
    server beside the file. DynamoDB has no default. `limit` gives every partition key a throughput
    limit like DynamoDB's, to try out hot keys on a laptop. `hooks` observe the client, such as
    `heatsink.client.otel.Tracing()`. Raises `InvalidSetting` for a bad argument. Opening the client
    raises `Unavailable` or `Misconfigured` if the store cannot be used::

        async with heatsink.connect("sqlite:///chat.db") as hs:
            await hs.log.append("conv_1", b"hello")
    """
    clock, rng = clock or SystemClock(), rng or fresh_random()
    check_kind("rng", rng, Random)
    if not hasattr(clock, "monotonic_s"):
        raise InvalidSetting(f"clock must be like SystemClock(), not {shown(clock)}", field="clock")
    if settings is not None:
        check_kind("settings", settings, Mapping)
    if queue is not None:
        check_kind("queue", queue, str)
        if queue:
            check_queue(queue)
    if limit is not None:
        check_kind("limit", limit, PartitionLimit)
    chosen, observers = _settings({**options}), Hooks(hooks)
    stores = open_stores(url, clock)
    if news is not None:
        stores = _with_news(stores, news, clock, rng)
    if limit is not None:
        stores = throttled(stores, limit, clock)

    def make_queue() -> Queue:
        return connect_queue(queue or default_queue(url), chosen.bulk, clock, rng, hooks)

    return Heatsink(stores, chosen, clock, rng, make_queue, observers, founding=settings)


def _with_news(stores: Stores, url: str, clock: Clock, rng: Random) -> Stores:
    try:
        from heatsink.stores.redis import with_redis
    except ImportError:
        raise Misconfigured(
            f"news needs a Redis client: {pip_install('redis')}", field="news"
        ) from None
    return with_redis(stores, url, clock, rng)


def _settings(values: dict[str, Any]) -> Settings:
    check_names("connect()", values, CONNECT_NAMES)
    return Settings(**values)
