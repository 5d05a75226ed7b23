"""`connect_queue`: bulk actions from a URL, for applications, workers and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from os import getpid
from pathlib import Path
from random import Random
from socket import gethostname
from typing import Any, TypeVar, Unpack
from urllib.parse import urlsplit
from weakref import WeakSet

from heatsink.bulk.actions import Action, Actions, Context, Once, no_store
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.plan import LEGACY
from heatsink.bulk.settings import BulkSettings, ConsumerSettings
from heatsink.bulk.store import QueueStores
from heatsink.bulk.work.consumer import OWN_AT_ONCE, Consumer
from heatsink.bulk.work.division import consumer_name
from heatsink.bulk.work.observed import observed
from heatsink.bulk.work.processes import in_processes
from heatsink.bulk.work.remote import Desk
from heatsink.errors import Conflict, InvalidSetting, Misconfigured
from heatsink.primitives.chance import fresh_random
from heatsink.primitives.checks import check_kind, check_names, shown
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.hooks import NO_HOOKS, Hook, Hooks
from heatsink.primitives.ids import COUNTER_BITS, TAIL_BITS, IdScheme
from heatsink.primitives.words import pip_install
from heatsink.spread.backoff import Backoff
from heatsink.spread.log import Log
from heatsink.stores.embedded import join
from heatsink.stores.memory.messages import MemoryHomes
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.timelines.store import HomeEntry, HomeStore
from heatsink.timelines.timelines import FAN_OUT, push_handler

from .settings import WorkerOptions
from .urls import check_memory, check_slashes

EXAMPLES = "redis://host:6379, embedded:///folder or memory://"
Result = TypeVar("Result")


class Queue:
    """A queue of bulk actions, made by `connect_queue`.

    `bulk` submits batches, `worker` runs them::

        async with connect_queue("redis://localhost:6379") as queue:
            await queue.worker(actions).run()
    """

    def __init__(
        self,
        stores: QueueStores,
        homes: HomeStore,
        settings: BulkSettings,
        clock: Clock,
        rng: Random,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self.bulk = Bulk(stores, settings, clock, rng, hooks)
        self._hooks = hooks
        self.stores = stores
        self.homes = homes
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._workers: WeakSet[Consumer] = WeakSet()

    def worker(
        self,
        actions: Actions,
        *,
        name: str = "",
        once: Once = no_store,
        desk: Desk | None = None,
        **settings: Unpack[WorkerOptions],
    ) -> Consumer:
        """Return a consumer that runs these actions.

        `settings` are the fields of `ConsumerSettings`. `once` is the function behind
        `context.once`. With a `desk`, remote workers run the items.
        """
        check_kind("actions", actions, Actions)
        chosen = _consumer_settings({"partitioned": self._settings.partitioned, **settings})
        mark = chosen.mark or f"{getpid()}:{self._rng.getrandbits(32):08x}"
        who = _named(name, mark)
        table = actions.and_also(Action(FAN_OUT, push_handler(self.homes), max_attempts=100))
        table = in_processes(table, chosen.handler_processes)
        if self._hooks.observes_calls:
            table = observed(table, self._hooks, self.bulk)
        parts = self.stores, self.bulk, table, chosen, who, self._clock, self._rng
        consumer = Consumer(*parts, once)
        self._workers.add(consumer)
        if desk is not None:
            consumer.hand_over_at(desk)
        return consumer

    async def free(self, mark: str, name: str = "") -> int:
        """Free what a worker process had when it died. Returns the number of places at limits.

        `mark` and `name` are the arguments of the process's call of `worker`. Its partitions, its
        places and the leases of its items are free at once, and not only when their leases end.
        """
        partitioned = self._settings.partitioned
        who = consumer_name(_named(name, mark), partitioned)
        partitions = range((await self.bulk.plan()).high_water) if partitioned else [LEGACY]
        return await free_consumer(self.stores, who, mark, partitions)

    def desk(self) -> Desk:
        """Return a desk at which remote workers get items of this queue."""
        return Desk(self.stores, self.bulk, self._clock, self._rng)

    async def __aenter__(self) -> Queue:
        try:
            await self.bulk.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the queue; running calls and workers end with `Closed`.

        Workers first give their partitions and items back, so that others need not wait for the
        ends of leases.
        """
        self.bulk.close()
        try:
            await asyncio.gather(*(worker.cut_off() for worker in list(self._workers)))
        finally:
            await self.stores.close()


def connect_queue(
    url: str,
    settings: BulkSettings | None = None,
    clock: Clock | None = None,
    rng: Random | None = None,
    hooks: Sequence[Hook] = (),
) -> Queue:
    """Return a queue of bulk actions at `url`, without a data store, to be used with `async with`.

    Raises `InvalidSetting` for a bad URL, and `Misconfigured` if no Redis client is installed.
    Opening the queue raises `Unavailable` if the server does not answer::

        async with connect_queue("redis://localhost:6379") as queue:
            batch = await queue.bulk.submit("tag", items)
    """
    settings, clock = settings or BulkSettings(), clock or SystemClock()
    rng = rng or fresh_random()
    stores, homes = _open_stores(url, settings, clock, rng)
    return Queue(stores, homes, settings, clock, rng, Hooks(hooks))


def check_queue(url: str) -> None:
    """Raise `InvalidSetting` if no queue can be at `url`. This opens and makes nothing."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        check_memory("queue", url)
        if url != "memory://":
            raise InvalidSetting("queue must be just memory://, without a path", field="queue")
    elif scheme == "embedded":
        embedded_folder(url)
    else:
        with suppress(ImportError):  # the first call that needs the queue says how to install it
            from heatsink.stores.redis.address import parse

            parse(url, "queue")


def default_queue(store_url: str) -> str:
    """Return the URL of the queue that a client uses if the caller sets none.

    This queue is as durable and as private as the data store. Raises `InvalidSetting` if the store
    has no such queue.
    """
    parts = urlsplit(store_url)
    if parts.scheme == "memory":
        return "memory://"
    if parts.scheme == "sqlite":
        return f"embedded:///{parts.path[1:]}-queue"
    raise InvalidSetting(
        "queue must name a Redis for bulk actions, like redis://host:6379", field="queue"
    )


def _open_stores(
    url: str, settings: BulkSettings, clock: Clock, rng: Random
) -> tuple[QueueStores, HomeStore]:
    if not isinstance(url, str):
        raise InvalidSetting(
            f"queue must be a URL like {EXAMPLES}, not {shown(url)}", field="queue"
        )
    scheme = url.partition(":")[0]
    if not scheme.startswith(("embedded", "memory", "redis")):  # the URL may have a password
        raise InvalidSetting(f"queue must be a URL like {EXAMPLES}", field="queue")
    if scheme == "memory":
        check_queue(url)
        return MemoryQueueServer(clock).stores(), MemoryHomes(clock)
    try:
        from heatsink.stores.redis.homes import RedisHomes
        from heatsink.stores.redis.queue import open_queue
    except ImportError:
        extra = "local" if scheme == "embedded" else "redis"  # that one brings its server too
        raise Misconfigured(
            f"queue needs a Redis client: {pip_install(extra)}", field="queue"
        ) from None
    membership = None
    if scheme == "embedded":
        membership = join(embedded_folder(url))
        url = membership.url
    stores = open_queue(url, clock, rng, settings)
    homes = RedisHomes(url, settings.stage, clock, rng)

    async def close() -> None:
        await homes.close()
        await stores.close()
        if membership is not None:
            membership.leave()

    return replace(stores, close=close), homes


def embedded_folder(url: str) -> Path:
    """Return the folder of a URL `embedded:///folder`. Raises `InvalidSetting` for other forms."""
    check_slashes("queue", url)
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise InvalidSetting("queue must be embedded:///folder, without ? and #", field="queue")
    if parts.path.strip("/") == "":
        raise InvalidSetting("queue must name a folder, as in embedded:///queue", field="queue")
    return Path(parts.path[1:])


def _named(name: str, mark: str) -> str:
    """Return the name of a worker process in the queue."""
    return f"{name or gethostname()}:{mark}"


def _consumer_settings(values: dict[str, Any]) -> ConsumerSettings:
    check_names("worker()", values, ConsumerSettings.__struct_fields__)
    return ConsumerSettings(**values)


def once_in(log: Log, ids: IdScheme) -> Once:
    """Return the function behind `context.once`, which appends rows to `log`.

    A row's id is derived from the item, so every attempt at the item writes the same row.
    """

    async def once(context: Context, key: str, body: bytes, before: int) -> None:
        text = f"{context.idempotency_key}\0{key}\0{before}".encode()
        number = int.from_bytes(blake2b(text, digest_size=16, person=b"once").digest(), "big")
        counter, tail = number % (1 << COUNTER_BITS), (number >> 64) % (1 << TAIL_BITS)
        raw = ids.from_parts(context.submitted_ms, counter, tail)
        try:
            await log.append(key, body, id=ids.value(raw))
        except Conflict:
            return  # an earlier attempt appended another body, which stays

    return once


class PatientHomes:
    """A store of home timelines that retries calls while its Redis does not answer.

    Every change may be repeated safely.
    """

    def __init__(self, homes: HomeStore, backoff: Backoff) -> None:
        self._homes = homes
        self._backoff = backoff

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        await self._call(lambda: self._homes.push(users, entry))

    async def page(self, user: str, below: HomeEntry | None, limit: int) -> list[HomeEntry] | None:
        return await self._call(lambda: self._homes.page(user, below, limit))

    async def fill(self, users: Sequence[str], entries: Sequence[HomeEntry], built: bool) -> None:
        await self._call(lambda: self._homes.fill(users, entries, built))

    async def drop(self, user: str, author: str) -> None:
        await self._call(lambda: self._homes.drop(user, author))

    async def looked_at_s(self, users: Sequence[str]) -> list[float | None]:
        """Return the seconds since each home was last read; None for a missing home.

        This call is not retried. Timelines use the result only for an estimate, and a post must not
        wait for the estimate.
        """
        return await self._homes.looked_at_s(users)

    async def _call(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        return await self._backoff.call(attempt, "", self._backoff.deadline_s())


async def free_consumer(
    stores: QueueStores, name: str, mark: str, partitions: Sequence[int]
) -> int:
    """Free what a dead consumer had: its partitions, its places at limits, and leases of items.

    `mark` is the `ConsumerSettings.mark` of the consumer. Returns the number of places.
    """
    await stores.fleet.leave(name)
    for first in range(0, len(partitions), OWN_AT_ONCE):
        some = partitions[first : first + OWN_AT_ONCE]
        await asyncio.gather(*(stores.fleet.disown(each, name, mark) for each in some))
    declared = await stores.places.declared()
    return await stores.places.free(f"{name}/", sorted(declared.limits))
