"""What every `CounterStore` must do."""

from __future__ import annotations

import asyncio

import pytest

from heatsink.errors import InvalidSetting, TokenExpired
from heatsink.spread.store import CounterStore, Running, Total
from heatsink.stores.stores import Stores

LARGEST = 2**63 - 1


@pytest.fixture
def counters(stores: Stores) -> CounterStore:
    return stores.counters


async def value(counters: CounterStore, *partitions: str) -> int:
    return sum(total.value + total.writers for total in await counters.totals(partitions))


async def test_a_token_adds_once(counters: CounterStore) -> None:
    assert await counters.add("p", b"t1", 10, 5) is None
    assert await counters.add("p", b"t1", 10, 5) == 5
    assert await counters.add("p", b"t1", 10, 7) == 5
    assert await counters.add("p", b"t2", 10, -2) is None
    assert await value(counters, "p") == 3


@pytest.mark.parametrize("sign", [1, -1])
async def test_no_add_takes_a_share_past_its_bound(counters: CounterStore, sign: int) -> None:
    """It is refused before it is acknowledged: nothing that was may be unreadable."""
    assert await counters.add("p", b"t1", 10, sign * (LARGEST - 5)) is None
    assert await counters.add("p", b"t2", 10, sign * 5) is None
    for token, amount in [(b"t3", 1), (b"t4", 2**53), (b"t5", LARGEST)]:
        with pytest.raises(InvalidSetting, match=r"amount .*2\*\*63"):
            await counters.add("p", token, 10, sign * amount)
    assert await value(counters, "p") == sign * LARGEST
    assert await counters.add("p", b"t2", 10, sign * 5) == sign * 5, "a retry is told what it did"
    assert await counters.add("p", b"t6", 10, sign * -7) is None
    assert await counters.add("p", b"t3", 10, sign) is None, "what was refused left no trace"
    assert await value(counters, "p") == sign * (LARGEST - 6)


async def test_running_totals_have_the_same_bound_and_their_sum_is_always_readable(
    counters: CounterStore,
) -> None:
    for to in (Running(LARGEST + 1, 0), Running(0, LARGEST + 1)):
        with pytest.raises(InvalidSetting, match=r"amount .*2\*\*63"):
            await counters.raise_to("p", b"w", 10, to)
    for name in (b"w", b"x", b"y"):
        assert await counters.raise_to("p", name, 10, Running(LARGEST, 3)) is None
    await counters.raise_to("q", b"z", 10, Running(0, LARGEST))
    await counters.add("p", b"t", 10, LARGEST)
    assert await value(counters, "p") == 4 * LARGEST - 9
    assert await value(counters, "q") == -LARGEST
    assert {partition async for partition in counters.shares()} == {"p", "q"}


async def test_a_fold_keeps_a_sum_that_no_single_share_can_hold(counters: CounterStore) -> None:
    names = ["k", "k#0", "k#1", "k#2"]
    for name in names[:3]:
        await counters.add(name, b"t", 100, LARGEST)
    for writer in (b"w", b"x"):
        await counters.raise_to("k#1", writer, 100, Running(LARGEST, 0))
    await counters.raise_to("k#2", b"y", 100, Running(7, 2))
    for before_ms in (500, 600):
        await counters.fold(names, "k", before_ms)
        assert await value(counters, *names) == 5 * LARGEST + 5
        bare, *others = await counters.totals(names)
        assert bare.folded_ms == before_ms
        assert not any(total.value or total.writers for total in others)
    with pytest.raises(TokenExpired):
        await counters.add("k#0", b"late", 100, 1)


async def test_the_same_token_elsewhere_is_another(counters: CounterStore) -> None:
    await counters.add("p", b"t", 10, 1)
    await counters.add("q", b"t", 10, 1)
    assert await value(counters, "p", "q", "r") == 2


async def test_many_at_once_all_count(counters: CounterStore) -> None:
    await asyncio.gather(*(counters.add("p", b"%d" % (n % 150), 10, 1) for n in range(300)))
    assert await value(counters, "p") == 150


async def test_running_totals_only_rise(counters: CounterStore) -> None:
    assert await counters.raise_to("p", b"w", 10, Running(5, 1)) is None
    assert await counters.raise_to("p", b"w", 10, Running(9, 2)) is None
    assert await counters.raise_to("p", b"w", 10, Running(5, 1)) is None
    assert await value(counters, "p") == 7
    await counters.raise_to("p", b"v", 10, Running(3, 0))
    assert await value(counters, "p") == 10


async def test_folding_moves_closed_shares_and_changes_no_sum(counters: CounterStore) -> None:
    for n, partition in enumerate(["k", "k#0", "k#1"]):
        await counters.add(partition, b"t", 100, 10**n)
    await counters.raise_to("k#1", b"w", 100, Running(1_000, 0))
    await counters.fold(["k", "k#0", "k#1"], "k", before_ms=500)
    assert await counters.totals(["k", "k#0", "k#1"]) == [
        Total(1_111, 0, sealed_ms=500, folded_ms=500),
        Total(0, 0, sealed_ms=500),
        Total(0, 0, sealed_ms=500),
    ]


async def test_a_token_from_sealed_time_is_refused_for_ever(counters: CounterStore) -> None:
    """Its record is gone: nobody could tell whether it was counted."""
    await counters.add("p", b"old", 100, 1)
    await counters.fold(["p"], "p", before_ms=500)
    for token, time_ms in [(b"old", 100), (b"never seen", 499)]:
        with pytest.raises(TokenExpired):
            await counters.add("p", token, time_ms, 1)
    assert await counters.add("p", b"new", 500, 1) is None
    assert await value(counters, "p") == 2


async def test_younger_tokens_survive_a_fold(counters: CounterStore) -> None:
    await counters.add("k#0", b"young", 600, 1)
    await counters.fold(["k", "k#0"], "k", before_ms=500)
    assert await counters.add("k#0", b"young", 600, 1) == 1
    assert await value(counters, "k", "k#0") == 1


async def test_a_folded_writer_learns_what_was_counted_for_it(counters: CounterStore) -> None:
    await counters.raise_to("p", b"w", 100, Running(5, 2))
    await counters.fold(["p"], "p", before_ms=500)
    assert await counters.raise_to("p", b"w", 100, Running(9, 2)) == Running(5, 2)
    assert await value(counters, "p") == 3
    await counters.fold(["p"], "p", before_ms=600)
    with pytest.raises(TokenExpired):
        await counters.raise_to("p", b"w", 100, Running(9, 2))
    assert await value(counters, "p") == 3


async def test_folding_twice_changes_nothing(counters: CounterStore) -> None:
    await counters.add("k#0", b"t", 100, 4)
    for before_ms in (500, 500, 400):
        await counters.fold(["k", "k#0"], "k", before_ms)
    assert (await counters.totals(["k"]))[0] == Total(4, 0, 500, 500)
