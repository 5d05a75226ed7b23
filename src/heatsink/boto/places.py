"""Where an item of a table is: from its partition key, its sort key, and the registry's view."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from heatsink.errors import InvalidId
from heatsink.hashing import seeded_hash
from heatsink.registry.layout import COLD, Epoch, Layout

from .adoption import Adoption
from .background import Background
from .names import comparable, hashed_bytes, registry_key
from .times import TimeOf, careful

SLACK_MS = 1_000  # `…:59Z` sorts after `…:59.500Z`: order and time agree to the second only


class Places:
    """Safe from threads: the view is read horizon first, so what follows is never older."""

    def __init__(self, table: str, time_of: TimeOf, background: Background) -> None:
        self.time_of = careful(time_of)
        self._table = table
        self._background = background
        self._view = background.view
        self._hash = seeded_hash(background.registry.meta.seed)
        self._adoption = Adoption(table, background.view)

    def registry_key(self, key: str) -> str:
        return registry_key(self._table, key)

    def bucket(self, key: str, sort: Any) -> int | None:
        """The one bucket in which an item is written; None is the bare key."""
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
        """Where an item may be, the better place first: its bucket, then a stray's bare key."""
        time_ms = self.time_of(sort)
        if time_ms >= self._view.horizon_ms:
            self._background.renew()
        if time_ms >= self._view.horizon_ms:
            return [None]  # nobody with Heatsink can have placed it yet
        bucket = self._bucket(key, sort, time_ms)
        may_stray = bucket is not None and time_ms < self._adoption.complete_ms
        return [bucket, None] if may_stray else [bucket]

    def span_of(self, lowest: Any, highest: Any) -> tuple[int | None, int | None]:
        """The time that a range of sort keys may cover."""
        from_ms, to_ms = self._bound(lowest), self._bound(highest)
        return (
            None if from_ms is None else from_ms - SLACK_MS,
            None if to_ms is None else to_ms + SLACK_MS,
        )

    def _bound(self, value: Any) -> int | None:
        """A bound need not be a whole sort key: one without a time bounds no time."""
        try:
            return None if value is None else self.time_of(value)
        except InvalidId:
            return None

    def passes_horizon(self, to_ms: int | None) -> bool:
        """Whether epochs may overlap the range that the view does not know."""
        return to_ms is None or to_ms >= self._view.horizon_ms

    def plan(self, key: str, span: tuple[int | None, int | None]) -> Plan:
        layout = self._view.layout(self.registry_key(key))
        return Plan(layout, span, self._adoption.complete_ms)

    def plan_by(self, layout: Layout, span: tuple[int | None, int | None]) -> Plan:
        return Plan(layout, span, self._adoption.complete_ms)


class OpenEpoch(Epoch):
    """An epoch in which programs without Heatsink wrote too: under the bare key."""

    def partitions(self, key: str) -> Iterator[str]:
        yield from super().partitions(key)
        if self.buckets > 1:
            yield from COLD.partitions(key)


class Plan(Layout):
    """A layout for one query: the epochs of its span, with strays until adoption is complete."""

    __slots__ = ("_complete_ms", "_span")

    def __init__(
        self, layout: Layout, span: tuple[int | None, int | None], complete_ms: float
    ) -> None:
        super().__init__()
        self._span = span
        self._complete_ms = complete_ms
        self.epochs = tuple(_split(layout, complete_ms))

    def overlapping(self, from_ms: int | None, to_ms: int | None) -> tuple[Epoch, ...]:  # noqa: ARG002
        """By the query's own span: bounds of a query are no ids, and have some slack."""
        return super().overlapping(*self._span)

    def counts_bare(self, time_ms: int) -> bool:
        """Whether a row of this time under the bare key is one of the key's items."""
        return self.epoch_at(time_ms).buckets == 1 or time_ms < self._complete_ms


def _split(layout: Layout, complete_ms: float) -> Iterator[Epoch]:
    ends = [*(epoch.start_ms for epoch in layout.later), float("inf")]
    for epoch, end_ms in zip(layout.epochs, ends, strict=True):
        if epoch.start_ms < complete_ms:
            yield OpenEpoch(*epoch)
        if complete_ms < end_ms:
            yield Epoch(max(epoch.start_ms, int(complete_ms)), epoch.buckets)
