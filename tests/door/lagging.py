"""A global index that lags, as DynamoDB's may: each entry follows its item after its own delay.

Changes of the entries of one value arrive in their order. An item that moves from one value to
another changes two entries, and either may change first. So for a while the item has two entries,
or none. While `Delays.are_long`, a few changes take hours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

from heatsink.emulator import indexes
from heatsink.emulator.rows import Rows, StoredItem
from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb.wire.keys import Key, Part

LONG = 0.05
LONG_S = 10_000.0  # less than a day, after which queries may forget a bucket
USUAL_S = (0.0, 3.0, 30.0)


class Delays:
    """Draws the delays of all indexes of a table, and knows which items' entries are late.

    With `most_s` of 0, no index lags.
    """

    def __init__(self, rng: Random, most_s: float) -> None:
        self.most_s = most_s
        self.are_long = False
        self.indexes: list[Scattered] = []
        self._rng = rng

    def draw(self) -> float:
        if self.are_long and self.most_s and self._rng.random() < LONG:
            return self._rng.uniform(0.0, LONG_S)
        return self._rng.uniform(0.0, self.most_s)

    def late(self) -> set[str]:
        """Return the sort keys of the items whose entries have not all arrived."""
        return {sort for index in self.indexes for sort in index.late()}

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Let all global indexes that are made meanwhile lag like this."""

        def made(rows: Rows, _: float, clock: Clock, __: object = None) -> Scattered:
            self.indexes.append(Scattered(rows, clock, self))
            return self.indexes[-1]

        with patch.object(indexes, "_Lagging", made):
            yield


class Scattered:
    """The entries of one index. Those of one value keep their order."""

    def __init__(self, rows: Rows, clock: Clock, delays: Delays) -> None:
        self._rows = rows
        self._clock = clock
        self._delays = delays
        self._coming: dict[Part, deque[tuple[float, Key, StoredItem | None]]] = {}

    def send(self, removed: Key | None, added: Key | None, row: StoredItem | None) -> None:
        for key, new in ((removed, None), (added, row)):
            if key is not None:
                coming = self._coming.setdefault(key.hash, deque())
                due_s = self._clock.monotonic_s() + self._delays.draw()
                coming.append((max(due_s, coming[-1][0] if coming else 0.0), key, new))

    def settled(self) -> Rows:
        """Return the rows after all changes whose delay is over."""
        now_s = self._clock.monotonic_s()
        for coming in self._coming.values():
            while coming and coming[0][0] <= now_s:
                _, key, row = coming.popleft()
                if row is None:
                    self._rows.remove(key)
                else:
                    self._rows.put(key, row)
        return self._rows

    @property
    def is_settled(self) -> bool:
        return not any(self._coming.values())

    def late(self) -> Iterator[str]:
        self.settled()
        for coming in self._coming.values():
            for _, key, _ in coming:
                assert isinstance(key.sort, tuple)
                yield str(key.sort[-1])
