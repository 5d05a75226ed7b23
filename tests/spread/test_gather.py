from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.primitives.ids import Uuid7
from heatsink.primitives.keys import partition_of, seeded_hash
from heatsink.registry.layouts import COLD, Layout
from heatsink.spread.gather import Gather, Range
from heatsink.spread.store import Ask, Row

SCHEME = Uuid7()
HASH = seeded_hash(b"seed")


class Shelf:
    """Rows placed by a layout, and a count of what is read."""

    def __init__(self, layout: Layout, times_ms: list[int]) -> None:
        self.layout = layout
        self.rows: dict[str, list[Row]] = {}
        self.all: list[bytes] = []
        self.rows_read = self.queries = 0
        for n, time_ms in enumerate(times_ms):
            self._place(SCHEME.from_parts(time_ms, n, n))

    def _place(self, raw: bytes) -> None:
        epoch = self.layout.epoch_at(SCHEME.time_ms(raw))
        partition = partition_of("k", epoch.bucket(HASH(raw)))
        self.rows.setdefault(partition, []).append(Row(raw, b"", epoch.start_ms, epoch.buckets))
        self.all.append(raw)

    def answer(self, partition: str, ask: Ask) -> list[Row]:
        rows = sorted(
            (row for row in self.rows.get(partition, []) if _inside(row.raw, ask)),
            key=lambda row: row.raw,
            reverse=ask.newest_first,
        )[: ask.limit]
        self.rows_read += len(rows)
        self.queries += 1
        return rows

    def gather(self, span: Range, wanted: int, known: Layout | None = None) -> Gather:
        """Collect; a reader that knows an older layout learns the true one after one round."""
        gather = Gather("k", known or self.layout, span, wanted, SCHEME)
        while asks := gather.asks():
            for partition, ask in asks.items():
                gather.feed(partition, ask, self.answer(partition, ask))
            gather.learn(self.layout)
        return gather

    def expected(self, span: Range, wanted: int) -> list[bytes]:
        ask = Ask(span.above, span.below, wanted, span.newest_first)
        inside = [raw for raw in self.all if _inside(raw, ask)]
        return sorted(inside, reverse=span.newest_first)[:wanted]


def _inside(raw: bytes, ask: Ask) -> bool:
    return (ask.above is None or raw > ask.above) and (ask.below is None or raw < ask.below)


layouts = st.lists(st.integers(1, 9), max_size=6).map(
    lambda counts: Layout.of((n * 20, buckets) for n, buckets in enumerate(counts, start=1))
)
moments = st.lists(st.integers(0, 160), max_size=80)
bounds = st.none() | st.integers(0, 160).map(SCHEME.first_raw)


@given(layouts, moments, bounds, bounds, st.booleans(), st.integers(1, 30))
def test_a_page_is_the_sorted_rows_of_its_range_in_three_rounds(
    layout: Layout,
    times_ms: list[int],
    above: bytes | None,
    below: bytes | None,
    newest_first: bool,
    wanted: int,
) -> None:
    shelf, span = Shelf(layout, times_ms), Range(above, below, newest_first)
    if above is not None and below is not None and above >= below:
        return
    gather = shelf.gather(span, wanted)
    assert [row.raw for row in gather.rows] == shelf.expected(span, wanted)
    assert gather.rounds <= 3


@given(layouts, moments, st.integers(0, 6), st.booleans(), st.integers(1, 30))
def test_a_reader_with_an_old_layout_misses_nothing_once_it_learns(
    layout: Layout, times_ms: list[int], behind: int, newest_first: bool, wanted: int
) -> None:
    shelf, span = Shelf(layout, times_ms), Range(None, None, newest_first)
    known = Layout.of(layout.pairs[: max(len(layout.later) - behind, 0)])
    gather = shelf.gather(span, wanted, known)
    assert [row.raw for row in gather.rows] == shelf.expected(span, wanted)
    assert gather.rounds <= 4


def newest_page(shelf: Shelf) -> Gather:
    return shelf.gather(Range(None, None, newest_first=True), 51)


def test_a_page_of_a_cold_key_is_one_query_of_51_rows() -> None:
    shelf = Shelf(COLD, list(range(500)))
    assert newest_page(shelf).rounds == 1
    assert (shelf.queries, shelf.rows_read) == (1, 51)


def test_a_page_inside_a_one_bucket_epoch_is_one_query_after_cool_down() -> None:
    shelf = Shelf(Layout.of([(100, 8), (200, 1)]), list(range(400)))
    newest_page(shelf)
    assert (shelf.queries, shelf.rows_read) == (1, 51)


@pytest.mark.parametrize(("buckets", "rows_most"), [(2, 65), (8, 100), (32, 200)])
def test_a_page_over_many_buckets_reads_hardly_more_than_it_returns(
    buckets: int, rows_most: int
) -> None:
    rng, rows, rounds, pages = Random(1), 0, 0, 200
    for _ in range(pages):
        times_ms = [100 + rng.randrange(10**9) for _ in range(400)]
        shelf = Shelf(Layout.of([(1, buckets)]), times_ms)
        rounds += newest_page(shelf).rounds
        rows += shelf.rows_read
    assert rows / pages <= rows_most
    assert rounds / pages <= 1.2
