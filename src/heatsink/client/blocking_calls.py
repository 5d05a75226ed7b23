"""The calls of the client without asyncio. Written by `./dev generate`: do not edit.

Each class has the calls of its asynchronous twin, and they block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from heatsink.bulk.batch import Batch, Failure, Progress
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.store import QueuePlan
from heatsink.bulk.work.consumer import Consumer
from heatsink.client.heatsink import Heatsink
from heatsink.client.loop_thread import LoopThread
from heatsink.client.status import Status
from heatsink.coordinator.coordination import Hottest
from heatsink.coordinator.explainer import Explanation
from heatsink.coordinator.lease import Leadership
from heatsink.coordinator.workers import PartitionStatus
from heatsink.primitives.ids import IdScheme
from heatsink.primitives.subjects import AnyKey
from heatsink.reads.near_cache import ReadStats
from heatsink.registry.decisions import LogEntry
from heatsink.spread.counters import FLUSH_S, BufferedCounters, Counters
from heatsink.spread.log import Entry, Log, Order, Page, Receipt
from heatsink.spread.policy import BucketRules
from heatsink.timelines.modes import AuthorMode
from heatsink.timelines.timelines import HomePage, Post, Timelines


class BlockingLog:
    """`hs.log`: entries under a key, in the order of their ids.

    Every call raises `InvalidInput` for a bad argument and `Overloaded` if its retries went on
    until the deadline::

        receipt = hs.log.append("conv_1", b"hello")
        page = hs.log.page("conv_1", limit=20)
    """

    def __init__(self, loop: LoopThread, part: Log) -> None:
        self._loop = loop
        self._part = part

    @property
    def scheme(self) -> IdScheme:
        """The kind of ids that this deployment uses."""
        return self._part.scheme

    def append(
        self, key: AnyKey, body: bytes, *, id: Any = None, ttl: float | None = None
    ) -> Receipt:
        """Add an entry; a retry with the same id and body writes nothing new.

        `ttl` is in seconds. An error raised after the entry was sent carries the `id` to retry
        with. Raises `Conflict` if the id has another body, `Deleted` if its entry was deleted::

            receipt = hs.log.append("conv_1", b"hello")
            hs.log.append("conv_1", b"hello", id=receipt.id)  # the same append
        """
        return self._loop.call(self._part.append, key, body, id=id, ttl=ttl)

    def page(
        self,
        key: AnyKey,
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "newest",
        after: Any = None,
        before: Any = None,
        fresh_for: float | None = None,
        stale_for: float | None = None,
    ) -> Page:
        """Entries in the order of their ids, with a `cursor` for the next page.

        `after` and `before` are ids or datetimes with a time zone. With `fresh_for`, a page read
        in the last `fresh_for` seconds may be returned again, for keys that are read far more often
        than written; it always has what this client appended. Raises `InvalidCursor`::

            page = hs.log.page("conv_1", limit=20)
            older = hs.log.page("conv_1", limit=20, cursor=page.cursor)
        """
        return self._loop.call(
            self._part.page,
            key,
            limit=limit,
            cursor=cursor,
            order=order,
            after=after,
            before=before,
            fresh_for=fresh_for,
            stale_for=stale_for,
        )

    def get(self, key: AnyKey, id: Any) -> Entry | None:
        """One entry by its id; None if there is none."""
        return self._loop.call(self._part.get, key, id)

    def delete(self, key: AnyKey, id: Any) -> bool:
        """Delete an entry; True if it was there. A tombstone keeps late retries from restoring it.

        `hs.log.delete("conv_1", receipt.id)`
        """
        return self._loop.call(self._part.delete, key, id)

    def erase(self, key: AnyKey) -> int:
        """Remove every row of the key from every bucket it ever had, with tombstones and counters.

        Stop its writers first: a later append or retry writes again. Returns how many rows were
        removed, as a lower bound: rows removed by an attempt whose answer was lost are not counted.
        """
        return self._loop.call(self._part.erase, key)


class BlockingBufferedCounters:
    """Counters for high rates: adds are summed in this process and written together.

    A process keeps two totals per counter, one of what it added and one of what it subtracted.
    Both only grow, so "set if smaller" is idempotent: one write that may be retried carries
    thousands of adds. An add is acknowledged when a write that contains it is. Leaving the
    `with` flushes::

        with hs.counters.buffered() as counts:
            counts.add("views:42")
    """

    def __init__(self, loop: LoopThread, part: BufferedCounters) -> None:
        self._loop = loop
        self._part = part

    def __enter__(self) -> BlockingBufferedCounters:
        self._loop.call(self._part.__aenter__)
        return self

    def __exit__(self, *details: object) -> None:
        if not self._loop.is_forked:  # the parent process closes it
            self._loop.call(self._part.__aexit__, *details)

    def add_soon(self, key: str, amount: int = 1) -> Future[None]:
        """Add without waiting; the returned future completes when the add is durable.

        Raises `Closed` outside `with`, and `InvalidSetting` for an amount out of range.
        """
        return self._loop.start(self._part.add_soon, key, amount)

    def add(self, key: str, amount: int = 1) -> None:
        """Add, and return when the store has acknowledged a write that contains the add.

        After a `Retryable` error a later flush may still count the add, once.
        """
        return self._loop.call(self._part.add, key, amount)

    def flush(self) -> None:
        """Write all pending adds; raise the first error, and keep for later what failed.

        Writes that have started run to their end even if the caller is cancelled.
        """
        return self._loop.call(self._part.flush)


class BlockingCounters:
    """`hs.counters`: counters that many processes add to, exact even when adds are retried.

    Each counter spreads over the buckets of its key, as a log does::

        hs.counters.add("likes:42")
        likes = hs.counters.value("likes:42")
    """

    def __init__(self, loop: LoopThread, part: Counters) -> None:
        self._loop = loop
        self._part = part

    def add(self, key: AnyKey, amount: int = 1, *, token: Any = None) -> None:
        """Add `amount`, which may be negative, to a counter.

        `token` is an id of the deployment's kind: calls with the same token count once. Raises
        `Conflict` if the token was used with another amount, and `TokenExpired` if it is older
        than `token_ttl_s`::

            hs.counters.add("likes:42", token=request_id)
        """
        return self._loop.call(self._part.add, key, amount, token=token)

    def buffered(self, flush_s: float = FLUSH_S) -> BlockingBufferedCounters:
        """Counters for high rates, which write every `flush_s` seconds; see `BufferedCounters`."""
        return BlockingBufferedCounters(self._loop, self._loop.run(self._part.buffered, flush_s))

    def value(self, key: AnyKey) -> int:
        """The sum of all acknowledged adds at one moment during the call."""
        return self._loop.call(self._part.value, key)

    def fold(self, key: str) -> None:
        """Make reads cheaper: move the sums of closed buckets and ended processes to the bare key.

        Only what is older than `token_ttl_s` is folded, and tokens of that time are refused from
        then on. `value` calls this when it pays off, so applications need not.
        """
        return self._loop.call(self._part.fold, key)


class BlockingTimelines:
    """`hs.timelines`: who follows whom, and what they see."""

    def __init__(self, loop: LoopThread, part: Timelines) -> None:
        self._loop = loop
        self._part = part

    def follow(self, user: str, author: str) -> bool:
        """Whether it is new. The author's recent posts are in `user`'s home then."""
        return self._loop.call(self._part.follow, user, author)

    def follow_many(self, pairs: Iterable[tuple[str, str]]) -> int:
        """How many are new. `pairs` are (user, author), for example a graph to bring along.

        After an error some have followed; to begin again from the first pair is safe.
        """
        return self._loop.draw(self._part.follow_many, pairs)

    def unfollow(self, user: str, author: str) -> bool:
        """Whether it is new. What the author's posts have displaced comes back."""
        return self._loop.call(self._part.unfollow, user, author)

    def followers(self, author: str) -> int:
        """How many follow an author."""
        return self._loop.call(self._part.followers, author)

    def following(self, user: str) -> list[str]:
        """Whom a user follows, in the order of their names."""
        return self._loop.call(self._part.following, user)

    def authors(self) -> list[AuthorMode]:
        """Those about whom something was decided, the latest first; all others are pushed."""
        return self._loop.run(self._part.authors)

    def post(self, author: str, body: bytes, *, id: Any = None) -> Post:
        """Acknowledged when it is stored, and its push, if it is pushed, is on the queue.

        Posting again with the same id is the same post.
        """
        return self._loop.call(self._part.post, author, body, id=id)

    def delete(self, author: str, id: Any) -> bool:
        """Gone from every home: they hold names of posts, not copies. Others may keep it near."""
        return self._loop.call(self._part.delete, author, id)

    def pin(self, author: str, mode: str, *, reason: str) -> None:
        """Push or pull from now on, whatever the number of followers says."""
        return self._loop.call(self._part.pin, author, mode, reason=reason)

    def set_threshold(self, followers: int, *, reason: str) -> None:
        """Authors with so many followers are pulled from now on, in every process."""
        return self._loop.call(self._part.set_threshold, followers, reason=reason)

    def unpin(self, author: str) -> None:
        """Let the policy decide again."""
        return self._loop.call(self._part.unpin, author)

    def explain(self, author: str) -> str:
        """Why an author's posts are pushed or pulled, and what pushing them costs now."""
        return self._loop.call(self._part.explain, author)

    def home(self, user: str, *, limit: int = 50, cursor: str | None = None) -> HomePage:
        """The newest posts of everybody that `user` follows, in the order of their ids.

        Posts of several authors may share an id: they come in the order of their authors' names.
        """
        return self._loop.call(self._part.home, user, limit=limit, cursor=cursor)


class BlockingBulk:
    """`hs.bulk`: submit batches of items, read their progress, pause, cancel and retry them.

    Calls raise `NotFound` for an unknown batch, `Overloaded` if the queue does not answer::

        batch = hs.bulk.submit("tag", items, tenant="acme", rate="500/s")
        progress = hs.bulk.wait(batch.id)
    """

    def __init__(self, loop: LoopThread, part: Bulk) -> None:
        self._loop = loop
        self._part = part

    def open(self) -> None:
        """Connect now, so that errors show early; otherwise the first call connects."""
        return self._loop.call(self._part.open)

    def submit(
        self,
        action: str,
        items: Iterable[Any],
        *,
        tenant: str = "default",
        priority: int = 0,
        rate: str | None = None,
        id: str | None = None,
        on_done: str = "",
        spread: bool = True,
    ) -> Batch:
        """Submit a batch; once this returns, every item will run, whichever process crashes.

        `items` is any (async) iterable and is streamed. `rate`, such as `"500/s"`, limits the
        starts of this action for this tenant; `priority` orders a tenant's own batches. With an
        `id`, the call may be repeated. `on_done` is an action, or an allowed URL, that gets the
        outcome. `spread=False` keeps the batch in one partition. Raises `IdReused` if the id is
        taken by another batch, and `Overloaded` with the id to submit again.
        """
        return self._loop.draw(
            lambda drawn: self._part.submit(
                action,
                drawn,
                tenant=tenant,
                priority=priority,
                rate=rate,
                id=id,
                on_done=on_done,
                spread=spread,
            ),
            items,
        )

    def plan(self) -> QueuePlan:
        """How many partitions the queue has."""
        return self._loop.call(self._part.plan)

    def repartition(self, partitions: int) -> QueuePlan:
        """Change the number of partitions; queued items are drained where they are."""
        return self._loop.call(self._part.repartition, partitions)

    def status(self, id: str) -> Progress:
        """The progress of a batch; a final state is durable when it is returned.

        This also repairs: parts that missed a pause, resume or cancel get it again, and items that
        the queue's servers have lost are found.
        """
        return self._loop.call(self._part.status, id)

    def list(self, limit: int = 50, tenant: str = "") -> list[Batch]:
        """Batches, newest first; `tenant` selects one tenant's."""
        return self._loop.call(self._part.list, limit, tenant)

    def failures(self, id: str) -> Iterator[Failure]:
        """Iterate over every item that failed for good, with the reason."""
        return self._loop.iterate(self._part.failures(id))

    def wait(self, id: str, timeout_s: float | None = None) -> Progress:
        """Wait until the batch has ended. Raises `Overloaded` after `timeout_s` seconds."""
        return self._loop.call(self._part.wait, id, timeout_s)

    def cancel(self, id: str) -> None:
        """Cancel a batch: waiting items will not run, running ones may finish.

        This call, `pause` and `resume` raise `Conflict` if the batch's state does not allow it.
        """
        return self._loop.call(self._part.cancel, id)

    def pause(self, id: str) -> None:
        """Pause a batch: no more items start, running ones finish."""
        return self._loop.call(self._part.pause, id)

    def resume(self, id: str) -> None:
        """Resume a paused batch."""
        return self._loop.call(self._part.resume, id)

    def retry_failed(self, id: str) -> None:
        """Run the failed items again, with new attempts. Raises `Conflict` if none failed."""
        return self._loop.call(self._part.retry_failed, id)


class BlockingConsumer:
    """Runs items of the queue: owns partitions, and has workers in each of them.

    Any number of processes may run one::

        worker = hs.worker(actions, workers=16)
        worker.run()  # until worker.stop()
    """

    def __init__(self, loop: LoopThread, part: Consumer) -> None:
        self._loop = loop
        self._part = part

    @property
    def partitions(self) -> list[int]:
        """The partitions that this process owns now."""
        return self._part.partitions

    @property
    def lost_items(self) -> int:
        """Items that batches have lost, if this process checks the batches; otherwise 0."""
        return self._part.lost_items

    @property
    def workers(self) -> dict[int, int]:
        """The number of workers in each of its partitions now."""
        return self._part.workers

    def stop(self) -> None:
        """Let `run` finish the running items, give back the others, and return."""
        return self._loop.run(self._part.stop)


class BlockingCalls:
    """A client, made by `heatsink.connect`.

    Outside `with` every call raises `Closed`::

        with heatsink.connect_sync("sqlite:///chat.db") as hs:
            hs.log.append("conv_1", b"hello")
    """

    def __init__(self, loop: LoopThread, part: Heatsink) -> None:
        self._loop = loop
        self._part = part

    def page_stats(self) -> ReadStats:
        """Statistics of pages read with `fresh_for`; those of other reads are `reads.stats()`."""
        return self._loop.run(self._part.page_stats)

    def record(self, key: str, writes: int = 1, written_bytes: int = 0) -> None:
        """Count writes to a key that do not go through Heatsink, as part of its heat."""
        return self._loop.run(self._part.record, key, writes, written_bytes)

    def status(self) -> Status:
        """The state of this process, for health checks and metrics."""
        return self._loop.run(self._part.status)

    def leadership(self) -> Leadership:
        """The current leader, or how long there has been none."""
        return self._loop.call(self._part.leadership)

    def hottest(self, limit: int = 20) -> Hottest:
        """The hottest keys of all processes, with bounds on what went unreported."""
        return self._loop.call(self._part.hottest, limit)

    def decisions(self, limit: int = 50, before: int | None = None) -> list[LogEntry]:
        """Decisions with their reasons, newest first; `before` is a version, for the next page."""
        return self._loop.call(self._part.decisions, limit, before)

    def queue_partitions(self) -> list[PartitionStatus]:
        """The queue's partitions: load, target number of workers, and pins."""
        return self._loop.call(self._part.queue_partitions)

    def pin_workers(self, partition: int, workers: int | None, *, reason: str) -> None:
        """Give a queue partition a fixed number of workers; None removes the pin.

        Raises `NotFound` if there is no such partition.
        """
        return self._loop.call(self._part.pin_workers, partition, workers, reason=reason)

    def explain(self, key: AnyKey) -> Explanation:
        """A key's buckets, epochs and heat, the reason for them, and what a read costs."""
        return self._loop.call(self._part.explain, key)

    @property
    def rules(self) -> BucketRules:
        """The bucket rules of this process's settings."""
        return self._part.rules

    def pin(self, key: AnyKey, *, buckets: int, reason: str) -> None:
        """Give a key a fixed number of buckets until `unpin`, whatever its heat.

        `hs.pin("conv_1", buckets=8, reason="launch day")`
        """
        return self._loop.call(self._part.pin, key, buckets=buckets, reason=reason)

    def unpin(self, key: AnyKey, *, reason: str = "unpinned") -> None:
        """Remove a pin, so that the policy decides again."""
        return self._loop.call(self._part.unpin, key, reason=reason)
