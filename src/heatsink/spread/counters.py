"""Counters for concurrent writers: an add counts once, however often it is retried.

An add is one transaction in the token's bucket: it records the token and changes the sum. A token
is an id with a time, so it is placed like a row. A retry therefore finds the record of its first
attempt, even if the layout has changed since. Records are kept for `token_ttl_s`. After that time a
*fold* deletes them. In the same transaction, the fold stores the time up to which it has deleted
records: it *seals* the bucket. From then on, the store refuses tokens from before the stored time.
So an add whose record was deleted can never count again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from heatsink.errors import Closed, Conflict, HeatsinkError, InvalidId, Retryable, TokenExpired
from heatsink.primitives.checks import check_number, check_whole
from heatsink.primitives.keys import check_key, partition_of
from heatsink.primitives.subjects import AnyKey
from heatsink.registry.layouts import Layout

from .routing import Parts
from .store import SHARE_MAX, CounterStore, Running, Total, past_the_bound

AMOUNT_MAX = 2**53
AGE_MS_MAX = 3_600_000
FLUSH_S = 0.1
CELLS_MAX = 10_000
TOKEN_TTL_S = 86_400.0
REMEMBERED_MAX = 10_000


class Counters:
    """`hs.counters`: counters that many processes add to, exact even when adds are retried.

    Each counter is spread over the buckets of its key, like a log. Every call raises `InvalidInput`
    for a bad argument, and `Overloaded` if all retries fail until the deadline::

        await hs.counters.add("likes:42")
        likes = await hs.counters.value("likes:42")
    """

    def __init__(self, store: CounterStore, parts: Parts, token_ttl_s: float = TOKEN_TTL_S) -> None:
        self._store = store
        self._parts = parts
        self._registry = parts.registry
        self._router = parts.router
        self._tracker = parts.tracker
        self._backoff = parts.backoff
        self._token_ttl_s = token_ttl_s
        self._folded: dict[str, int] = {}

    async def add(self, key: AnyKey, amount: int = 1, *, token: Any = None) -> None:
        """Add `amount`, which may be negative, to a counter.

        `token` is an id of the deployment's kind. Of all calls with the same token, only one
        counts. Raises `Conflict` if the token was used with another amount, and `TokenExpired` if
        the token is older than `token_ttl_s`::

            await hs.counters.add("likes:42", token=request_id)
        """
        key = check_key(key)
        check_amount(amount)
        deadline_s = self._parts.begin()
        try:
            if token is not None:
                raw, time_ms = self._router.id_from(token)
                self._check_age(time_ms)
            else:
                raw, time_ms = await self._router.token(deadline_s)
            partition, epoch = await self._router.place_soon(key, raw, time_ms, deadline_s)
        except InvalidId as error:
            raise error.called("token") from None
        self._tracker.record(key, bucket=partition if epoch.buckets > 1 else None)
        add = partial(self._store.add, partition, raw, time_ms, amount)
        before = await self._backoff.call(add, key, deadline_s)
        if before is not None and before != amount:
            raise Conflict(f"token was used before to add {before}, not {amount}: use a new token")

    def buffered(self, flush_s: float = FLUSH_S) -> BufferedCounters:
        """Return `BufferedCounters`: for high rates, they write only every `flush_s` seconds.

        Example::

            async with hs.counters.buffered(flush_s=0.1) as counts:
                await counts.add("views:42")
        """
        return BufferedCounters(TotalsStore(self._store, self._parts, self._token_ttl_s), flush_s)

    async def value(self, key: AnyKey) -> int:
        """Return the counter's value: the sum of all acknowledged adds, or 0 for an unused key.

        The value is exact for one moment during the call. Example::

            await hs.counters.add("likes:42", 3)
            likes = await hs.counters.value("likes:42")  # 3
        """
        key = check_key(key)
        deadline_s = self._parts.begin()
        layout = await self._layout(key, deadline_s)
        partitions = self._partitions(key, layout, self._folded.get(key, 0))
        self._tracker.record_read(key, len(partitions))
        read = partial(self._store.totals, partitions)
        totals = await self._backoff.call(read, key, deadline_s)
        self._remember(key, totals[0])
        value = sum(total.value + total.writers for total in totals)
        if value and self._is_worth_folding(key, layout, totals[0]):
            with suppress(Retryable):  # the value is known; the next reader may fold
                await self._fold(key, layout, deadline_s)
        if not value:
            await self._parts.confirm_absence(key, deadline_s)
        return value

    async def fold(self, key: str) -> None:
        """Make reads cheaper: move the sums of all buckets and of ended processes to the bare key.

        The fold deletes tokens older than `token_ttl_s`. From then on, the store refuses adds with
        such tokens. Applications need not call `fold`, since `value` calls it when a fold pays
        off::

            await hs.counters.fold("likes:42")
        """
        key = check_key(key)
        deadline_s = self._parts.begin()
        await self._fold(key, await self._layout(key, deadline_s), deadline_s)

    async def _fold(self, key: str, layout: Layout, deadline_s: float) -> None:
        sources = layout.partitions(key)
        fold = partial(self._store.fold, sources, sources[0], self._oldest_ms())
        await self._backoff.call(fold, key, deadline_s)

    async def _layout(self, key: str, deadline_s: float) -> Layout:
        return await self._backoff.call(partial(self._registry.layout, key), key, deadline_s)

    def _is_worth_folding(self, key: str, layout: Layout, bare: Total) -> bool:
        """Return whether to fold: fewer partitions would be read, or the last fold was long ago.

        `bare` is the share of the bare key, which says when the last fold was.
        """
        oldest_ms = self._oldest_ms()
        needed = len(self._partitions(key, layout, oldest_ms))
        read = len(self._partitions(key, layout, bare.folded_ms))
        return needed < read or bare.folded_ms < oldest_ms - int(self._token_ttl_s * 1000)

    def _partitions(self, key: str, layout: Layout, folded_ms: int) -> list[str]:
        """Return the partitions to read for a counter whose last fold was at `folded_ms`.

        These are the bare key, and the buckets of every epoch that did not end before this time.
        """
        names = dict.fromkeys([partition_of(key, None)])
        for epoch in layout.overlapping(folded_ms, None):
            names.update(dict.fromkeys(epoch.partitions(key)))
        return list(names)

    def _remember(self, key: str, bare: Total) -> None:
        if bare.folded_ms and (key in self._folded or len(self._folded) < REMEMBERED_MAX):
            self._folded[key] = bare.folded_ms

    def _oldest_ms(self) -> int:
        """The time of the oldest token that is accepted now."""
        return max(self._registry.past_ms() - int(self._token_ttl_s * 1000), 0)

    def _check_age(self, time_ms: int) -> None:
        if time_ms < self._oldest_ms():
            raise TokenExpired.by(f"{self._token_ttl_s:,.0f} s")


class BufferedCounters:
    """Counters for high rates: adds are summed in this process and written together.

    A process keeps two totals per counter: the sum that it added and the sum that it subtracted.
    Both totals only grow. So a process can write them with "set if larger", and can repeat the
    write without counting an add twice. One such write carries thousands of adds. An add is
    acknowledged when a write that contains it is acknowledged. Leaving the `async with` block
    flushes::

        async with hs.counters.buffered() as counts:
            await counts.add("views:42")
    """

    def __init__(self, totals: TotalsStore, flush_s: float = FLUSH_S) -> None:
        check_number("flush_s", flush_s, 0.001, 60)
        self._totals = totals
        self._flush_s = flush_s
        self._cells: dict[str, _Cell] = {}
        self._dirty: dict[str, _Cell] = {}
        self._flusher: asyncio.Task[None] | None = None
        self._writing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> BufferedCounters:
        self._flusher = asyncio.ensure_future(self._flush_now_and_then())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._totals.owner.is_forked:
            return  # the parent process writes what is pending
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
            self._flusher = None
        await self.flush()

    def add_soon(self, key: str, amount: int = 1) -> asyncio.Future[None]:
        """Add without waiting. The returned future completes when the add is durable.

        Raises `Closed` outside `async with`, and `InvalidSetting` for an amount out of range.

        Example::

            counts.add_soon("views:42")  # written with the next flush
        """
        if self._flusher is None:
            raise Closed("buffered counters can only be used inside `async with`")
        self._totals.owner.check()
        key = check_key(key)
        check_amount(amount)
        if amount == 0:
            return _done()
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell()
        more = Running(amount, 0) if amount > 0 else Running(0, -amount)
        if not cell.has_room(more):
            raise past_the_bound(amount)
        cell.pending += more
        self._dirty[key] = cell
        return cell.acknowledged

    async def add(self, key: str, amount: int = 1) -> None:
        """Add, and return when the store has acknowledged a write that contains the add.

        After a `Retryable` error, a later flush may write the add. The add then counts once. Raises
        `Closed` outside `async with`.

        Example::

            await counts.add("views:42", 5)
        """
        await asyncio.shield(self.add_soon(key, amount))

    async def flush(self) -> None:
        """Write all pending adds now. Raises the first error; failed adds stay pending.

        A write that has started runs to its end even if the caller is cancelled. Without this call,
        adds are flushed every `flush_s` seconds: `await counts.flush()`
        """
        dirty, self._dirty = self._dirty, {}
        for key, cell in dirty.items():
            writing = asyncio.ensure_future(self._flush_cell(key, cell))
            self._writing.add(writing)
            writing.add_done_callback(self._forget)
        under_way = asyncio.gather(*self._writing, return_exceptions=True)
        for result in await asyncio.shield(under_way):
            if isinstance(result, BaseException):
                raise result

    def _forget(self, writing: asyncio.Task[None]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            writing.exception()  # mark as retrieved: the futures of the adds carry the error

    async def _flush_now_and_then(self) -> None:
        while True:
            await self._totals.clock.sleep(self._flush_s)
            with suppress(HeatsinkError):  # the adds' futures carry it; the next flush retries
                await self.flush()

    async def _flush_cell(self, key: str, cell: _Cell) -> None:
        async with cell.flushing:
            if not cell.pending:
                return
            waiting = cell.take()
            try:
                await self._write(key, cell)
            except Exception as error:
                cell.give_back(error)
                if cell.pending:
                    self._dirty[key] = cell
                waiting.set_exception(error)
                waiting.exception()  # mark as retrieved: the callers may not await it
                raise
            waiting.set_result(None)
            self._forget_idle(key, cell)

    def _forget_idle(self, key: str, cell: _Cell) -> None:
        """Drop an idle counter from memory. If the counter is used again, it gets a new writer."""
        if len(self._cells) > CELLS_MAX and not cell.pending:
            self._cells.pop(key, None)

    async def _write(self, key: str, cell: _Cell) -> None:
        totals, writer, deadline_s = self._totals, cell.writer, self._totals.begin()
        if writer is None or not (cell.unsure or totals.is_good(key, writer)):
            writer = cell.writer = await totals.new_writer(key, deadline_s)
        goal = writer.written + cell.owed
        while (counted := await totals.write(key, writer, goal, deadline_s)) is not None:
            goal = cell.owed = goal - counted  # the writer was folded: a new one writes the rest
            cell.unsure = False
            writer = cell.writer = await totals.new_writer(key, deadline_s)
        writer.written, cell.unsure, cell.owed = goal, False, Running()


class _Cell:
    """One counter in this process: its writer, and the adds that are not yet written."""

    def __init__(self) -> None:
        self.writer: WriterId | None = None
        self.unsure = False
        self.pending = Running()
        self.owed = Running()  # taken from `pending`, and not yet known to be written
        self.acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.flushing = asyncio.Lock()

    def has_room(self, more: Running) -> bool:
        """Whether the totals stay within their bound if `more` is added.

        Every add is checked separately, so that an add that is too large does not make other adds
        fail.
        """
        written = self.writer.written if self.writer else Running()
        total = written + self.owed + self.pending + more
        return max(total.raised, total.lowered) <= SHARE_MAX

    def take(self) -> asyncio.Future[None]:
        """Take the pending adds for a write, and return the future that acknowledges these adds."""
        self.owed, self.pending = self.pending, Running()
        waiting, self.acknowledged = self.acknowledged, self.acknowledged.get_loop().create_future()
        return waiting

    def give_back(self, error: Exception) -> None:
        """Make the adds of a failed write pending again.

        The store may have applied the write. So this writer must repeat the same write before the
        counter may get another writer.
        """
        if isinstance(error, Retryable):
            self.pending, self.unsure = self.pending + self.owed, True
        elif isinstance(error, TokenExpired):  # whether it was applied cannot be found out any more
            self.writer, self.unsure = None, False
        self.owed = Running()


class WriterId:
    """The id under which one process writes its totals of one counter.

    The id is placed like a token. Its bucket never changes.
    """

    def __init__(self, raw: bytes, minted_ms: int, partition: str, layout: Layout) -> None:
        self.written = Running()
        self.raw = raw
        self.minted_ms = minted_ms
        self.partition = partition
        self.layout = layout


class TotalsStore:
    """Writes the running totals of this process to the store."""

    def __init__(self, store: CounterStore, parts: Parts, token_ttl_s: float) -> None:
        self.clock = parts.clock
        self.owner = parts.owner
        self._age_ms_max = min(AGE_MS_MAX, int(token_ttl_s * 1000 / 4))
        self._store = store
        self._parts = parts

    def is_good(self, key: str, writer: WriterId) -> bool:
        """Return whether to keep using a writer.

        Returns True if the writer's id is young and was placed by the key's current layout.
        """
        registry = self._parts.registry
        young = registry.past_ms() - writer.minted_ms < self._age_ms_max
        return young and registry.view.layout(key) is writer.layout

    def begin(self) -> float:
        return self._parts.begin()

    async def new_writer(self, key: str, deadline_s: float) -> WriterId:
        router = self._parts.router
        layout = self._parts.registry.view.layout(key)
        raw, time_ms = await router.token(deadline_s)
        partition, _ = await router.place_soon(key, raw, time_ms, deadline_s)
        return WriterId(raw, time_ms, partition, layout)

    async def write(
        self, key: str, writer: WriterId, to: Running, deadline_s: float
    ) -> Running | None:
        """Increase the writer's stored totals to `to`.

        The result is that of `CounterStore.raise_to`.
        """
        self._parts.tracker.record(key)
        raise_to = self._store.raise_to
        attempt = partial(raise_to, writer.partition, writer.raw, writer.minted_ms, to)
        return await self._parts.backoff.call(attempt, key, deadline_s)


def check_amount(amount: object) -> None:
    check_whole("amount", amount, -AMOUNT_MAX, AMOUNT_MAX)


def _done() -> asyncio.Future[None]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
