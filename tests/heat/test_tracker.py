from __future__ import annotations

from collections import Counter
from random import Random
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.heat.count import NO_KEYS, SAMPLES_MAX, TopKeys, Tracker, mark_of, thinned
from heatsink.heat.heat import Heat, write_units

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


@given(streams, st.integers(1, 8))
def test_a_key_that_cost_tau_is_listed_exactly(stream: list[str], tau: int) -> None:
    tracker = sampling(tau, seed=1)
    for key in stream:
        tracker.record(key)
    listed = tracker.roll().listed(NO_KEYS, tracker.rng)
    for key, count in Counter(stream).items():
        if count >= tau:
            assert (listed[key].writes, listed[key].tau) == (count, 0)
        elif key in listed:
            assert listed[key].writes % tau == 0


def sampling(tau: int, seed: int, capacity: int = 8_192) -> Tracker:
    tracker = Tracker(capacity, rng=Random(seed))
    tracker.sample(tau, tau, NO_KEYS)
    tracker.roll()
    return tracker


def estimates(tau: int, capacity: int, counts: dict[str, int], rounds: int) -> Counter[str]:
    """The sum of all estimates of each key, over many windows."""
    tracker, total = sampling(tau, seed=7, capacity=capacity), Counter[str]()
    for _ in range(rounds):
        for key, count in counts.items():
            for _ in range(count):
                tracker.record(key)
        for key, heat in tracker.roll().listed(NO_KEYS, tracker.rng).items():
            total[key] += heat.write_units
    return total


@pytest.mark.parametrize("capacity", [8_192, 4])
def test_samples_have_no_bias_whatever_the_table_evicts(capacity: int) -> None:
    """With a table of 4 keys, 60 keys push each other out, and all are still estimated rightly."""
    counts = {f"cold {n}": 1 for n in range(60)} | {"warm": 5, "hot": 40}
    rounds = 300
    total = estimates(16, capacity, counts, rounds)
    cold = sum(count for key, count in total.items() if key.startswith("cold"))
    deviation = (60 * rounds * 16) ** 0.5
    assert abs(cold - 60 * rounds) < 4 * deviation
    assert abs(total["warm"] - 5 * rounds) < 4 * (5 * rounds * 16) ** 0.5
    assert abs(total["hot"] - 40 * rounds) <= (0.05 * 40 * rounds if capacity == 4 else 0)


def test_a_watched_key_is_reported_by_its_own_tau() -> None:
    tracker = sampling(16, seed=3)
    watched = {mark_of("exact"): 1, mark_of("hot"): 4}
    found: list[Heat | None] = []
    for _ in range(400):
        tracker.record("exact", 2)
        tracker.record("hot", 2)
        listed = tracker.roll().listed(watched, tracker.rng)
        assert listed["exact"].writes == 2
        found.append(listed.get("hot"))
    seen = [heat for heat in found if heat is not None]
    assert {heat.writes for heat in seen} == {4}
    assert 140 < len(seen) < 260


def test_reads_and_throttles_are_sampled_too() -> None:
    tracker, reads, throttles = sampling(8, seed=5), 0, 0
    for _ in range(500):
        for _ in range(3):
            tracker.record_read("k")
        tracker.record_throttle("k")
        for heat in tracker.roll().listed(NO_KEYS, tracker.rng).values():
            reads += heat.reads
            throttles += heat.throttles
    assert abs(reads - 1_500) < 4 * (1_500 * 8) ** 0.5
    assert abs(throttles - 500) < 4 * (500 * 8) ** 0.5
    assert (tracker.units, tracker.reads) == (1, 3)


@given(st.dictionaries(st.integers(0, 50).map(str), st.integers(1, 500)), st.integers(1, 20))
def test_thinned_reports_keep_the_hottest_keys_exactly(counts: dict[str, int], most: int) -> None:
    heats = {key: Heat(count, count) for key, count in counts.items()}
    kept, tau = thinned(heats, most, Random(1))
    assert len(counts) > most or kept == heats
    for key, heat in kept.items():
        assert heat.write_units == (counts[key] if heat.tau == 0 else pytest.approx(tau, abs=1))


def test_thinning_has_no_bias() -> None:
    rng, total = Random(2), 0
    heats = {str(n): Heat(n, n) for n in range(1, 101)}
    for _ in range(400):
        total += sum(heat.write_units for heat in thinned(heats, 20, rng)[0].values())
    assert total / 400 == pytest.approx(5_050, rel=0.02)


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
    heat = tracker.roll().listed(NO_KEYS, tracker.rng)["k"]
    assert (heat.writes, heat.write_units, heat.write_bytes) == (4, 14, 12_289)
    assert write_units(3, 10) == 3


def test_reads_and_throttles_are_told_apart() -> None:
    tracker = Tracker()
    tracker.record_read("k", 3)
    tracker.record_throttle("k")
    heat = tracker.roll().listed(NO_KEYS, tracker.rng)["k"]
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
    assert TopKeys(4, 10).listed(NO_KEYS, Random(1)) == {}


def test_samples_of_many_keys_stay_bounded_and_unbiased() -> None:
    tracker = sampling(2, seed=9)
    for n in range(60_000):
        tracker.record(f"key {n}")
    top = tracker.roll()
    assert len(top.samples) <= SAMPLES_MAX
    assert sum(sample[1] for sample in top.samples.values()) == pytest.approx(60_000, rel=0.05)


@pytest.mark.parametrize("first_seen_s", [0.1, 0.7])
def test_an_evicted_key_counts_precisely_once_it_is_watched(first_seen_s: float) -> None:
    """It is watched from 0.6 s on, in a window of 1 s: 40 writes since then stand for 100."""
    tracker, others = sampling(16, seed=11, capacity=2), iter(range(10**6))
    for tenth in range(10):
        if tenth == 6:
            tracker.watch({mark_of("rare"): 1}, at_s=0.6)
        for _ in range(10):
            if tenth >= 10 * first_seen_s:
                tracker.record("rare")
            for _ in range(4):
                tracker.record(f"other {next(others)}")
            tracker.record("frequent", 100)
    heat = tracker.roll().listed({mark_of("rare"): 1}, tracker.rng, 1.0)["rare"]
    expected = 100 if first_seen_s == 0.1 else 75
    assert heat.write_units == pytest.approx(expected, abs=2)
    assert heat.tau == 3


def test_a_key_that_is_watched_at_the_very_end_of_a_window_keeps_its_samples() -> None:
    tracker, others = sampling(4, seed=12, capacity=2), iter(range(10**6))
    for _ in range(400):
        tracker.record("rare")
        for _ in range(4):
            tracker.record(f"other {next(others)}")
        tracker.record("frequent", 100)
    tracker.watch({mark_of("rare"): 1}, at_s=0.9)
    tracker.record("rare")
    heat = tracker.roll().listed({mark_of("rare"): 1}, tracker.rng, 1.0)["rare"]
    assert heat.tau == 4
    assert heat.write_units == pytest.approx(401, abs=4 * (401 * 4) ** 0.5)
