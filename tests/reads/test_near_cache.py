from __future__ import annotations

from math import inf
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from heatsink.reads.near_cache import NearCache
from heatsink.testing import zipf_keys


def read(cache: NearCache, key: str) -> bool:
    """Whether it was a hit; what was none is loaded and kept."""
    entry = cache.entries.get(key)
    if entry is not None:
        entry.hits += 1
        return True
    cache.put(key, key, 0.0)
    return False


def test_a_scan_does_not_evict_what_is_hot() -> None:
    cache, hot = NearCache(100), [f"hot-{n}" for n in range(50)]
    for key in hot * 4:
        read(cache, key)
    for number in range(10_000):
        read(cache, f"cold-{number}")
    assert sum(key in cache.entries for key in hot) == 50


def test_what_was_hot_yesterday_goes_in_time() -> None:
    cache, old = NearCache(100), [f"old-{n}" for n in range(80)]
    for key in [*old * 2, *(f"cold-{n}" for n in range(100)), *old * 1_000]:
        read(cache, key)
    hits = [read(cache, key) for key in [f"new-{n}" for n in range(80)] * 8]
    assert sum(hits[-80:]) == 80


def test_a_key_that_comes_back_soon_was_no_passer_by() -> None:
    cache = NearCache(20)
    read(cache, "again")
    for number in range(25):
        read(cache, f"cold-{number}")
    assert "again" not in cache.entries
    read(cache, "again")
    for number in range(100, 200):
        read(cache, f"cold-{number}")
    assert "again" in cache.entries


def test_what_the_fleet_calls_hot_need_not_prove_it() -> None:
    cache = NearCache(20)
    cache.put("decided", 1, 0.0, is_hot=True)
    for number in range(100):
        read(cache, f"cold-{number}")
    assert "decided" in cache.entries


def test_skewed_traffic_hits_more_often_than_with_least_recently_used() -> None:
    keys = zipf_keys(10_000, 1.0, Random(3))
    cache, recent, hits, recent_hits = NearCache(100), dict[str, None](), 0, 0
    for _ in range(30_000):
        key = next(keys)
        hits += read(cache, key)
        recent_hits += key in recent
        recent.pop(key, None)
        recent[key] = None
        if len(recent) > 100:
            del recent[next(iter(recent))]
    assert hits > 1.1 * recent_hits


def test_forgetting_drops_the_value_and_keeps_the_seat() -> None:
    cache = NearCache(10, weigh=len)
    cache.put("k", "heavy!", 5.0)
    cache.forget("k")
    entry = cache.entries["k"]
    assert (entry.value, entry.aged_from_s, entry.weight) == (None, -inf, 1)


def test_what_is_too_heavy_is_not_kept_and_its_old_value_neither() -> None:
    cache = NearCache(10, weigh=len)
    cache.put("k", "light", 0.0)
    cache.put("k", "heavier than all there is", 0.0)
    assert cache.entries["k"].value is None


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "read", "forget", "clear"]),
        st.integers(0, 12),
        st.integers(1, 9),
    ),
    max_size=200,
)


@given(acts=ACTS, capacity=st.integers(1, 15), weighs=st.booleans())
def test_it_is_never_over_its_capacity_and_its_books_are_right(
    acts: list[tuple[str, int, int]], capacity: int, weighs: bool
) -> None:
    cache = NearCache(capacity, (lambda value: value) if weighs else None)
    for act, number, weight in acts:
        key = str(number)
        if act == "put":
            cache.put(key, weight, 1.0, is_hot=number == 3)
        elif act == "forget":
            cache.forget(key)
        elif act == "clear":
            cache.clear()
        elif key in cache.entries:
            cache.entries[key].hits += 1
        entries = cache.entries
        assert sum(entry.weight for entry in entries.values()) == cache._weight <= capacity
        small = [key for key in entries if not entries[key].is_main]
        assert sorted(cache._small) == sorted(small)
        assert sorted([*cache._small, *cache._main]) == sorted(entries)
        assert len(cache._ghosts) <= max(len(entries), 1)
        assert not cache._ghosts.keys() & entries.keys()
