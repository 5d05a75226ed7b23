"""Count this process's writes, reads and throttles per key: no I/O, bounded memory.

A write only appends a note (key, writes, bytes, bucket) to a list. Later, a loop counts many notes
at a time. This is several times cheaper than counting each write on its own: between two requests,
the CPU caches are cold.

`TopKeys` keeps the costliest keys (Space-Saving; Metwally, Agrawal, El Abbadi 2005), but evicts in
batches: the table grows to twice its capacity, then the cheaper half is dropped. An evicted key had
a cost of at most `floor`. So if a key is counted again after its eviction, up to `floor` of its
cost may be missing. `floor` is at most the total cost divided by the capacity. Every key that cost
more than `floor` is in the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from threading import Lock

from .heat import NOWHERE, UNIT_BYTES, Heat

WRITES, UNITS, BYTES, READS, THROTTLES, ERROR, PLACE, ALARM = range(8)
Entry = list[int]
CAPACITY = 8_192
ALARM_UNITS = 800
BUCKETS_MAX = 16_384
NOTES_MAX = 256
NOTES_KEPT = 65_536
Note = tuple[str, int, int, str | None]


class TopKeys:
    """Counts of the costliest keys. `entries` is public, since `Tracker` updates it directly."""

    def __init__(self, capacity: int, alarm_units: int) -> None:
        self.entries: dict[str, Entry] = {}
        self.floor = 0
        self._capacity = capacity
        self._alarm_units = alarm_units

    def admit(self, key: str) -> Entry:
        """Add and return an entry for a key that is not in the table."""
        if len(self.entries) >= 2 * self._capacity:
            self._let_go()
        entry = self.entries[key] = [0, 0, 0, 0, 0, self.floor, NOWHERE, self._alarm_units]
        return entry

    def _let_go(self) -> None:
        """Raise `floor` so that at most `capacity` keys cost more, and drop all other keys."""
        costs = sorted(map(cost_at_most, self.entries.values()), reverse=True)
        self.floor = floor = max(self.floor, costs[self._capacity])
        for key in [key for key, entry in self.entries.items() if cost_at_most(entry) <= floor]:
            del self.entries[key]

    def hottest(self, count: int, floor: int) -> tuple[dict[str, Heat], int]:
        """Up to `count` keys that may cost `floor` or more, the costliest first.

        The second value is an upper bound on the cost of each key that is not in the result.
        """
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


class Tracker:
    """The counts of the current window. Any thread may call `record`; `Reporter` ends a window."""

    def __init__(
        self,
        capacity: int = CAPACITY,
        alarm_units: int = ALARM_UNITS,
        gather: Callable[[Tracker], None] | None = None,
    ) -> None:
        """`gather` is called before counts are read.

        It records costs that the store has reported.
        """
        self._capacity = capacity
        self._alarm_units = alarm_units
        self._gather = gather
        self._lock = Lock()
        self._top = TopKeys(capacity, alarm_units)
        self._entries = self._top.entries
        self._alarmed: set[str] = set()
        self._bucket_units: dict[str, int] = {}
        self._notes: deque[Note] = deque(maxlen=NOTES_KEPT)  # any thread may add while one counts
        self.note = self._notes.append
        """Like `record`, but faster. It takes the arguments of `record` as one tuple, the note.

        Notes are counted when `alarms` or `roll` is called, ten times a second. If neither is
        called for long, the oldest notes are dropped.
        """

    def adopt(self, alarm_units: int) -> None:
        """Set how many units a key must reach to be reported before its window ends.

        The value applies from the next window on.
        """
        self._alarm_units = alarm_units

    def record(
        self, key: str, writes: int = 1, written_bytes: int = 0, bucket: str | None = None
    ) -> None:
        """Count `writes` writes of a key, which have `written_bytes` together.

        A call takes well under a microsecond. For a key with several buckets, `bucket` is the
        bucket written to; it is used only for display.
        """
        notes = self._notes
        notes.append((key, writes, written_bytes, bucket))
        if len(notes) >= NOTES_MAX:
            with self._lock:
                self._count_notes()

    def _count_notes(self) -> None:
        notes, entries, admit = self._notes, self._entries, self._top.admit
        bucket_units = self._bucket_units
        while notes:
            key, writes, written_bytes, bucket = notes.popleft()
            units = writes
            if written_bytes > UNIT_BYTES:
                units = max(writes, -(-written_bytes // UNIT_BYTES))
            entry = entries.get(key)
            if entry is None:
                entry = admit(key)
            entry[WRITES] += writes
            entry[UNITS] += units
            entry[BYTES] += written_bytes
            if entry[UNITS] >= entry[ALARM]:
                self._raise_alarm(key, entry)
            if bucket is not None:
                bucket_units[bucket] = bucket_units.get(bucket, 0) + units
        if len(bucket_units) > BUCKETS_MAX:
            bucket_units.clear()

    @property
    def bucket_units(self) -> dict[str, int]:
        """The write units that this process has written to each bucket of spread keys."""
        with self._lock:
            self._count_notes()
        return self._bucket_units

    def record_units(self, key: str, units: int) -> None:
        """Add write units to a key: the cost that the store reported minus the estimated cost."""
        self._count(key, UNITS, units)

    def record_read(self, key: str, reads: int = 1) -> None:
        self._count(key, READS, reads)

    def record_throttle(self, key: str, throttles: int = 1) -> None:
        self._count(key, THROTTLES, throttles)

    def note_places(self, places: Mapping[str, int]) -> None:
        """Record, for each key, the physical partition in which the store put its latest row."""
        with self._lock:
            self._count_notes()
            for key, place in places.items():
                entry = self._entries.get(key)
                if entry is not None:
                    entry[PLACE] = place

    def _count(self, key: str, what: int, amount: int) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._top.admit(key)
            entry[what] += amount

    def _raise_alarm(self, key: str, entry: Entry) -> None:
        """Select a key for an early report.

        The next early report of the key is due when its cost has doubled.
        """
        entry[ALARM] = 2 * entry[UNITS]
        self._alarmed.add(key)

    def alarms(self) -> dict[str, Heat]:
        """The keys that became due for an early report since the last call, with their counts."""
        if self._gather is not None:
            self._gather(self)
        with self._lock:
            self._count_notes()
            alarmed, self._alarmed = self._alarmed, set()
            return {key: heat_of(self._entries[key]) for key in alarmed if key in self._entries}

    def roll(self) -> TopKeys:
        """End the window, and return its final counts."""
        if self._gather is not None:
            self._gather(self)
        with self._lock:
            self._count_notes()
            ended, self._top = self._top, TopKeys(self._capacity, self._alarm_units)
            self._entries = self._top.entries
            self._alarmed = set()
        return ended
