"""Names that cannot collide, and plans that leave out no partition in which an item may be."""

from __future__ import annotations

from decimal import Decimal
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from heatsink.boto.places import ReadPlan
from heatsink.door.keys import TAG, TAGGED, comparable, hashed_bytes, physical
from heatsink.primitives.keys import partition_of
from heatsink.registry.layouts import Layout

TIMES = st.integers(0, 60)
BOUNDS = st.none() | TIMES
BUCKETS = st.none() | st.integers(0, 20)
KEYS = st.lists(st.sampled_from(["a", "1", TAG, "\n"]), min_size=1, max_size=4).map("".join)
LAYOUTS = st.dictionaries(st.integers(1, 50), st.integers(1, 5), max_size=5).map(
    lambda epochs: Layout(sorted(epochs.items()))
)


@given(KEYS, BUCKETS, KEYS, BUCKETS)
def test_no_key_takes_the_name_of_another_keys_bucket(
    one: str, bucket: int | None, other: str, other_bucket: int | None
) -> None:
    if TAGGED.search(one) or TAGGED.search(other):
        return
    same = physical(one, bucket) == physical(other, other_bucket)
    assert same == ((one, bucket) == (other, other_bucket))


@given(LAYOUTS, TIMES, BOUNDS, BOUNDS, TIMES | st.just(inf))
def test_a_plan_asks_every_partition_in_which_an_item_may_be(
    layout: Layout, time_ms: int, from_ms: int | None, to_ms: int | None, complete_ms: float
) -> None:
    if not (from_ms or 0) <= time_ms <= (inf if to_ms is None else to_ms):
        return
    plan = ReadPlan(layout, (from_ms, to_ms), complete_ms)
    epoch = layout.epoch_at(time_ms)
    assert plan.epoch_at(time_ms).buckets == epoch.buckets
    asked = {name for one in plan.overlapping(None, None) for name in one.partitions("k")}
    assert set(epoch.partitions("k")) <= asked
    assert plan.counts_bare(time_ms) == (epoch.buckets == 1 or time_ms < complete_ms)
    if plan.counts_bare(time_ms):
        assert partition_of("k", None) in asked


@given(st.integers(0, 10**38 - 1), st.integers(0, 5))
def test_a_number_has_one_place_however_it_is_written(number: int, zeros: int) -> None:
    longer = Decimal(f"{number}.{'0' * zeros}") if zeros else Decimal(number)
    assert hashed_bytes(comparable(number)) == hashed_bytes(longer)
    if number:
        assert hashed_bytes(comparable(number)) != hashed_bytes(comparable(number - 1))
