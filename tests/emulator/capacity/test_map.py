"""Every hash lies in exactly one partition, whatever is split, isolated and merged."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from heatsink.emulator.capacity.table import SPACE, PartitionMap, equal_ranges

HASHES = st.integers(0, SPACE - 1)


class Range:
    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


def split(ranges: PartitionMap[Range], at: int) -> None:
    old = ranges.find(at)
    edges = sorted({old.start, at, old.end})
    ranges.replace([old], [Range(*bounds) for bounds in pairwise(edges)])


def merge(ranges: PartitionMap[Range], at: int) -> None:
    left = ranges.find(at)
    if left.end < SPACE:
        right = ranges.find(left.end)
        ranges.replace([left, right], [Range(left.start, right.end)])


@given(st.integers(1, 9), st.lists(st.tuples(st.booleans(), HASHES)), st.lists(HASHES))
def test_a_hash_is_in_one_partition_and_changes_raise_the_version(
    count: int, changes: list[tuple[bool, int]], hashes: list[int]
) -> None:
    ranges = PartitionMap(Range(*bounds) for bounds in equal_ranges(count))
    for splits, at in changes:
        (split if splits else merge)(ranges, at)
    assert 1 <= ranges.version <= 1 + len(changes)
    for hash_ in [0, SPACE - 1, *hashes]:
        holders = [one for one in ranges if one.start <= hash_ < one.end]
        assert holders == [ranges.find(hash_)]


@given(st.lists(HASHES, max_size=8), st.sets(HASHES, min_size=2, max_size=2))
def test_between_lists_what_a_range_touches(cuts: list[int], bounds: set[int]) -> None:
    first, until = sorted(bounds)
    ranges = PartitionMap(Range(*each) for each in equal_ranges(2))
    for at in cuts:
        split(ranges, at)
    expected = [one for one in ranges if one.end > first and one.start < until]
    assert list(ranges.between(first, until)) == expected
