"""Time to live: deletes the items of a table whose expiry time is over."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from heatsink.stores.dynamodb.wire.keys import Key, Schema

from .rows import Rows, StoredItem

TOO_OLD_S = 5 * 365 * 86_400.0  # DynamoDB does not delete items that expired so long ago
AT_ONCE = 500


class Walk:
    """Reads all rows of a table, some at a time, while the table serves requests.

    If a row is written in a part that the walk has already passed, the walk does not read it.
    """

    def __init__(self, rows: Rows, schema: Schema) -> None:
        self._rows = rows
        self._schema = schema
        self._after: Key | None = None
        self.is_done = False

    def step(self, count: int) -> Iterator[tuple[Key, StoredItem]]:
        """Return at most `count` further rows with their keys."""
        found = list(islice(self._rows.scan(after=self._after), count))
        self.is_done = len(found) < count
        for row in found:
            self._after = self._schema.key_of(self._schema.key_values(row.item))
            yield self._after, row


class Expiry:
    """Knows when the items of a table expire. They are deleted `lag_s` seconds after that."""

    def __init__(self, attribute: str, walk: Walk, lag_s: float) -> None:
        self.attribute = attribute
        self._walk: Walk | None = walk
        self._lag_s = lag_s
        self._expiries: list[tuple[float, Any]] = []

    def follow(self, key: Key, row: StoredItem | None) -> None:
        """Take note of an item that is written."""
        expires_s = None if row is None else self._expiry(row)
        if expires_s is not None:
            heappush(self._expiries, (expires_s, key))

    def over(self, rows: Rows, now_s: float) -> Iterator[tuple[Key, StoredItem]]:
        """Return items to delete: at most a few hundred, so that no request waits for long."""
        if self._walk is not None:
            for key, row in self._walk.step(AT_ONCE):
                self.follow(key, row)
            if self._walk.is_done:
                self._walk = None
        for _ in range(AT_ONCE):
            if not self._expiries or self._expiries[0][0] + self._lag_s > now_s:
                return
            expires_s, key = heappop(self._expiries)
            found = rows.get(key)
            if found is not None and self._expiry(found) == expires_s > now_s - TOO_OLD_S:
                yield key, found

    def _expiry(self, row: StoredItem) -> float | None:
        value = row.item.get(self.attribute)
        if value is None or "N" not in value:
            return None
        return float(Decimal(value["N"]))
