"""The heat of a store's partitions, apart from that of keys."""

from __future__ import annotations

import pytest

from heatsink.client.store_partitions import (
    KNOWN_MAX,
    StorePartitions,
    culprit_of,
    taken_apart,
)
from heatsink.detect.heat import KeyHeat, PartitionHeat, WindowHeat
from heatsink.detect.tracker import Tracker
from heatsink.spread.policy import BucketRules
from heatsink.stores.stores import Meter


def heat(units_s: float, throttles_s: float = 0.0) -> KeyHeat:
    return KeyHeat(units_s, units_s, 0.0, throttles_s, 0.0)


def test_partitions_are_reported_as_keys_are_and_taken_apart_from_them() -> None:
    tracker, meter = Tracker(), Meter()
    places = StorePartitions(tracker, meter)
    tracker.gather = places.count
    meter.notes.append(("room", 2_500, 3.0, 7))
    meter.notes.append(("room", 2_000, 2.0, 7))
    counted, _ = tracker.roll().hottest(10, 1)
    assert {key: each.write_units for key, each in counted.items()} == {"~partition/7": 5}
    assert places.place_of("room") == 7
    assert places.place_of("elsewhere") is None

    window = WindowHeat(1, 1.0, True, {"room": heat(5), "~partition/7": heat(9)}, 0.5)
    keys, partitions = taken_apart(window)
    assert keys == WindowHeat(1, 1.0, True, {"room": heat(5)}, 0.5)
    assert partitions == (PartitionHeat(7, 9.0),)


def test_a_window_without_partitions_stays_as_it_is() -> None:
    window = WindowHeat(1, 1.0, True, {"room": heat(5)}, 0.5)
    assert taken_apart(window) == (window, ())


def test_what_a_write_cost_beyond_its_body_is_heat_of_its_key() -> None:
    tracker, meter = Tracker(), Meter()
    tracker.gather = StorePartitions(tracker, meter).count
    meter.notes.append(("room%231#4", 1_020, 2.0, None))
    meter.notes.append(("room%231#4", 2_000, 2.0, None))
    counted, _ = tracker.roll().hottest(10, 1)
    assert {key: each.write_units for key, each in counted.items()} == {"room#1": 1}


def test_places_are_bounded() -> None:
    meter = Meter()
    places = StorePartitions(Tracker(), meter)
    for number in range(KNOWN_MAX + 1):
        meter.notes.append((str(number), 1, 1.0, 1))
    assert places.place_of("0") is None
    assert places.place_of(str(KNOWN_MAX)) == 1


@pytest.mark.parametrize(
    ("units_s", "throttles_s", "in_all", "culprit"),
    [
        (600, 0, 1_000, None),
        (600, 100, None, "key"),
        (600, 100, 1_100, "key"),
        (600, 100, 1_300, "partition"),
        (100, 100, 1_000, "partition"),
        (100, 100, 150, "key"),
    ],
)
def test_who_is_most_of_a_partition_makes_it_hot(
    units_s: float, throttles_s: float, in_all: float | None, culprit: str | None
) -> None:
    place = None if in_all is None else PartitionHeat(1, in_all)
    assert culprit_of(heat(units_s, throttles_s), place, BucketRules()) == culprit
