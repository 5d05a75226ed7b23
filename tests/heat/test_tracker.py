from __future__ import annotations

from collections import Counter
from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from heatsink.heat.count import TopKeys, Tracker
from heatsink.heat.heat import write_units

streams = st.lists(st.integers(0, 30).map(lambda n: f"k{n * n // 9}"), max_size=400)


@given(streams, st.integers(1, 8))
def test_every_key_above_the_floor_is_kept_with_a_true_bound(stream: list[str], size: int) -> None:
    tracker = Tracker(capacity=size)
    for key in stream:
        tracker.record(key)
    top, true = tracker.roll(), Counter(stream)
    assert top.floor <= len(stream) / size
    for key, count in true.items():
        if key in top.entries:
            entry = top.entries[key]
            assert entry[0] <= count <= entry[0] + entry[5]
        else:
            assert count <= top.floor


@given(streams, st.integers(1, 8), st.integers(1, 10), st.integers(1, 20))
def test_what_is_not_listed_is_bounded(stream: list[str], size: int, most: int, floor: int) -> None:
    tracker = Tracker(capacity=size)
    for key in stream:
        tracker.record(key)
    listed, unreported = tracker.roll().hottest(most, floor)
    assert len(listed) <= most
    for key, count in Counter(stream).items():
        if key in listed:
            heat = listed[key]
            assert heat.writes <= count <= heat.writes + heat.error
        else:
            assert count <= unreported


def test_memory_is_bounded_by_twice_the_capacity() -> None:
    tracker = Tracker(capacity=100)
    for n in range(10_000):
        tracker.record(f"key {n}")
    assert len(tracker.roll().entries) <= 200


def test_large_writes_count_by_the_kilobyte() -> None:
    tracker = Tracker()
    tracker.record("k", 1, 0)
    tracker.record("k", 1, 1024)
    tracker.record("k", 1, 1025)
    tracker.record("k", 1, 10 * 1024)
    heat = tracker.roll().hottest(1, 1)[0]["k"]
    assert (heat.writes, heat.write_units, heat.write_bytes) == (4, 14, 12_289)
    assert write_units(3, 10) == 3


def test_reads_and_throttles_are_told_apart() -> None:
    tracker = Tracker()
    tracker.record_read("k", 3)
    tracker.record_throttle("k")
    heat = tracker.roll().hottest(1, 1)[0]["k"]
    assert (heat.writes, heat.reads, heat.throttles) == (0, 3, 1)


def test_a_key_that_races_past_the_limit_raises_an_alarm_at_each_doubling() -> None:
    tracker = Tracker(alarm_units=10)
    alarms = []
    for n in range(1, 50):
        tracker.record("k")
        if tracker.alarms():
            alarms.append(n)
    assert alarms == [10, 20, 40]


def test_a_new_window_starts_from_nothing() -> None:
    tracker = Tracker(alarm_units=2)
    tracker.record("k", 5)
    assert tracker.roll().entries["k"][0] == 5
    assert tracker.alarms() == {}
    assert tracker.roll().entries == {}


def test_threads_lose_no_count() -> None:
    tracker = Tracker()

    def work() -> None:
        for _ in range(20_000):
            tracker.record("k", 1, 100)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tracker.roll().entries["k"][:3] == [80_000, 80_000, 8_000_000]


def test_an_empty_table_lists_nothing() -> None:
    assert TopKeys(4, 10).hottest(5, 3) == ({}, 2)
