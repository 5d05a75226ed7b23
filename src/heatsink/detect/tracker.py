"""Counts what this process does to each key. No I/O, no sweep over all keys, bounded memory."""

from __future__ import annotations

from threading import Lock

from .heat import UNIT_BYTES, Heat
from .top_keys import ALARM, BYTES, READS, THROTTLES, UNITS, WRITES, Entry, TopKeys, heat_of

CAPACITY = 8_192
ALARM_UNITS = 800
BUCKETS_MAX = 16_384


class Tracker:
    """The hot path calls `record`, from any thread; the reporter takes a window's counts away."""

    def __init__(self, capacity: int = CAPACITY, alarm_units: int = ALARM_UNITS) -> None:
        self._capacity = capacity
        self._alarm_units = alarm_units
        self._lock = Lock()
        self._top = TopKeys(capacity, alarm_units)
        self._entries = self._top.entries
        self._alarmed: set[str] = set()
        self.bucket_units: dict[str, int] = {}

    def record(self, key: str, writes: int = 1, written_bytes: int = 0) -> None:
        """Count writes of one size. Well under a microsecond: see benchmarks."""
        units = (
            writes if written_bytes <= UNIT_BYTES else max(writes, -(-written_bytes // UNIT_BYTES))
        )
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._top.admit(key)
            entry[WRITES] += writes
            entry[UNITS] += units
            entry[BYTES] += written_bytes
            if entry[UNITS] >= entry[ALARM]:
                self._raise_alarm(key, entry)

    def record_units(self, key: str, units: int) -> None:
        """Count what writes cost beyond what their bodies said, as the store told afterwards."""
        self._count(key, UNITS, units)

    def record_bucket(self, partition: str, written_bytes: int = 0) -> None:
        """Count a write to one bucket of a spread key: a picture for people, decides nothing."""
        counts = self.bucket_units
        counts[partition] = counts.get(partition, 0) + max(1, -(-written_bytes // UNIT_BYTES))
        if len(counts) > BUCKETS_MAX:
            counts.clear()

    def record_read(self, key: str, reads: int = 1) -> None:
        self._count(key, READS, reads)

    def record_throttle(self, key: str, throttles: int = 1) -> None:
        self._count(key, THROTTLES, throttles)

    def _count(self, key: str, what: int, amount: int) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._top.admit(key)
            entry[what] += amount

    def _raise_alarm(self, key: str, entry: Entry) -> None:
        """Once per doubling, so that a key on the rise is reported early but not often."""
        entry[ALARM] = 2 * entry[UNITS]
        self._alarmed.add(key)

    def alarms(self) -> dict[str, Heat]:
        """The keys that raced past a limit since this was last asked, with their counts so far."""
        if not self._alarmed:
            return {}
        with self._lock:
            alarmed, self._alarmed = self._alarmed, set()
            return {key: heat_of(self._entries[key]) for key in alarmed if key in self._entries}

    def roll(self) -> TopKeys:
        """End the window: its counts, which nobody changes any more."""
        with self._lock:
            ended, self._top = self._top, TopKeys(self._capacity, self._alarm_units)
            self._entries = self._top.entries
            self._alarmed = set()
        return ended
