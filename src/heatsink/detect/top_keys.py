"""The costliest keys of a stream, in bounded memory, with a bound on the error.

Space-Saving (Metwally, Agrawal, El Abbadi 2005) with its evictions done in batches: the table grows
to twice its capacity, then the cheaper keys go. A key that was let go had at most `floor`; a key
that comes (back) later may therefore have had `floor` before. The floor is at most the stream's
total cost divided by the capacity, and every key that cost more than the floor is in the table.
"""

from __future__ import annotations

from .heat import NOWHERE, Heat

WRITES, UNITS, BYTES, READS, THROTTLES, ERROR, PLACE, ALARM = range(8)
Entry = list[int]


class TopKeys:
    """Counters of keys. `entries` is updated in place by the tracker, which is why it is public."""

    def __init__(self, capacity: int, alarm_units: int) -> None:
        self.entries: dict[str, Entry] = {}
        self.floor = 0
        self._capacity = capacity
        self._alarm_units = alarm_units

    def admit(self, key: str) -> Entry:
        """A fresh entry for a key that is not in the table."""
        if len(self.entries) >= 2 * self._capacity:
            self._let_go()
        entry = self.entries[key] = [0, 0, 0, 0, 0, self.floor, NOWHERE, self._alarm_units]
        return entry

    def _let_go(self) -> None:
        """Raise the floor to where the table is full, and drop what does not rise above it."""
        costs = sorted(map(cost_at_most, self.entries.values()), reverse=True)
        self.floor = floor = max(self.floor, costs[self._capacity])
        for key in [key for key, entry in self.entries.items() if cost_at_most(entry) <= floor]:
            del self.entries[key]

    def hottest(self, count: int, floor: int) -> tuple[dict[str, Heat], int]:
        """At most `count` keys that may cost `floor` or more, and a bound on all the others."""
        warm = [item for item in self.entries.items() if cost_at_most(item[1]) >= floor]
        warm.sort(key=_cost_of_item, reverse=True)
        left_out = cost_at_most(warm[count][1]) if len(warm) > count else 0
        listed = {key: heat_of(entry) for key, entry in warm[:count]}
        return listed, max(left_out, self.floor, floor - 1)


def cost_at_most(entry: Entry) -> int:
    return entry[UNITS] + entry[READS] + entry[THROTTLES] + entry[ERROR]


def _cost_of_item(item: tuple[str, Entry]) -> int:
    return cost_at_most(item[1])


def heat_of(entry: Entry) -> Heat:
    return Heat(*entry[:ALARM])
