"""A log of entries per key: a conversation, a feed, an audit trail.

Callers name only the key. The router finds the partitions that hold the key's rows, in the current
layout and in all earlier layouts. An append returns a receipt, and a read returns pages with signed
cursors.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from threading import get_ident
from typing import Any, Literal

import msgspec
from msgspec import structs

from heatsink.errors import (
    Conflict,
    Deleted,
    HeatsinkError,
    InvalidBody,
    InvalidCursor,
    InvalidId,
    InvalidSetting,
    Retryable,
)
from heatsink.primitives.checks import check_number, check_text, check_whole, shown
from heatsink.primitives.ids import IdScheme
from heatsink.primitives.keys import PLAIN_MAX, check_key, escape
from heatsink.primitives.subjects import AnyKey, Kind, Subject
from heatsink.registry.layouts import Layout

from .gather import Gather, Range
from .routing import Parts, PastHorizon
from .store import Answer, Ask, LogStore, Row

BODY_BYTES_MAX = 350_000  # a DynamoDB item has 400 KB for everything
TTL_S_MIN, TTL_S_MAX = 0.001, 100 * 365 * 86_400.0
Order = Literal["newest", "oldest"]
LIMIT_MAX = 1_000
CURSOR_CURE = "pass the cursor of the page before"
TAG_BYTES = 8
RETRY_KEY_MAX = 256
RETRY_MS = 86_400_000


class Identified(msgspec.Struct, frozen=True):
    """Something with an id. The id is decoded each time the property `id` is read."""

    raw: bytes
    scheme: IdScheme

    @property
    def id(self) -> Any:
        """The id, of the deployment's kind: a UUID, a ULID as text, or a Snowflake as a number."""
        return self.scheme.value(self.raw)

    @property
    def time(self) -> datetime:
        """The time in the id, in UTC."""
        return datetime.fromtimestamp(self.scheme.time_ms(self.raw) / 1000, UTC)


class Receipt(Identified, frozen=True):
    """An acknowledged append. To repeat the append, pass its id: `append(…, id=receipt.id)`.

    `is_new` is False if the entry existed already. That is possible only if the caller passed `id`.
    Then the entry was written by an earlier call, or by an earlier attempt of this call whose
    response was lost.
    """

    key: str
    is_new: bool = True

    def __repr__(self) -> str:
        return f"Receipt(key={self.key!r}, id={self.id})"


class Entry(Identified, frozen=True):
    """One entry of a log."""

    body: bytes

    def __repr__(self) -> str:
        return f"Entry(id={self.id}, body={self.body!r})"


class Page(msgspec.Struct, frozen=True):
    """Entries in order. Pass `cursor` to get the next page; it is None on the last page."""

    entries: list[Entry]
    cursor: str | None

    def __iter__(self) -> Iterator[Entry]:
        """`for entry in page` goes through the entries."""
        return iter(self.entries)


class Log:
    """`hs.log`: entries under a key, in the order of their ids.

    Every call raises `InvalidInput` for a bad argument, and `Overloaded` if all retries fail until
    the deadline::

        receipt = await hs.log.append("conv_1", b"hello")
        page = await hs.log.page("conv_1", limit=20)
    """

    def __init__(self, store: LogStore, parts: Parts) -> None:
        self._store = store
        self._parts = parts
        self._registry = parts.registry
        self._router = parts.router
        self._tracker = parts.tracker
        self._backoff = parts.backoff
        self._note = parts.tracker.note
        self._monotonic_s = parts.clock.monotonic_s
        self._patience_s = parts.backoff.patience_s
        self._scheme = parts.router.scheme
        self._pages = parts.pages
        self._owner = parts.owner
        self._is_prompt = parts.backoff.outlasts(parts.answers_in_s)
        self._cursors = Cursors(parts.registry.meta.seed)

    @property
    def scheme(self) -> IdScheme:
        """The kind of ids that this deployment uses: `hs.log.scheme.time_ms(receipt.raw)`."""
        return self._scheme

    async def append(
        self, key: AnyKey, body: bytes, *, id: Any = None, ttl: float | None = None
    ) -> Receipt:
        """Add an entry; a retry with the same id and body writes nothing new.

        `ttl` is in seconds. An error raised after the entry was sent carries the `id` to retry
        with. Raises `Conflict` if the id was used with another body, and `Deleted` if the entry
        with this id was deleted::

            receipt = await hs.log.append("conv_1", b"hello")
            await hs.log.append("conv_1", b"hello", id=receipt.id)  # the same append
        """
        if type(key) is not str or not (0 < len(key) <= PLAIN_MAX and key.isascii()) or "\0" in key:
            key = check_key(key)
        if type(body) is not bytes or len(body) > BODY_BYTES_MAX:
            body = check_body(body)
        loop = self._owner.loop
        is_here = loop is not None and self._owner.thread == get_ident() and loop.is_running()
        if self._registry.refusal or not is_here:
            self._parts.check()
        deadline_s, is_prompt = self._monotonic_s() + self._patience_s, self._is_prompt
        if id is not None:
            raw, time_ms = self._router.id_from(id)
            partition, epoch = await self._router.place_soon(key, raw, time_ms, deadline_s)
            is_prompt = False
        else:
            try:
                raw, time_ms, partition, epoch = self._router.fresh(key)
            except PastHorizon:
                placed = await self._router.fresh_later(key, deadline_s)
                raw, time_ms, partition, epoch = placed
                is_prompt = False
        expires_ms = None if ttl is None else time_ms + ttl_ms(ttl)
        buckets = epoch.buckets
        self._note((key, 1, len(body), partition if buckets > 1 else None))
        row = Row(raw, body, epoch.start_ms, buckets, expires_ms)
        try:
            try:
                if is_prompt:  # the store's own timeout is shorter than the deadline
                    taken_by = await self._store.put(partition, row)
                else:
                    with self._backoff.cut(deadline_s):
                        taken_by = await self._store.put(partition, row)
            except Retryable as refusal:
                put = partial(self._store.put, partition, row)
                taken_by = await self._backoff.after(refusal, put, key, deadline_s)
        except HeatsinkError as error:
            error.id = self._scheme.value(raw)
            raise
        finally:
            if self._pages.is_used:
                self._pages.wrote(key)
        is_new = taken_by is None or _is_own(row, taken_by, id is None, self._scheme)
        return Receipt(raw, self._scheme, key, is_new)

    async def id_for(self, key: AnyKey, retry_key: str) -> Any:
        """Return the id for an append that the caller names by a text, such as an order number.

        Every call with the same key and text returns the same id, in every process, for at least a
        day. So a caller that cannot store an id can still retry an append: the same text gives the
        same id. The call writes one small row. Raises `InvalidSetting` for a bad text. Raises
        `InvalidId` in a deployment with Snowflake ids, since only callers make such ids::

            id = await hs.log.id_for("conv_1", "order-17")
            await hs.log.append("conv_1", b"hello", id=id)
        """
        key = check_key(key)
        check_text("retry_key", retry_key, RETRY_KEY_MAX)
        deadline_s = self._parts.begin()
        name = blake2b(f"{key}\0{retry_key}".encode(), digest_size=16).hexdigest()
        record = Subject(Kind.RETRY, name).text
        try:
            raw, time_ms, *_ = self._router.fresh(key)
        except PastHorizon:
            raw, time_ms, *_ = await self._router.fresh_later(key, deadline_s)
        place = self._scheme.first_raw(0)  # in the time of one bucket, so always the same row
        partition, epoch = await self._router.place_soon(record, place, 0, deadline_s)
        row = Row(place, raw, epoch.start_ms, epoch.buckets, time_ms + RETRY_MS)
        put = partial(self._store.put, partition, row)
        before = await self._backoff.call(put, record, deadline_s)
        return self._scheme.value(raw if before is None else before.body)

    async def page(
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

            page = await hs.log.page("conv_1", limit=20)
            older = await hs.log.page("conv_1", limit=20, cursor=page.cursor)
        """
        key = check_key(key)
        self._owner.check()
        load = partial(self._page, key, limit, cursor, order, after, before)
        if fresh_for is None:
            if stale_for is not None:
                raise InvalidSetting(
                    "stale_for needs fresh_for: pass both, or neither", field="stale_for"
                )
            return await load()
        what, bound_s = (limit, cursor, order, after, before), stale_for
        page = await self._pages.get(
            key, what, load, fresh_for, fresh_for if bound_s is None else bound_s
        )
        return Page(list(page.entries), page.cursor)  # the caller may change its list

    async def _page(
        self, key: str, limit: int, cursor: str | None, order: Order, after: Any, before: Any
    ) -> Page:
        newest_first, limit = check_order(order), check_limit(limit)
        above, below = self._bound("after", after), self._bound("before", before)
        if cursor is not None:
            last = self._cursors.read(key, order, cursor)
            if newest_first:
                below = last if below is None else min(last, below)
            else:
                above = last if above is None else max(last, above)
        rows = await self._rows(key, Range(above, below, newest_first), limit + 1)
        more = len(rows) > limit
        entries = [entry_of(row, self._scheme) for row in rows[:limit]]
        return Page(entries, self._cursors.write(key, order, rows[limit - 1].raw) if more else None)

    async def _rows(self, key: str, span: Range, wanted: int) -> list[Row]:
        if span.above is not None and span.below is not None and span.above >= span.below:
            return []
        gather = Gather(key, self._registry.view.layout(key), span, wanted, self._scheme)
        need_truth, deadline_s = self._passes_horizon(span), self._parts.begin()
        while asks := gather.asks():
            answers, truth = await self._ask_all(key, asks, need_truth, deadline_s)
            for (partition, ask), answer in zip(asks.items(), answers, strict=True):
                gather.feed(partition, ask, answer.rows)
            if truth is not None:
                gather.learn(truth)
                need_truth = False
        if not gather.rows:
            await self._parts.confirm_absence(key, deadline_s)
        return gather.rows

    def _passes_horizon(self, span: Range) -> bool:
        """Return whether the range may overlap epochs that the view does not know yet."""
        horizon_ms = self._registry.view.horizon_ms
        return span.below is None or self._scheme.time_ms(span.below) >= horizon_ms

    async def _ask_all(
        self, key: str, asks: dict[str, Ask], need_truth: bool, deadline_s: float
    ) -> tuple[list[Answer], Layout | None]:
        """Query all partitions concurrently, and return their answers.

        With `need_truth`, the result includes the key's layout, read from the store.
        """
        self._tracker.record_read(key, len(asks))
        bare = escape(key)
        if need_truth and bare in asks and asks[bare].newest_first and asks[bare].below is None:
            asks = {**asks, bare: structs.replace(asks[bare], layout_of=key)}
            need_truth = False
        queries = [self._query(key, partition, ask, deadline_s) for partition, ask in asks.items()]
        if need_truth:
            return await asyncio.gather(asyncio.gather(*queries), self._layout(key, deadline_s))
        answers = [await queries[0]] if len(queries) == 1 else await asyncio.gather(*queries)
        carried = [answer.layout for answer in answers if answer.layout is not None]
        return answers, carried[0] if carried else None

    async def _query(self, key: str, partition: str, ask: Ask, deadline_s: float) -> Answer:
        query = partial(self._store.query, partition, ask)
        return await self._backoff.call(query, key, deadline_s)

    async def _layout(self, key: str, deadline_s: float) -> Layout:
        return await self._backoff.call(partial(self._registry.layout, key), key, deadline_s)

    async def get(self, key: AnyKey, id: Any) -> Entry | None:
        """Return the entry with this id, or None. Raises `InvalidId` for a malformed id.

        Example::

            entry = await hs.log.get("conv_1", receipt.id)
            print(entry.body if entry else "not found")
        """
        key = check_key(key)
        raw, time_ms = self._router.id_from(id)
        deadline_s = self._parts.begin()
        self._tracker.record_read(key)
        if not self._registry.view.knows(key, time_ms):
            await self._backoff.call(self._registry.renew, key, deadline_s)
        try:
            partition, _ = self._router.place(key, raw, time_ms)
        except PastHorizon:
            return None  # past the closed time, so no process can have placed it yet
        row = await self._backoff.call(partial(self._store.get, partition, raw), key, deadline_s)
        if row is None:
            await self._parts.confirm_absence(key, deadline_s)
            return None
        return entry_of(row, self._scheme)

    async def delete(self, key: AnyKey, id: Any) -> bool:
        """Delete an entry. Returns whether the entry existed.

        A tombstone stays, so that a late retry of the append does not bring the entry back. Raises
        `InvalidId` for a malformed id or one from the future::

            await hs.log.delete("conv_1", receipt.id)  # True
            await hs.log.delete("conv_1", receipt.id)  # False
        """
        key = check_key(key)
        raw, time_ms = self._router.id_from(id)
        deadline_s = self._parts.begin()
        self._tracker.record(key)
        partition, epoch = await self._router.place_soon(key, raw, time_ms, deadline_s)
        tombstone = Row(raw, b"", epoch.start_ms, epoch.buckets, None, deleted=True)
        delete = partial(self._store.delete, partition, tombstone)
        try:
            return await self._backoff.call(delete, key, deadline_s)
        finally:
            self._pages.wrote(key)

    async def erase(self, key: AnyKey) -> int:
        """Remove every row, tombstone and counter of the key, from every bucket it ever had.

        Stop the key's writers first: a later append or retry writes a new row. Returns the number
        of removed rows. This number is a lower bound: if the answer to an attempt was lost, the
        rows that this attempt removed are not counted. The more rows there are, the longer the call
        takes. `deadline_s` limits the retries for each bucket::

            removed = await hs.log.erase("conv_1")
        """
        key = check_key(key)
        layout = await self._layout(key, self._parts.begin())
        erased = 0
        try:
            for partition in layout.partitions(key):
                erased += await self._backoff.persist(partial(self._store.erase, partition), key)
        finally:
            self._pages.wrote(key)
        return erased

    def _bound(self, name: str, bound: Any) -> bytes | None:
        """Return the id that bounds a page. The id itself is not part of the page.

        `bound` is an id or a time that the caller passed as the parameter `name`, "after" or
        "before". For a time, the result is an id just outside the page.
        """
        if bound is None:
            return None
        if not isinstance(bound, datetime):
            try:
                return self._scheme.raw(bound)
            except InvalidId as error:
                raise InvalidId(
                    f"{error.called(name)}; {name} is the id of an entry, or a time such as "
                    "datetime(2026, 11, 15, tzinfo=UTC)",
                    field=name,
                ) from None
        if bound.tzinfo is None:
            raise InvalidSetting(
                f"{name} must have a time zone: use datetime(2026, 11, 15, tzinfo=UTC), or an id",
                field=name,
            )
        first = self._scheme.first_raw(int(bound.timestamp() * 1000))
        return _predecessor(first) if name == "after" else first


def _predecessor(raw: bytes) -> bytes:
    number = int.from_bytes(raw, "big")
    return max(number - 1, 0).to_bytes(len(raw), "big")


def check_body(body: object) -> bytes:
    """Return the body as plain bytes. Raises `InvalidBody` if it is not bytes or too large."""
    if not isinstance(body, bytes):
        is_binary = isinstance(body, bytearray | memoryview)
        cure = "pass bytes(body)" if is_binary else "encode it first"
        raise InvalidBody(f"body must be bytes, not {type(body).__name__}: {cure}")
    if len(body) > BODY_BYTES_MAX:
        raise InvalidBody(
            f"body has {len(body):,} bytes; at most {BODY_BYTES_MAX:,} fit in a row: "
            "store large bodies elsewhere and append a reference"
        )
    return bytes(body)


def ttl_ms(ttl: object) -> int:
    return int(check_number("ttl", ttl, TTL_S_MIN, TTL_S_MAX, unit="seconds") * 1000)


def _is_own(row: Row, taken_by: Row, is_minted: bool, scheme: IdScheme) -> bool:
    """Whether the stored row `taken_by` is known to be from an earlier attempt of this append.

    It is known if Heatsink minted the id for this append (`is_minted`), since no other append has
    the id. The row may have been read and deleted since that attempt. For an id that the caller
    passed, raises `Conflict` if the stored row has another body, and `Deleted` if it was deleted.
    """
    if taken_by.deleted and not is_minted:
        raise Deleted(f"id {scheme.value(row.raw)} was deleted: append under a new id")
    if taken_by.body != row.body and not taken_by.deleted:
        raise Conflict(f"id {scheme.value(row.raw)} was used with another body: use a new id")
    return is_minted


def entry_of(row: Row, scheme: IdScheme) -> Entry:
    return Entry(row.raw, scheme, row.body)


def check_limit(limit: object) -> int:
    return check_whole("limit", limit, 1, LIMIT_MAX)


def check_order(order: object) -> bool:
    """Return whether the order is newest first. Raises unless it is "newest" or "oldest"."""
    if order not in ("newest", "oldest"):
        raise InvalidSetting(
            f"order must be 'newest' or 'oldest', not {shown(order)}", field="order"
        )
    return order == "newest"


class Cursors:
    """Makes and checks cursors. A cursor is the last id of a page, signed for one key and order.

    A cursor stays valid when the layout changes.
    """

    def __init__(self, seed: bytes) -> None:
        self._seed = seed

    def write(self, key: str, order: Order, raw: bytes) -> str:
        return urlsafe_b64encode(self._tag(key, order, raw) + raw).decode().rstrip("=")

    def read(self, key: str, order: Order, cursor: object) -> bytes:
        if not isinstance(cursor, str):
            raise InvalidCursor(
                f"cursor must be a str from page.cursor, not {type(cursor).__name__}"
            )
        try:
            data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except ValueError:
            raise InvalidCursor(f"cursor {cursor[:40]!r} is damaged: {CURSOR_CURE}") from None
        tag, raw = data[:TAG_BYTES], data[TAG_BYTES:]
        if tag != self._tag(key, order, raw):
            raise InvalidCursor(
                f"cursor {cursor[:40]!r} was not made for this key and order: {CURSOR_CURE}"
            )
        return raw

    def _tag(self, key: str, order: Order, raw: bytes) -> bytes:
        text = f"{order}\0{key}\0".encode()
        return blake2b(text + raw, key=self._seed, digest_size=TAG_BYTES).digest()
