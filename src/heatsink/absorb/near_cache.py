"""What is kept of what was read: bounded, and the hot stay while the cold pass through.

S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi 2023). A new key takes a seat in a small queue; if it is read
again before it reaches the end it moves to the main queue, else it goes and only its name is
remembered for a while. A key whose name is still remembered when it comes back was no passer-by: it
goes to the main queue at once. So a scan flows through the small queue and evicts nothing else. A
hit only counts; all the work is done when something has to go.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from math import inf
from typing import Any

CAPACITY = 10_000
SMALL_SHARE = 0.1
CREDIT_MAX = 3  # hits that count: what was hot yesterday must not stay for ever
Weigh = Callable[[Any], int]


class Entry:
    """What a key has now. A new value is a new entry, which threads rely on.

    `aged_from_s` is when its load began, made a little older by chance, so that entries that were
    loaded together do not expire together. An entry without a value is infinitely old. Until
    `rests_until_s` nobody tries to load it anew, since the last one who tried failed.
    """

    __slots__ = ("aged_from_s", "hits", "is_main", "rests_until_s", "spent", "value", "weight")

    def __init__(self, value: Any, aged_from_s: float, weight: int, is_main: bool) -> None:
        self.value = value
        self.aged_from_s = aged_from_s
        self.weight = weight
        self.is_main = is_main
        self.rests_until_s = -inf
        self.hits = 0
        self.spent = 0

    def credit(self) -> int:
        return min(self.hits - self.spent, CREDIT_MAX)

    def spend(self, left: int) -> None:
        self.spent = self.hits - left


class NearCache:
    """`entries` is read directly on the hot path. Nothing here is safe from threads but that."""

    def __init__(self, capacity: int = CAPACITY, weigh: Weigh | None = None) -> None:
        self.entries: dict[str, Entry] = {}
        self.evictions = 0
        self.retired_hits = 0
        self._capacity = capacity
        self._weigh = weigh
        self._small: deque[str] = deque()
        self._main: deque[str] = deque()
        self._ghosts: OrderedDict[str, None] = OrderedDict()
        self._small_capacity = max(1, int(capacity * SMALL_SHARE))
        self._small_weight = 0
        self._weight = 0

    def put(self, key: str, value: Any, aged_from_s: float, is_hot: bool = False) -> None:
        """Keep a value, in the key's seat if it has one. What is known to be hot need not wait."""
        weight = 1 if self._weigh is None else max(int(self._weigh(value)), 1)
        if weight > self._capacity:
            self.forget(key)
            return
        seated = self.entries.get(key)
        if seated is None:
            self._seat(key, value, aged_from_s, weight, is_hot)
        else:
            seated.spent -= 1  # whoever had it loaded anew read it, too
            self._replace(key, seated, Entry(value, aged_from_s, weight, seated.is_main))
        while self._weight > self._capacity:
            self._make_room()

    def _seat(self, key: str, value: Any, aged_from_s: float, weight: int, is_hot: bool) -> None:
        came_back = self._ghosts.pop(key, self) is None
        entry = Entry(value, aged_from_s, weight, came_back or is_hot)
        (self._main if entry.is_main else self._small).append(key)
        self._weigh_in(entry, weight)
        self.entries[key] = entry

    def _replace(self, key: str, seated: Entry, entry: Entry) -> None:
        entry.hits, entry.spent = seated.hits, seated.spent
        self._weigh_in(seated, entry.weight - seated.weight)
        self.entries[key] = entry

    def _weigh_in(self, entry: Entry, change: int) -> None:
        self._weight += change
        if not entry.is_main:
            self._small_weight += change

    def _make_room(self) -> None:
        if self._small and (self._small_weight > self._small_capacity or not self._main):
            self._leave_small(self._small.popleft())
        else:
            self._leave_main(self._main.popleft())

    def _leave_small(self, key: str) -> None:
        entry = self.entries[key]
        if entry.credit():
            self._small_weight -= entry.weight
            entry.is_main = True
            entry.spend(0)
            self._main.append(key)
            return
        self._evict(key, entry)
        self._ghosts[key] = None
        while len(self._ghosts) > max(len(self.entries), 1):
            self._ghosts.popitem(last=False)

    def _leave_main(self, key: str) -> None:
        entry = self.entries[key]
        credit = entry.credit()
        if credit:
            entry.spend(credit - 1)
            self._main.append(key)
        else:
            self._evict(key, entry)

    def _evict(self, key: str, entry: Entry) -> None:
        del self.entries[key]
        self._weigh_in(entry, -entry.weight)
        self.evictions += 1
        self.retired_hits += entry.hits

    def credit(self, key: str, reads: int) -> None:
        """Reads that were no hits: of those who waited for the load."""
        entry = self.entries.get(key)
        if entry is not None:
            entry.spent -= reads

    def forget(self, key: str) -> None:
        """Drop the value. The seat stays: who was hot before a write is hot after it."""
        seated = self.entries.get(key)
        if seated is not None:
            self._replace(key, seated, Entry(None, -inf, 1, seated.is_main))

    def clear(self) -> None:
        for key in list(self.entries):
            self.forget(key)

    @property
    def hits(self) -> int:
        return self.retired_hits + sum(entry.hits for entry in list(self.entries.values()))
