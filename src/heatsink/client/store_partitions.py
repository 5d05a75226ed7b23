"""Heat by the store's own partitions, where a store tells in which of them a row lies.

It goes the way of the heat of keys, under names that no caller can use, and is taken apart from it
before anything is decided about keys. DynamoDB does not tell; our engine does.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from heatsink.detect.heat import KeyHeat, PartitionHeat, WindowHeat, write_units
from heatsink.detect.tracker import Tracker
from heatsink.keys import escape, key_of
from heatsink.spread.policy import BucketRules, Culprit, suffers_from
from heatsink.stores.stores import Meter

PREFIX = "~partition/"
KNOWN_MAX = 16_384
MOST = 0.5


class StorePartitions:
    """Where this process's latest writes went, and what they cost beyond what was foreseen."""

    def __init__(self, tracker: Tracker, meter: Meter) -> None:
        self._tracker = tracker
        self._notes = meter.notes
        self._places: dict[str, int] = {}

    def count(self) -> None:
        """Take away what the store has noted since."""
        notes, places, units_in = self._notes, self._places, Counter[int]()
        while notes:
            name, body_bytes, units, partition = notes.popleft()
            if units > 1:
                self._count_surplus(name, int(units) - write_units(1, body_bytes))
            if partition is not None:
                units_in[partition] += int(units)
                if len(places) >= KNOWN_MAX:
                    places.clear()
                places[name] = partition
        for partition, taken in units_in.items():
            self._tracker.record(f"{PREFIX}{partition}", taken)

    def _count_surplus(self, name: str, units: int) -> None:
        """Names and stamps weigh too: a body just under a kilobyte costs two units."""
        if units > 0:
            self._tracker.record_units(key_of(name)[0], units)

    def place_of(self, key: str) -> int | None:
        """For a key that has one bucket."""
        self.count()
        return self._places.get(escape(key))


def taken_apart(window: WindowHeat) -> tuple[WindowHeat, tuple[PartitionHeat, ...]]:
    """The heat of keys, and that of partitions, the hottest first."""
    numbers = {key: int(key[len(PREFIX) :]) for key in window.keys if key.startswith(PREFIX)}
    if not numbers:
        return window, ()
    keys = {key: heat for key, heat in window.keys.items() if key not in numbers}
    partitions = [
        PartitionHeat(number, window.keys[key].write_units_s) for key, number in numbers.items()
    ]
    partitions.sort(key=lambda heat: -heat.write_units_s)
    return replace(window, keys=keys), tuple(partitions)


def culprit_of(heat: KeyHeat, place: PartitionHeat | None, rules: BucketRules) -> Culprit | None:
    """Whose heat a throttled key meets; where the partition's is known, whoever is most of it."""
    culprit = suffers_from(heat, rules)
    if culprit is None or place is None:
        return culprit
    return "key" if heat.write_units_s >= MOST * place.write_units_s else "partition"
