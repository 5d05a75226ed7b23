"""Finds the bucket of an item of an existing table, from its keys and the registry's view.

Programs without Heatsink write every row under the bare key, whatever the layout says. So reads
query the bare key along with the buckets. They do so until an operator declares the table's
**adoption** complete: no such program writes any more. The registry records the time of this
declaration. Rows from before that time may be *strays*: rows that are under the bare key although
their layout puts them elsewhere. Strays stay readable. Newer rows are where their layout puts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from heatsink.client.urls import open_stores
from heatsink.door.keys import comparable, hashed_bytes, registry_key, subject_in
from heatsink.door.times import TimeOf, careful
from heatsink.errors import InvalidId
from heatsink.primitives.checks import check_text
from heatsink.primitives.clock import Clock
from heatsink.primitives.keys import seeded_hash
from heatsink.primitives.subjects import Subject
from heatsink.registry.adoption import completed_ms, completion
from heatsink.registry.decisions import View
from heatsink.registry.layouts import COLD, Epoch, Layout
from heatsink.registry.registry import Registry

from .calls import Background

TABLE_NAME_MAX = 255
SLACK_MS = 1_000  # `…:59Z` sorts after `…:59.500Z`: sort keys and times agree to the second


class KeyPlaces:
    """Finds the buckets of items, from any thread.

    A `KeyPlaces` always reads the view's horizon before the layouts. So the layouts are at least as
    new as the horizon.
    """

    def __init__(self, table: str, time_of: TimeOf, background: Background) -> None:
        self.time_of = careful(time_of)
        self._table = table
        self._background = background
        self._view = background.view
        self._hash = seeded_hash(background.registry.meta.seed)
        self._adoption = Adoption(table, background.view)

    def subject(self, key: str) -> Subject:
        return subject_in(self._table, key)

    def registry_key(self, key: str) -> str:
        return registry_key(self._table, key)

    def bucket(self, key: str, sort: Any) -> int | None:
        """Return the bucket into which an item is written; None means the bare key.

        If the item's time is past the view's horizon, this waits until the horizon has reached that
        time.
        """
        time_ms = self.time_of(sort)
        if time_ms >= self._view.horizon_ms:
            self._background.reach(time_ms)
        return self._bucket(key, sort, time_ms)

    def _bucket(self, key: str, sort: Any, time_ms: int) -> int | None:
        epoch = self._view.layout(self.registry_key(key)).epoch_at(time_ms)
        if epoch.buckets == 1:
            return None
        return epoch.bucket(self._hash(hashed_bytes(comparable(sort))))

    def candidates(self, key: str, sort: Any) -> list[int | None]:
        """Return where to look for an item, in this order.

        The first place is the item's bucket. The second is the bare key, if the item may be a
        stray.
        """
        time_ms = self.time_of(sort)
        if time_ms >= self._view.horizon_ms:
            self._background.renew()
        if time_ms >= self._view.horizon_ms:
            return [None]  # no process with Heatsink can have placed it yet
        bucket = self._bucket(key, sort, time_ms)
        may_stray = bucket is not None and time_ms < self._adoption.complete_ms
        return [bucket, None] if may_stray else [bucket]

    def span_of(self, lowest: Any, highest: Any) -> tuple[int | None, int | None]:
        """Return the first and last time that a range of sort keys may cover (None: no bound)."""
        from_ms, to_ms = self._bound(lowest), self._bound(highest)
        return (
            None if from_ms is None else from_ms - SLACK_MS,
            None if to_ms is None else to_ms + SLACK_MS,
        )

    def _bound(self, value: Any) -> int | None:
        """Return the time of a bound.

        Returns None if there is no bound, or if it is not a whole sort key and so has no time.
        """
        try:
            return None if value is None else self.time_of(value)
        except InvalidId:
            return None

    def passes_horizon(self, to_ms: int | None) -> bool:
        """Return whether a range up to `to_ms` may overlap epochs that the view lacks so far."""
        return to_ms is None or to_ms >= self._view.horizon_ms

    def plan(self, key: str, span: tuple[int | None, int | None]) -> ReadPlan:
        layout = self._view.layout(self.registry_key(key))
        return ReadPlan(layout, span, self._adoption.complete_ms)

    def plan_by(self, layout: Layout, span: tuple[int | None, int | None]) -> ReadPlan:
        return ReadPlan(layout, span, self._adoption.complete_ms)


class Adoption:
    """Finds in the view since when a table's adoption is complete, and caches the result.

    The cached result is valid until the view changes. `registry.adoption` says how the registry
    stores this time.
    """

    def __init__(self, table: str, view: View) -> None:
        self._table = table
        self._view = view
        self._seen: tuple[int, float] = (-1, float("inf"))

    @property
    def complete_ms(self) -> float:
        """The time after which no row is a stray; infinite while the adoption is not complete."""
        version = self._view.version
        if self._seen[0] != version:
            self._seen = (version, completed_ms(self._view, self._table))
        return self._seen[1]


async def adopt(url: str, table: str, complete: bool, clock: Clock) -> float:
    """Return the time since which a table's adoption is complete; infinite if it is not.

    With `complete`, first record in the registry that the adoption is complete from now on, unless
    this is already recorded.
    """
    check_text("table", table, TABLE_NAME_MAX)
    stores = open_stores(url, clock, must_exist=True)
    try:
        await stores.open()
        registry = Registry(stores.registry, clock)
        await registry.open((await stores.registry.meta()).meta)
        found_ms = completed_ms(registry.view, table)
        if not complete or found_ms < float("inf"):
            return found_ms
        await registry.keep_ahead(leads=False)
        await registry.publish([completion(table, registry.view.horizon_ms)], term=None)
        return completed_ms(registry.view, table)
    finally:
        await stores.close()


class OpenEpoch(Epoch):
    """An epoch in which programs without Heatsink may have written under the bare key."""

    def partitions(self, key: str) -> Iterator[str]:
        yield from super().partitions(key)
        if self.buckets > 1:
            yield from COLD.partitions(key)


class ReadPlan(Layout):
    """A key's layout for one query: the epochs of the query's time span, with possible strays."""

    __slots__ = ("_complete_ms", "_span")

    def __init__(
        self, layout: Layout, span: tuple[int | None, int | None], complete_ms: float
    ) -> None:
        super().__init__()
        self._span = span
        self._complete_ms = complete_ms
        self.epochs = tuple(_split(layout, complete_ms))

    def overlapping(self, from_ms: int | None, to_ms: int | None) -> tuple[Epoch, ...]:  # noqa: ARG002
        """Return the epochs of the query's time span.

        The parameters are ignored: callers compute them from ids, but here sort keys stand in for
        ids.
        """
        return super().overlapping(*self._span)

    def counts_bare(self, time_ms: int) -> bool:
        """Return whether a row under the bare key with this time is one of the key's items."""
        return self.epoch_at(time_ms).buckets == 1 or time_ms < self._complete_ms


def _split(layout: Layout, complete_ms: float) -> Iterator[Epoch]:
    ends = [*(epoch.start_ms for epoch in layout.later), float("inf")]
    for epoch, end_ms in zip(layout.epochs, ends, strict=True):
        if epoch.start_ms < complete_ms:
            yield OpenEpoch(*epoch)
        if complete_ms < end_ms:
            yield Epoch(max(epoch.start_ms, int(complete_ms)), epoch.buckets)
