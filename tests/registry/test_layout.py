from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.errors import InvalidSetting
from heatsink.registry.layouts import COLD, EPOCHS_MAX, Epoch, EpochMaker, Layout, text_of

changes = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 64)), max_size=12)
times = st.integers(0, 700)
hashes = st.integers(0, 2**64 - 1)


def layout_of(changes: list[tuple[int, int]]) -> Layout:
    """Epochs a few milliseconds apart."""
    layout, start_ms = COLD, 0
    for gap_ms, buckets in changes:
        start_ms += gap_ms
        layout = layout.then(start_ms, buckets)
    return layout


@given(changes, changes, times, hashes)
def test_an_id_stays_in_its_bucket_under_every_later_layout(
    before: list[tuple[int, int]], after: list[tuple[int, int]], time_ms: int, id_hash: int
) -> None:
    """As long as the later epochs start after the id's time, which the closed time sees to."""
    early = layout_of(before)
    start_ms = max(early.epochs[-1].start_ms, time_ms)
    late = early
    for gap_ms, buckets in after:
        start_ms += gap_ms
        late = late.then(start_ms, buckets)
    assert early.epoch_at(time_ms) == late.epoch_at(time_ms)
    assert early.epoch_at(time_ms).bucket(id_hash) == late.epoch_at(time_ms).bucket(id_hash)


@given(changes, times, hashes)
def test_a_row_is_in_one_of_the_partitions_that_are_read(
    changes: list[tuple[int, int]], time_ms: int, id_hash: int
) -> None:
    layout = layout_of(changes)
    epoch = layout.epoch_at(time_ms)
    bucket = epoch.bucket(id_hash)
    name = "k" if bucket is None else f"k#{bucket}"
    assert name in list(epoch.partitions("k"))
    assert name in layout.partitions("k")


@given(changes, times, times)
def test_the_overlapping_epochs_are_those_of_some_time_in_the_range(
    changes: list[tuple[int, int]], one: int, other: int
) -> None:
    layout, first, last = layout_of(changes), min(one, other), max(one, other)
    expected = {layout.epoch_at(time_ms) for time_ms in range(first, last + 1)}
    assert set(layout.overlapping(first, last)) == expected
    assert layout.overlapping(None, None) == layout.epochs


def test_the_seeds_phases_as_a_layout() -> None:
    layout = Layout.of([(10, 2), (20, 3), (30, 5), (40, 1)])
    assert [layout.epoch_at(t).buckets for t in (0, 10, 19, 20, 35, 40, 99)] == [
        1,
        2,
        2,
        3,
        5,
        1,
        1,
    ]
    assert layout.buckets == 1
    assert layout.max_buckets == 5
    assert layout.partitions("c") == ["c", "c#0", "c#1", "c#2", "c#3", "c#4"]


def test_a_cold_key_is_its_bare_name() -> None:
    assert COLD.partitions("c") == ["c"]
    assert COLD.epoch_at(123) == Epoch(0, 1)
    assert COLD.epoch_at(123).bucket(2**63) is None


@pytest.mark.parametrize(("start_ms", "buckets"), [(5, 2), (4, 2), (6, 0)])
def test_an_epoch_must_come_after_the_last_and_have_a_bucket(start_ms: int, buckets: int) -> None:
    with pytest.raises(InvalidSetting):
        Layout.of([(5, 3)]).then(start_ms, buckets)


def test_a_layout_is_full_at_the_limit_of_epochs() -> None:
    layout = Layout.of((n, 1 + n % 2) for n in range(1, EPOCHS_MAX))
    assert layout.full
    assert not Layout.of([(1, 2)]).full


@given(st.lists(st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 3)), max_size=4)))
def test_layouts_made_together_are_the_same_as_single_ones(
    many: list[list[tuple[int, int]]],
) -> None:
    maker = EpochMaker()
    for later in many:
        try:
            expected = Layout.of(later)
        except InvalidSetting as error:
            with pytest.raises(InvalidSetting, match=str(error)):
                maker.layout(later)
        else:
            assert maker.layout(later) == expected == maker.of_text(text_of(expected))


@pytest.mark.parametrize("text", ["5:2 5:3", "5:0", "5", "five:2", "-1:2"])
def test_a_text_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting):
        EpochMaker().of_text(text)


def test_layouts_made_together_share_epochs() -> None:
    maker = EpochMaker()
    first, second = maker.layout([(5, 2), (9, 4)]), maker.layout([(9, 4)])
    assert first.epochs[-1] is second.epochs[-1]
