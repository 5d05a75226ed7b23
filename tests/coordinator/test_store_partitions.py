"""The heat of a store's partitions, apart from that of keys."""

from __future__ import annotations

from msgspec.structs import replace

from heatsink.coordinator.keys import StorePartitions, taken_apart
from heatsink.heat.count import NO_KEYS, Tracker
from heatsink.heat.heat import NOWHERE, KeyHeat, PartitionHeat, WindowHeat
from heatsink.stores.stores import ConsumptionNotes


def heat(units_s: float, throttles_s: float = 0.0) -> KeyHeat:
    return KeyHeat(units_s, units_s, 0.0, throttles_s, 0.0)


def test_partitions_are_reported_as_keys_are_and_taken_apart_from_them() -> None:
    meter = ConsumptionNotes()
    tracker = Tracker(gather=StorePartitions(meter).count)
    meter.notes.append(("room", 2_500, 3.0, 7))
    meter.notes.append(("room", 2_000, 2.0, 7))
    counted = tracker.roll().listed(NO_KEYS, tracker.rng)
    assert {key: each.write_units for key, each in counted.items()} == {"\0partition:7": 5}

    window = WindowHeat(1, 1.0, True, {"room": heat(5), "\0partition:7": heat(9)}, 0.5)
    keys, partitions = taken_apart(window)
    assert keys == WindowHeat(1, 1.0, True, {"room": heat(5)}, 0.5)
    assert partitions == (PartitionHeat(7, 9.0),)


def test_a_window_without_partitions_stays_as_it_is() -> None:
    window = WindowHeat(1, 1.0, True, {"room": heat(5)}, 0.5)
    assert taken_apart(window) == (window, ())


def test_what_a_write_cost_beyond_its_body_is_heat_of_its_key() -> None:
    meter = ConsumptionNotes()
    tracker = Tracker(gather=StorePartitions(meter).count)
    meter.notes.append(("room%231#4", 1_020, 2.0, None))
    meter.notes.append(("room%231#4", 2_000, 2.0, None))
    counted = tracker.roll().listed(NO_KEYS, tracker.rng)
    assert {key: each.write_units for key, each in counted.items()} == {"room#1": 1}


def test_a_key_is_known_by_the_partition_that_took_its_latest_row() -> None:
    meter = ConsumptionNotes()
    tracker = Tracker(gather=StorePartitions(meter).count)
    for key in ("room#1", "elsewhere"):
        tracker.record(key)
    meter.notes.append(("room%231", 10, 1.0, 7))
    meter.notes.append(("never recorded", 10, 1.0, 8))
    counted = tracker.roll().listed(NO_KEYS, tracker.rng)
    assert {key: each.place for key, each in counted.items()} == {
        "room#1": 7,
        "elsewhere": NOWHERE,
        "\0partition:7": NOWHERE,
        "\0partition:8": NOWHERE,
    }


def test_a_key_comes_with_what_its_partition_took_at_most() -> None:
    said, unsaid = replace(heat(5), partition=7), replace(heat(5), partition=8)
    keys = {"said": said, "unsaid": unsaid, "nowhere": heat(5), "\0partition:7": heat(9)}
    for complete, in_all in ((True, [9.0, 0.5, None]), (False, [None, None, None])):
        window, _ = taken_apart(WindowHeat(1, 1.0, complete, keys, 0.5))
        assert [each.partition_units_s for each in window.keys.values()] == in_all
