"""The calls of the client without asyncio. Written by `./dev generate`: do not edit.

Each class has the calls of its asynchronous twin, and they block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Unpack

from heatsink.bulk.batch import Batch, Failure, Progress, Result
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.limits import LimitUse
from heatsink.bulk.moving import MoveProgress
from heatsink.bulk.plan import PartitionPlace, QueuePlan
from heatsink.bulk.schedules import ScheduleOptions, Schedules, ScheduleStatus
from heatsink.bulk.submit import BatchOptions
from heatsink.bulk.work.consumer import Consumer
from heatsink.bulk.work.remote import Desk
from heatsink.client.deployment import DeploymentSettings, SettingInForce
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

    Every call raises `InvalidInput` for a bad argument, and `Overloaded` if all retries fail until
    the deadline::

        receipt = hs.log.append("conv_1", b"hello")
        page = hs.log.page("conv_1", limit=20)
    """

    def __init__(self, loop: LoopThread, part: Log) -> None:
        self._loop = loop
        self._part = part

    @property
    def scheme(self) -> IdScheme:
        """The kind of ids that this deployment uses: `hs.log.scheme.time_ms(receipt.raw)`."""
        return self._part.scheme

    def append(
        self, key: AnyKey, body: bytes, *, id: Any = None, ttl: float | None = None
    ) -> Receipt:
        """Add an entry; a retry with the same id and body writes nothing new.

        `ttl` is in seconds. An error raised after the entry was sent carries the `id` to retry
        with. Raises `Conflict` if the id was used with another body, and `Deleted` if the entry
        with this id was deleted::

            receipt = hs.log.append("conv_1", b"hello")
            hs.log.append("conv_1", b"hello", id=receipt.id)  # the same append
        """
        return self._loop.call(self._part.append, key, body, id=id, ttl=ttl)

    def id_for(self, key: AnyKey, retry_key: str) -> Any:
        """Return the id for an append that the caller names by a text, such as an order number.

        Every call with the same key and text returns the same id, in every process, for at least a
        day. So a caller that cannot store an id can still retry an append: the same text gives the
        same id. The call writes one small row. Raises `InvalidSetting` for a bad text. Raises
        `InvalidId` in a deployment with Snowflake ids, since only callers make such ids::

            id = hs.log.id_for("conv_1", "order-17")
            hs.log.append("conv_1", b"hello", id=id)
        """
        return self._loop.call(self._part.id_for, key, retry_key)

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
        """Return a page of entries in the order of their ids, with a `cursor` for the next page.

        `after` and `before` are ids or datetimes with a time zone. With `fresh_for`, the result may
        be a page that was read in the last `fresh_for` seconds. Use `fresh_for` for keys that are
        read far more often than written. Even such a page contains everything that this client has
        appended. Raises `InvalidCursor`::

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
        """Return the entry with this id, or None. Raises `InvalidId` for a malformed id.

        Example::

            entry = hs.log.get("conv_1", receipt.id)
            print(entry.body if entry else "not found")
        """
        return self._loop.call(self._part.get, key, id)

    def delete(self, key: AnyKey, id: Any) -> bool:
        """Delete an entry. Returns whether the entry existed.

        A tombstone stays, so that a late retry of the append does not bring the entry back. Raises
        `InvalidId` for a malformed id or one from the future::

            hs.log.delete("conv_1", receipt.id)  # True
            hs.log.delete("conv_1", receipt.id)  # False
        """
        return self._loop.call(self._part.delete, key, id)

    def erase(self, key: AnyKey) -> int:
        """Remove every row, tombstone and counter of the key, from every bucket it ever had.

        Stop the key's writers first: a later append or retry writes a new row. Returns the number
        of removed rows. This number is a lower bound: if the answer to an attempt was lost, the
        rows that this attempt removed are not counted. The more rows there are, the longer the call
        takes. `deadline_s` limits the retries for each bucket::

            removed = hs.log.erase("conv_1")
        """
        return self._loop.call(self._part.erase, key)


class BlockingBufferedCounters:
    """Counters for high rates: adds are summed in this process and written together.

    A process keeps two totals per counter: the sum that it added and the sum that it subtracted.
    Both totals only grow. So a process can write them with "set if larger", and can repeat the
    write without counting an add twice. One such write carries thousands of adds. An add is
    acknowledged when a write that contains it is acknowledged. Leaving the `with` block
    flushes::

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
        """Add without waiting. The returned future completes when the add is durable.

        Raises `Closed` outside `with`, and `InvalidSetting` for an amount out of range.

        Example::

            counts.add_soon("views:42")  # written with the next flush
        """
        return self._loop.start(self._part.add_soon, key, amount)

    def add(self, key: str, amount: int = 1) -> None:
        """Add, and return when the store has acknowledged a write that contains the add.

        After a `Retryable` error, a later flush may write the add. The add then counts once. Raises
        `Closed` outside `with`.

        Example::

            counts.add("views:42", 5)
        """
        return self._loop.call(self._part.add, key, amount)

    def flush(self) -> None:
        """Write all pending adds now. Raises the first error; failed adds stay pending.

        A write that has started runs to its end even if the caller is cancelled. Without this call,
        adds are flushed every `flush_s` seconds: `counts.flush()`
        """
        return self._loop.call(self._part.flush)


class BlockingCounters:
    """`hs.counters`: counters that many processes add to, exact even when adds are retried.

    Each counter is spread over the buckets of its key, like a log. Every call raises `InvalidInput`
    for a bad argument, and `Overloaded` if all retries fail until the deadline::

        hs.counters.add("likes:42")
        likes = hs.counters.value("likes:42")
    """

    def __init__(self, loop: LoopThread, part: Counters) -> None:
        self._loop = loop
        self._part = part

    def add(self, key: AnyKey, amount: int = 1, *, token: Any = None) -> None:
        """Add `amount`, which may be negative, to a counter.

        `token` is an id of the deployment's kind. Of all calls with the same token, only one
        counts. Raises `Conflict` if the token was used with another amount, and `TokenExpired` if
        the token is older than `token_ttl_s`::

            hs.counters.add("likes:42", token=request_id)
        """
        return self._loop.call(self._part.add, key, amount, token=token)

    def buffered(self, flush_s: float = FLUSH_S) -> BlockingBufferedCounters:
        """Return `BufferedCounters`: for high rates, they write only every `flush_s` seconds.

        Example::

            with hs.counters.buffered(flush_s=0.1) as counts:
                counts.add("views:42")
        """
        return BlockingBufferedCounters(self._loop, self._loop.run(self._part.buffered, flush_s))

    def value(self, key: AnyKey) -> int:
        """Return the counter's value: the sum of all acknowledged adds, or 0 for an unused key.

        The value is exact for one moment during the call. Example::

            hs.counters.add("likes:42", 3)
            likes = hs.counters.value("likes:42")  # 3
        """
        return self._loop.call(self._part.value, key)

    def fold(self, key: str) -> None:
        """Make reads cheaper: move the sums of all buckets and of ended processes to the bare key.

        The fold deletes tokens older than `token_ttl_s`. From then on, the store refuses adds with
        such tokens. Applications need not call `fold`, since `value` calls it when a fold pays
        off::

            hs.counters.fold("likes:42")
        """
        return self._loop.call(self._part.fold, key)


class BlockingTimelines:
    """`hs.timelines`: follows, posts and home timelines.

    Users and authors are text of up to 256 characters. Every call raises `InvalidInput` for a bad
    argument, and `Overloaded` if all retries fail until the deadline::

        hs.timelines.follow("alice", "bob")
        post = hs.timelines.post("bob", b"hello")
    """

    def __init__(self, loop: LoopThread, part: Timelines) -> None:
        self._loop = loop
        self._part = part

    def follow(self, user: str, author: str) -> bool:
        """Let a user follow an author. Returns False if the user already follows the author.

        After the call, the author's last 100 pushed posts are in the user's home. After an error,
        repeat the call or call `unfollow`. Either call completes the unfinished change::

            is_new = hs.timelines.follow("alice", "bob")
        """
        return self._loop.call(self._part.follow, user, author)

    def follow_many(self, pairs: Iterable[tuple[str, str]]) -> int:
        """Import many follows. Returns how many of them are new.

        `pairs` is any (async) iterable of (user, author). After an error, some pairs are stored. It
        is safe to repeat the call with all pairs::

            new = hs.timelines.follow_many([("alice", "bob"), ("carol", "bob")])
        """
        return self._loop.draw(self._part.follow_many, pairs)

    def unfollow(self, user: str, author: str) -> bool:
        """End a follow. Returns whether the user followed the author before.

        The author's posts leave the user's home. Older posts of other authors take their places::

            was_following = hs.timelines.unfollow("alice", "bob")
        """
        return self._loop.call(self._part.unfollow, user, author)

    def followers(self, author: str) -> int:
        """Return the number of followers of an author: `hs.timelines.followers("bob")`"""
        return self._loop.call(self._part.followers, author)

    def following(self, user: str) -> list[str]:
        """Return a user's authors, sorted: `hs.timelines.following("alice")`"""
        return self._loop.call(self._part.following, user)

    def authors(self) -> list[AuthorMode]:
        """Return the authors for whom a mode was ever decided, the latest change first.

        All other authors are pushed. Example::

            pulled = [each.author for each in hs.timelines.authors() if each.mode == "pull"]
        """
        return self._loop.run(self._part.authors)

    def post(self, author: str, body: bytes, *, id: Any = None) -> Post:
        """Store a post. If the author is pushed, also queue the push to all followers.

        A call with an `id` may be repeated: all such calls store one post. In the result, `batch`
        is the id of the batch that pushes the post. Raises `Conflict` if the id was used with
        another body, and `Deleted` if the post with this id was deleted::

            post = hs.timelines.post("bob", b"hello")
            hs.bulk.wait(post.batch)  # only to see it arrive
        """
        return self._loop.call(self._part.post, author, body, id=id)

    def delete(self, author: str, id: Any) -> bool:
        """Delete a post from every home. Returns whether the post existed.

        Homes hold only references to posts, so no home is rewritten. Other processes may show the
        post until their cached copy expires. Raises `InvalidId` for a malformed id::

            hs.timelines.delete("bob", post.id)
        """
        return self._loop.call(self._part.delete, author, id)

    def pin(self, author: str, mode: str, *, reason: str) -> None:
        """Fix an author's mode, "push" or "pull", from now on until `unpin`.

        Raises `InvalidSetting` for another mode::

            hs.timelines.pin("bob", "pull", reason="on television tonight")
        """
        return self._loop.call(self._part.pin, author, mode, reason=reason)

    def set_threshold(self, followers: int, *, reason: str) -> None:
        """Set, for all processes, the number of followers from which authors are pulled.

        Example::

            hs.timelines.set_threshold(50_000, reason="larger homes")
        """
        return self._loop.call(self._part.set_threshold, followers, reason=reason)

    def unpin(self, author: str) -> None:
        """Let Heatsink choose an author's mode again: `hs.timelines.unpin("bob")`"""
        return self._loop.call(self._part.unpin, author)

    def explain(self, author: str) -> str:
        """Say in words why an author is pushed or pulled, and what pushing would cost now.

        Example::

            print(hs.timelines.explain("bob"))
        """
        return self._loop.call(self._part.explain, author)

    def home(self, user: str, *, limit: int = 50, cursor: str | None = None) -> HomePage:
        """Return the newest posts of all authors that `user` follows, in the order of their ids.

        Posts with the same id are ordered by author. Raises `InvalidCursor` if `cursor` is not from
        an earlier page::

            page = hs.timelines.home("alice", limit=20)
            older = hs.timelines.home("alice", limit=20, cursor=page.cursor)
        """
        return self._loop.call(self._part.home, user, limit=limit, cursor=cursor)


class BlockingBulk:
    """`hs.bulk`: submit batches of items, read their progress, pause, cancel and retry them.

    Calls raise `InvalidInput` for a bad argument, `NotFound` for an unknown batch, `Overloaded` if
    the queue does not answer, and `Closed` after the client is closed::

        batch = hs.bulk.submit("tag", items, tenant="acme", rate="500/s")
        progress = hs.bulk.wait(batch.id)
    """

    def __init__(self, loop: LoopThread, part: Bulk) -> None:
        self._loop = loop
        self._part = part

    def open(self) -> None:
        """Connect now, to see errors early: `hs.bulk.open()`

        Raises `Misconfigured` if the queue's server is not durable enough.
        """
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
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Submit a batch. After the call returns, every item will run, even if processes crash.

        `items` is any (async) iterable of JSON values or bytes, and is streamed. `rate`, such as
        `"500/s"`, limits how fast items of this action start for this tenant; `priority` orders a
        tenant's own batches. With an `id`, the call may be repeated. `on_done` is an action, or an
        allowed URL, that gets the outcome. `spread=False` keeps the batch in one partition. No item
        starts before the datetime `at`, or before `delay` (in seconds) has passed. `results="keep"`
        keeps what the handler returns. When the batch has ended, the action `then` gets the items
        that are done, and `otherwise` those that failed. Raises `InvalidBody` for any other item,
        `IdReused` if another batch has the id, and `Overloaded`, with the id to submit again::

            batch = hs.bulk.submit("tag", items, tenant="acme", id="import-7")
            hs.bulk.submit("tag", items, tenant="acme", id="import-7")  # the same batch
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
                **options,
            ),
            items,
        )

    def enqueue(
        self,
        action: str,
        item: Any,
        *,
        tenant: str = "default",
        priority: int = 0,
        id: str | None = None,
        on_done: str = "",
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Submit a batch of one item, with the options and errors of `submit(action, [item])`.

        This costs one call to the queue. Other submissions of the same moment share the call::

            hs.bulk.enqueue("mail", {"to": "ada@example.org"}, delay=60)
        """
        return self._loop.call(
            self._part.enqueue,
            action,
            item,
            tenant=tenant,
            priority=priority,
            id=id,
            on_done=on_done,
            **options,
        )

    def plan(self) -> QueuePlan:
        """Return the queue's plan. `(hs.bulk.plan()).partitions` is the number of partitions.

        `places` lists the partitions that are not at the queue's home. Its URLs may contain
        passwords: do not print them. Raises `Misconfigured` if this process was started with other
        settings.
        """
        return self._loop.call(self._part.plan)

    def repartition(self, partitions: int) -> QueuePlan:
        """Change the number of partitions, for all processes; queued items stay where they are.

        `hs.bulk.repartition(32)` returns the new plan.
        """
        return self._loop.call(self._part.repartition, partitions)

    def places(self) -> list[PartitionPlace]:
        """Return which Redis holds each partition. The URLs contain no user names and no passwords.

        Example::

            for each in hs.bulk.places():
                print(each.number, each.place)
        """
        return self._loop.call(self._part.places)

    def place(self, partition: int, url: str) -> PartitionPlace:
        """Move a partition to the Redis at `url`, or to `"home"`, while everything runs.

        New parts go to other partitions until the move is done. The call waits until the
        partition's parts have ended. The call may be repeated, also after a crash. To cancel a
        move, call `place` with the Redis that the partition is leaving. Raises `Conflict` if the
        Redis holds parts that the move would lose, and `NotFound` if there is no such partition::

            hs.bulk.place(3, "redis://other:6379")
        """
        return self._loop.call(self._part.place, partition, url)

    def moving(self, partition: int, url: str) -> Iterator[MoveProgress]:
        """Move a partition as `place` does, and yield the progress of the move.

        Example::

            for progress in hs.bulk.moving(3, "redis://other:6379"):
                print(progress.step, progress.items)
        """
        return self._loop.iterate(self._part.moving(partition, url))

    def status(self, id: str) -> Progress:
        """Return the progress of a batch. A final state is also durable.

        The call also repairs the batch. If parts have missed a pause, resume or cancel, it sends
        the command again. And it finds items that the queue's servers have lost::

            progress = hs.bulk.status(batch.id)
            print(progress.done, "of", progress.accepted)
        """
        return self._loop.call(self._part.status, id)

    def list(self, limit: int = 50, tenant: str = "") -> list[Batch]:
        """Return up to `limit` batches, newest first. `tenant` selects batches of one tenant.

        `hs.bulk.list(limit=10, tenant="acme")` returns the records of ten batches.
        """
        return self._loop.call(self._part.list, limit, tenant)

    def limits(self, keys: int = 10) -> Sequence[LimitUse]:
        """Return the limits of all workers, each with the `keys` keys that have the longest lines.

        `(hs.bulk.limits())[0].uses` says how many items run and wait for each key.
        """
        return self._loop.call(self._part.limits, keys)

    def failures(self, id: str) -> Iterator[Failure]:
        """Iterate over all items that failed permanently, with the reason.

        Example::

            for failure in hs.bulk.failures(batch.id):
                print(failure.index, failure.item, failure.reason)
        """
        return self._loop.iterate(self._part.failures(id))

    def results(self, id: str, after: int = -1) -> Iterator[Result]:
        """Iterate over the results of the items that are done, in the order of the items.

        `after` is the index of the last result that the caller has: the iteration continues after
        it. While the batch runs, only finished items have results: wait for its end first. Raises
        `Conflict` if the batch was submitted without `results="keep"`::

            for result in hs.bulk.results(batch.id):
                print(result.index, result.value)
        """
        return self._loop.iterate(self._part.results(id, after))

    def wait(self, id: str, timeout_s: float | None = None) -> Progress:
        """Wait until the batch ends; return its progress. Raises `Overloaded` after `timeout_s`.

        `(hs.bulk.wait(batch.id, timeout_s=600)).state` is the final state.
        """
        return self._loop.call(self._part.wait, id, timeout_s)

    def cancel(self, id: str) -> None:
        """Cancel a batch: waiting items will not run, running items may finish.

        Raises `Conflict` if the batch has ended or is still being submitted::

            hs.bulk.cancel(batch.id)
            progress = hs.bulk.wait(batch.id)
        """
        return self._loop.call(self._part.cancel, id)

    def pause(self, id: str) -> None:
        """Pause a batch: no more items start, running items finish.

        Raises `Conflict` if the batch is neither running nor paused::

            hs.bulk.pause(batch.id)
        """
        return self._loop.call(self._part.pause, id)

    def resume(self, id: str) -> None:
        """Resume a paused batch.

        Raises `Conflict` if the batch is neither running nor paused::

            hs.bulk.resume(batch.id)
        """
        return self._loop.call(self._part.resume, id)

    def retry_failed(self, id: str) -> None:
        """Run the failed items again, as if they had never run. Raises `Conflict` if none failed.

        After `hs.bulk.retry_failed(batch.id)`, call `wait` again.
        """
        return self._loop.call(self._part.retry_failed, id)


class BlockingConsumer:
    """Runs items of the queue, with several workers in each queue partition that it owns.

    Any number of processes may run a consumer::

        worker = hs.worker(actions, workers=16)
        worker.run()  # until worker.stop()
    """

    def __init__(self, loop: LoopThread, part: Consumer) -> None:
        self._loop = loop
        self._part = part

    def hand_over_at(self, desk: Desk) -> None:
        """Let remote workers run the items. This call must come before `run`."""
        return self._loop.run(self._part.hand_over_at, desk)

    @property
    def is_ready(self) -> bool:
        """Whether this process runs items: `worker.is_ready`

        It does if it has renewed its membership within `member_s`, and was not told to stop.
        """
        return self._part.is_ready

    @property
    def partitions(self) -> list[int]:
        """The queue partitions that this process owns now: `worker.partitions`"""
        return self._part.partitions

    @property
    def lost_items(self) -> int:
        """The number of items that batches have lost, as of this process's last check.

        Only the owner of the first partition checks the batches. In other processes the number is
        0.
        """
        return self._part.lost_items

    @property
    def workers(self) -> dict[int, int]:
        """The current number of workers in each partition of this process: `worker.workers[3]`"""
        return self._part.workers

    def stop(self) -> None:
        """Make `run` finish its running items, give back all other items, and return.

        Example::

            worker.stop()
            running
        """
        return self._loop.run(self._part.stop)


class BlockingDeploymentSettings:
    """`hs.settings`: read, set and unset the settings of the whole deployment.

    Names are paths into `heatsink.Settings`, such as `rules.buckets_max`,
    `bulk.weights.TENANT`, `bulk.limits.NAME`, `bulk.paused_tenants.TENANT` and
    `bulk.paused_actions.ACTION`. An unknown name raises `NotFound`, and a value that does not fit
    `InvalidSetting`. A change is in force in every process within a second::

        hs.settings.set("rules.shrink", False, reason="never fewer buckets")
        print(hs.settings.get("rules.shrink"))
    """

    def __init__(self, loop: LoopThread, part: DeploymentSettings) -> None:
        self._loop = loop
        self._part = part

    def all(self) -> list[SettingInForce]:
        """Return all settings: `for setting in hs.settings.all(): print(setting)`"""
        return self._loop.run(self._part.all)

    def get(self, name: str) -> SettingInForce:
        """Return one setting in force.

        Raises `NotFound` for an unknown name::

            print(hs.settings.get("rules.buckets_max").value)
        """
        return self._loop.run(self._part.get, name)

    def set(self, name: str, value: Any, *, reason: str, by: str = "") -> SettingInForce:
        """Set a setting for all processes. `by` names who sets it; the default is this process.

        Text such as `"false"` or `"12"` is converted to the setting's type. Raises `NotFound` for
        an unknown name, and `InvalidSetting` for a value that is not valid::

            hs.settings.set("workers.base", 16, reason="larger machines")
        """
        return self._loop.call(self._part.set, name, value, reason=reason, by=by)

    def unset(self, name: str, *, reason: str = "unset") -> SettingInForce:
        """Remove the deployment's value: `hs.settings.unset("rules.shrink")`

        Every process then uses the value that it was started with, or the default. Raises
        `NotFound` for an unknown name.
        """
        return self._loop.call(self._part.unset, name, reason=reason)


class BlockingSchedules:
    """`hs.schedules`: batches that start by themselves at certain times.

    The leader of the coordinators submits the batches, so a coordinator must run. A name that no
    schedule has raises `NotFound`; only `set` accepts a new one::

        hs.schedules.set("report", "send", cron="0 9 * * MON-FRI", zone="Europe/Berlin")
        print(hs.schedules.get("report").next_ms)
    """

    def __init__(self, loop: LoopThread, part: Schedules) -> None:
        self._loop = loop
        self._part = part

    def all(self) -> list[ScheduleStatus]:
        """Return all schedules, by name: `for one in hs.schedules.all(): print(one.next_ms)`"""
        return self._loop.run(self._part.all)

    def get(self, name: str) -> ScheduleStatus:
        """Return a schedule with its last and its next start.

        Raises `NotFound` if no schedule has this name::

            print(hs.schedules.get("report").last_batch)
        """
        return self._loop.run(self._part.get, name)

    def set(
        self,
        name: str,
        action: str,
        items: Sequence[Any] | None = None,
        *,
        reason: str = "set",
        by: str = "",
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleStatus:
        """Add a schedule, or replace the one with this name. It needs `every` or `cron`.

        If you leave a field out, it has its default value again. Only a pause stays: `resume` ends
        it. Each batch has these `items`, at most 32 KiB of JSON values. Without `items`, each batch
        has one item, which names the schedule and the time. Raises `InvalidSetting` for an invalid
        value, and for an action that no worker has announced, if workers have announced any. Raises
        `Conflict` if there are 1,000 schedules already, and `Overloaded` if the queue does not
        answer::

            hs.schedules.set("tidy", "delete-old", [{"days": 30}], every=3600)
        """
        return self._loop.call(self._part.set, name, action, items, reason=reason, by=by, **options)

    def pause(self, name: str, *, reason: str = "paused") -> None:
        """Start no more batches until `resume`: `hs.schedules.pause("report")`"""
        return self._loop.call(self._part.pause, name, reason=reason)

    def resume(self, name: str, *, reason: str = "resumed") -> None:
        """Go on after `pause`, from now on: `hs.schedules.resume("report")`"""
        return self._loop.call(self._part.resume, name, reason=reason)

    def remove(self, name: str, *, reason: str = "removed") -> None:
        """Remove a schedule; its batches stay: `hs.schedules.remove("report")`"""
        return self._loop.call(self._part.remove, name, reason=reason)


class BlockingCalls:
    """A client, made by `heatsink.connect`.

    Outside `with` every call raises `Closed`. A call that asks the store raises `Overloaded`
    if the store does not answer in time, and an argument outside its range raises `InvalidInput`::

        with heatsink.connect_sync("sqlite:///chat.db") as hs:
            hs.log.append("conv_1", b"hello")
    """

    def __init__(self, loop: LoopThread, part: Heatsink) -> None:
        self._loop = loop
        self._part = part

    def page_stats(self) -> ReadStats:
        """Return statistics of log pages read with `fresh_for`.

        For all other reads see `hs.reads.stats()`. For example: `hs.page_stats().hits`
        """
        return self._loop.run(self._part.page_stats)

    def record(self, key: str, writes: int = 1, written_bytes: int = 0) -> None:
        """Add to a key's heat the writes that the application made without Heatsink.

        Raises `InvalidKey` and, for a number below 0, `InvalidSetting`::

            hs.record("conv_1", writes=25, written_bytes=4_000)
        """
        return self._loop.run(self._part.record, key, writes, written_bytes)

    def status(self) -> Status:
        """Return the state of this process, for health checks and metrics: `hs.status().ready`"""
        return self._loop.run(self._part.status)

    def leadership(self) -> Leadership:
        """Return the current leader, or how long there has been no leader.

        Raises `Overloaded` if the store does not answer in time::

            print((hs.leadership()).leader)
        """
        return self._loop.call(self._part.leadership)

    def hottest(self, limit: int = 20) -> Hottest:
        """Return the hottest keys of all processes, and an upper bound for any other key's load.

        `limit` is 1 to 1,000; any other value raises `InvalidSetting`::

            for key in (hs.hottest(limit=5)).keys:
                print(key)
        """
        return self._loop.call(self._part.hottest, limit)

    def decisions(self, limit: int = 50, before: int | None = None) -> list[LogEntry]:
        """Return decisions with their reasons, newest first.

        For the next page, pass the last version of this page as `before`. Raises `InvalidSetting`
        if `limit` is not 1 to 1,000, and `Overloaded` if the store does not answer in time::

            for entry in hs.decisions(limit=10):
                print(entry)
        """
        return self._loop.call(self._part.decisions, limit, before)

    def queue_partitions(self) -> list[PartitionStatus]:
        """Return the load, the workers' target, the pin and the place of each queue partition.

        The first call opens the queue::

            for partition in hs.queue_partitions():
                print(partition.number, partition.load)
        """
        return self._loop.call(self._part.queue_partitions)

    def pin_workers(self, partition: int, workers: int | None, *, reason: str) -> None:
        """Give a queue partition a fixed number of workers; None removes the pin.

        Raises `NotFound` if there is no such partition, and `InvalidSetting` for more workers than
        the setting `workers.workers_max` allows::

            hs.pin_workers(3, 8, reason="a large import tonight")
        """
        return self._loop.call(self._part.pin_workers, partition, workers, reason=reason)

    def explain(self, key: AnyKey) -> Explanation:
        """Return a key's buckets, epochs and heat, the reason for them, and what a read costs.

        Raises `InvalidKey` for a key that cannot be stored::

            print(hs.explain("conv_1"))
        """
        return self._loop.call(self._part.explain, key)

    @property
    def rules(self) -> BucketRules:
        """The bucket rules in force: `hs.rules.buckets_max`"""
        return self._part.rules

    def pin(self, key: AnyKey, *, buckets: int, reason: str) -> None:
        """Give a key a fixed number of buckets until `unpin`, whatever its heat.

        Raises `InvalidKey`, and `InvalidSetting` for more buckets than the setting
        `rules.buckets_max` allows::

            hs.pin("conv_1", buckets=8, reason="launch day")
        """
        return self._loop.call(self._part.pin, key, buckets=buckets, reason=reason)

    def unpin(self, key: AnyKey, *, reason: str = "unpinned") -> bool:
        """Remove a key's pin, so that Heatsink again decides the number of buckets by heat.

        Returns False if there was no pin to remove. Raises `InvalidKey`::

            hs.unpin("conv_1", reason="the launch is over")
        """
        return self._loop.call(self._part.unpin, key, reason=reason)
