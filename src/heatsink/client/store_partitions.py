"""Heat by the store's own partitions, where a store tells in which of them a row lies.

It goes the way of the heat of keys, under names that no caller can use, and is taken apart from it
before anything is decided about keys. DynamoDB does not tell; our engine does.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from heatsink.detect.heat import KeyHeat, PartitionHeat, WindowHeat, write_units
from heatsink.detect.tracker import Tracker
from heatsink.keys import key_of
from heatsink.stores.stores import Meter

PREFIX = "~partition/"


class StorePartitions:
    """Where this process's latest writes went, and what they cost beyond what was foreseen."""

    def __init__(self, tracker: Tracker, meter: Meter) -> None:
        self._tracker = tracker
        self._notes = meter.notes

    def count(self) -> None:
        """Take away what the store has noted since."""
        notes, places, units_in = self._notes, dict[str, int](), Counter[int]()
        while notes:
            name, body_bytes, units, partition = notes.popleft()
            if units > 1:
                self._count_surplus(name, int(units) - write_units(1, body_bytes))
            if partition is not None:
                units_in[partition] += int(units)
                places[name] = partition
        for partition, taken in units_in.items():
            self._tracker.record(f"{PREFIX}{partition}", taken)
        if places:
            self._tracker.note_places({key_of(name)[0]: at for name, at in places.items()})

    def _count_surplus(self, name: str, units: int) -> None:
        """Names and stamps weigh too: a body just under a kilobyte costs two units."""
        if units > 0:
            self._tracker.record_units(key_of(name)[0], units)


def taken_apart(window: WindowHeat) -> tuple[WindowHeat, tuple[PartitionHeat, ...]]:
    """The heat of keys, and that of partitions, the hottest first."""
    numbers = {key: int(key[len(PREFIX) :]) for key in window.keys if key.startswith(PREFIX)}
    partitions = [
        PartitionHeat(number, window.keys[key].write_units_s) for key, number in numbers.items()
    ]
    partitions.sort(key=lambda heat: -heat.write_units_s)
    units_in = {each.partition: each.write_units_s for each in partitions}
    keys = {
        key: _placed(heat, window, units_in)
        for key, heat in window.keys.items()
        if key not in numbers
    }
    return replace(window, keys=keys), tuple(partitions)


def _placed(heat: KeyHeat, window: WindowHeat, units_in: dict[int, float]) -> KeyHeat:
    """With what its partition took: no more than was left unsaid, if nothing was said of it."""
    if heat.partition is None or not window.complete:
        return heat
    in_all_s = units_in.get(heat.partition, window.unreported_s)
    return replace(heat, partition_units_s=in_all_s)
