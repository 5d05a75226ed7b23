"""Where the middle of the heat is, and which key it comes from, in bounded memory."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from heatsink.emulator.capacity.policy import BINS, KEYS_MAX, HeatSketch
from heatsink.emulator.capacity.table import SPACE

KEYS = st.integers(0, 99)


def sketch_of(heats: dict[int, float]) -> HeatSketch:
    sketch = HeatSketch(0, SPACE)
    for key, heat in heats.items():
        sketch.add(key, heat)
    return sketch


@given(st.dictionaries(KEYS, st.integers(1, 1_000), min_size=2))
def test_no_other_place_divides_the_heat_better_than_the_median(heats: dict[int, int]) -> None:
    def difference(at: int) -> int:
        return abs(sum(heat if key < at else -heat for key, heat in heats.items()))

    median = sketch_of(dict(heats)).median()
    assert median is not None
    assert any(key < median for key in heats)
    assert any(key >= median for key in heats)
    assert difference(median) == min(difference(at) for at in range(min(heats) + 1, max(heats) + 1))


def test_one_key_has_no_median() -> None:
    assert sketch_of({7: 1.0}).median() is None
    assert HeatSketch(0, SPACE).median() is None


def test_the_median_is_of_the_heat_and_not_of_the_keys() -> None:
    sketch = sketch_of({1: 8.0, **dict.fromkeys(range(10, 90), 0.1)})
    assert sketch.median() == 10


def test_a_hot_key_among_a_hundred_thousand_is_found_in_bounded_memory() -> None:
    rng, sketch, seen = Random(1), HeatSketch(0, SPACE), Counter[int]()
    hot = rng.getrandbits(64)
    for _ in range(100_000):
        key = hot if rng.random() < 0.3 else rng.getrandbits(64)
        sketch.add(key, 0.001)
        seen[key] += 1
    hottest = sketch.hottest()
    assert hottest is not None
    assert hottest.key == hot
    assert abs(hottest.share - seen[hot] / 100_000) < 0.02
    assert len(sketch.points()) <= 2 * KEYS_MAX + BINS


def test_the_heat_of_keys_that_were_let_go_still_has_its_place() -> None:
    rng, sketch = Random(2), HeatSketch(0, SPACE)
    for _ in range(50_000):
        sketch.add(int(SPACE * rng.random() ** 2), 0.001)  # half of them in the first quarter
    median = sketch.median()
    assert median is not None
    assert abs(median / SPACE - 0.25) < 0.03


def test_heat_fades() -> None:
    sketch = sketch_of({1: 1.0})
    sketch.fade(1.0)
    assert sketch.points() == [(1, 0.5)]
    sketch.fade(60.0)
    sketch.fade(1.0)
    assert sketch.points() == []


def test_a_month_without_requests_leaves_no_hottest_key() -> None:
    sketch = sketch_of({1: 1.0})
    sketch.fade(2_600_000.0)  # the heat is 0.0 now, and its key is dropped by the next call
    assert sketch.hottest() is None
