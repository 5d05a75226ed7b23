from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.errors import InvalidSetting, Throttled
from heatsink.spread.store import Ask, Row
from heatsink.stores.memory import memory_stores
from heatsink.stores.stores import Stores
from heatsink.stores.throttled import PartitionLimit, TokenBuckets, throttled
from heatsink.testing import ManualClock, run_on_virtual_time


def limited(clock: ManualClock, writes_s: float = 2, reads_s: float = 3) -> Stores:
    return throttled(memory_stores(clock), PartitionLimit(writes_s, reads_s), clock)


def row(n: int, body: bytes = b"") -> Row:
    return Row(n.to_bytes(16, "big"), body, 0, 1)


async def test_a_partition_takes_its_limit_and_not_more(clock: ManualClock) -> None:
    log = limited(clock).log
    await log.put("p", row(1))
    await log.put("p", row(2))
    with pytest.raises(Throttled) as refusal:
        await log.put("p", row(3))
    assert refusal.value.partition == "p"
    assert await log.get("p", row(3).raw) is None
    await log.put("q", row(3))
    await clock.advance(0.5)
    await log.put("p", row(3))


async def test_a_large_row_costs_by_the_kilobyte(clock: ManualClock) -> None:
    log = limited(clock, writes_s=4).log
    await log.put("p", row(1, b"x" * 3_000))
    with pytest.raises(Throttled):
        await log.put("p", row(2, b"x" * 2_000))


async def test_a_row_larger_than_the_limit_passes_when_it_is_rested(clock: ManualClock) -> None:
    log = limited(clock, writes_s=2).log
    await log.put("p", row(1, b"x" * 100_000))
    await clock.advance(20.0)
    with pytest.raises(Throttled):
        await log.put("p", row(2))
    await clock.advance(60.0)
    await log.put("p", row(2))


async def test_reads_have_a_limit_of_their_own_and_pay_for_size(clock: ManualClock) -> None:
    log = limited(clock, writes_s=1_000, reads_s=3).log
    await log.put("p", row(1, b"x" * 12_000))
    await log.query("p", Ask(None, None, 5, True))
    with pytest.raises(Throttled):
        await log.get("p", row(1).raw)


async def test_rows_and_counters_share_a_partitions_limit(clock: ManualClock) -> None:
    stores = limited(clock)
    await stores.log.put("p", row(1))
    await stores.counters.add("p", b"t", 1, 1)
    with pytest.raises(Throttled):
        await stores.counters.add("p", b"u", 1, 1)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 4)), max_size=60))
def test_no_window_admits_more_than_rate_and_burst(arrivals: list[tuple[int, int]]) -> None:
    rate, burst_s = 10.0, 0.5

    async def play() -> None:
        clock = ManualClock()
        buckets, admitted = TokenBuckets(rate, burst_s, clock), []
        for gap_ms, units in arrivals:
            await clock.advance(gap_ms / 1000)
            try:
                buckets.take("p", units)
            except Throttled:
                continue
            admitted.append((clock.monotonic_s(), units))
        for n, (start_s, _) in enumerate(admitted):
            for end_s, _ in admitted[n:]:
                units = sum(u for t, u in admitted if start_s <= t <= end_s)
                assert units <= rate * (end_s - start_s) + rate * burst_s + 1e-6

    run_on_virtual_time(play())


async def test_rested_partitions_are_forgotten(clock: ManualClock) -> None:
    buckets = TokenBuckets(10, 1.0, clock)
    for n in range(10_001):
        buckets.take(f"p{n}", 1)
        if n == 5_000:
            await clock.advance(3.0)
    assert len(buckets._levels) == 5_000


@pytest.mark.parametrize("name", ["writes_s", "reads_s", "burst_s"])
def test_a_limit_is_positive(name: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        PartitionLimit(**{name: 0.0})
