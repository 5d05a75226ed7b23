from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from heatsink import Heatsink, connect
from heatsink.client.settings import Settings
from heatsink.errors import Closed, Conflict, InvalidId, InvalidSetting, TokenExpired
from heatsink.primitives.ids import Minter, Uuid7
from heatsink.stores.memory import memory_stores
from heatsink.testing import ManualClock

from .test_log import spread


async def test_adds_count_and_tokens_count_once(hs: Heatsink) -> None:
    token = (await hs.log.append("ids", b"")).id
    await hs.counters.add("views", 5)
    await hs.counters.add("views", -2, token=token)
    await hs.counters.add("views", -2, token=token)
    assert await hs.counters.value("views") == 3
    with pytest.raises(Conflict, match="used before to add -2"):
        await hs.counters.add("views", 7, token=token)
    assert await hs.counters.value("nothing") == 0


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("x", "token must be a uuid.UUID"),
        (UUID(int=0, version=4), "token 0.* is a UUID of version 4"),
        (UUID("ffffffff-ffff-7fff-bfff-ffffffffffff"), "token is .* from the future"),
    ],
)
async def test_a_wrong_token_is_called_by_its_name(hs: Heatsink, token: object, said: str) -> None:
    with pytest.raises(InvalidId, match=f"^{said}"):
        await hs.counters.add("views", token=token)


MOST, TIMES = 2**53, 2**10


@pytest.mark.parametrize("sign", [1, -1])
async def test_adds_that_pass_the_bound_together_are_refused_before_they_are_acknowledged(
    hs: Heatsink, sign: int
) -> None:
    adds = (hs.counters.add("views", sign * MOST) for _ in range(TIMES + 5))
    answers = await asyncio.gather(*adds, return_exceptions=True)
    refused = [answer for answer in answers if answer is not None]
    assert len(refused) == 6, "2**63 is one more than fits"
    assert all(isinstance(error, InvalidSetting) for error in refused)
    assert str(refused[0]).startswith(f"amount {sign * MOST} takes a bucket of this counter past")
    assert await hs.counters.value("views") == sign * MOST * (TIMES - 1)
    await hs.counters.add("views", sign * (MOST - 1))
    assert await hs.counters.value("views") == sign * (2**63 - 1)


async def test_a_spread_counter_may_hold_more_and_is_readable(hs: Heatsink) -> None:
    await spread(hs, "views", 4)
    await asyncio.gather(*(hs.counters.add("views", MOST) for _ in range(TIMES * 2)))
    assert await hs.counters.value("views") == 2 * MOST * TIMES
    await hs.counters.fold("views")
    assert await hs.counters.value("views") == 2 * MOST * TIMES


@pytest.mark.parametrize("sign", [1, -1])
async def test_a_buffered_add_past_the_bound_is_refused_and_takes_no_other_along(
    hs: Heatsink, sign: int
) -> None:
    async with hs.counters.buffered() as counts:
        first = [counts.add_soon("views", sign * MOST) for _ in range(TIMES - 1)]
        with pytest.raises(InvalidSetting, match=f"^amount {sign * MOST} takes"):
            counts.add_soon("views", sign * MOST)
        await counts.flush()
        with pytest.raises(InvalidSetting, match=f"^amount {sign * MOST} takes"):
            await counts.add("views", sign * MOST)
        await counts.add("views", sign * (MOST - 1))
        await asyncio.gather(*first)
    assert await hs.counters.value("views") == sign * (2**63 - 1)
    async with hs.counters.buffered() as counts:  # as another process: what it adds is readable
        await counts.add("views", sign * MOST)
    assert await hs.counters.value("views") == sign * (2**63 - 1 + MOST)


async def test_a_counter_keeps_its_sum_through_layouts(hs: Heatsink) -> None:
    for buckets in (1, 4, 2):
        if buckets > 1:
            await spread(hs, "views", buckets)
        await asyncio.gather(*(hs.counters.add("views") for _ in range(50)))
    assert await hs.counters.value("views") == 150


async def test_buffered_adds_are_one_write_and_count_once(hs: Heatsink) -> None:
    async with hs.counters.buffered(flush_s=0.01) as counts:
        await asyncio.gather(*(counts.add("views") for _ in range(2_000)))
        assert await hs.counters.value("views") == 2_000
        counts.add_soon("views", -500)
    assert await hs.counters.value("views") == 1_500


async def test_buffered_adds_go_on_after_a_change_of_layout(hs: Heatsink) -> None:
    async with hs.counters.buffered(flush_s=0.01) as counts:
        await counts.add("views", 3)
        await spread(hs, "views", 4)
        await counts.add("views", 4)
    assert await hs.counters.value("views") == 7


async def test_buffered_counters_are_open_only_inside(hs: Heatsink) -> None:
    counts = hs.counters.buffered()
    with pytest.raises(Closed):
        counts.add_soon("views")
    with pytest.raises(InvalidSetting, match="flush_s"):
        hs.counters.buffered(flush_s=0)


async def test_a_cancelled_flush_loses_nothing_it_took(hs: Heatsink) -> None:
    async with hs.counters.buffered(flush_s=60) as counts:
        adds = [counts.add_soon("views") for _ in range(100)]
        flush = asyncio.ensure_future(counts.flush())
        for _ in range(4):
            await asyncio.sleep(0)
        flush.cancel()
        await asyncio.gather(*adds)
        assert await hs.counters.value("views") == 100


async def test_leaving_the_block_in_the_middle_of_a_flush_loses_nothing(hs: Heatsink) -> None:
    for n in range(20):
        async with hs.counters.buffered(flush_s=0.002) as counts:
            adds = []
            for _ in range(20):
                adds.append(counts.add_soon(f"views {n}"))
                await asyncio.sleep(0.0003)
        assert all(add.done() for add in adds)
        assert await hs.counters.value(f"views {n}") == 20


async def test_adding_nothing_is_acknowledged(hs: Heatsink) -> None:
    async with hs.counters.buffered() as counts:
        await counts.add("views", 0)


async def test_what_the_store_refuses_for_good_is_forgotten(
    hs: Heatsink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsink.spread.counters.SHARE_MAX", 2**70)  # so that the store is asked
    async with hs.counters.buffered(flush_s=60) as counts:
        adds = [counts.add_soon("views", 2**53) for _ in range(1_100)]
        with pytest.raises(InvalidSetting, match="amount"):
            await counts.flush()
        assert all(add.done() for add in adds)
        counts.add_soon("views", 3)
    assert await hs.counters.value("views") == 3


@pytest.mark.parametrize("amount", [1.5, "1", None, True, 2**60])
async def test_an_amount_is_a_whole_number(hs: Heatsink, amount: object) -> None:
    with pytest.raises(InvalidSetting, match="amount"):
        await hs.counters.add("views", amount)  # type: ignore[arg-type]
    assert await hs.counters.value("views") == 0


class Day:
    """A client whose clock is turned by hand, without anything in the background."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stores = memory_stores(self.clock)
        self.hs = Heatsink(self.stores, Settings(), self.clock, Random(1))

    async def __aenter__(self) -> Day:
        await self.hs.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hs.close()

    async def later(self, hours: float) -> None:
        self.clock.set_wall(self.clock.now_s() + hours * 3600)
        await self.clock.advance(15.0)  # until the jump is believed


async def test_a_token_older_than_a_day_is_refused() -> None:
    async with Day() as day:
        raw, _ = Minter(Uuid7(), Random(2)).mint(int(day.clock.now_s() * 1000), 10**15)
        token = Uuid7().value(raw)
        await day.hs.counters.add("views", 1, token=token)
        await day.later(hours=25)
        with pytest.raises(TokenExpired, match="86,400 s"):
            await day.hs.counters.add("views", 1, token=token)
        assert await day.hs.counters.value("views") == 1


async def test_old_buckets_are_folded_until_a_read_is_one_partition_again() -> None:
    async with Day() as day:
        counters = day.hs.counters
        await day.hs.pin("views", buckets=8, reason="hot")
        await day.clock.advance(3.0)
        for _ in range(40):
            await counters.add("views")
        async with counters.buffered(flush_s=0.5) as counts:
            counts.add_soon("views", 2)
        await day.hs.pin("views", buckets=1, reason="calm")
        await day.clock.advance(3.0)
        assert await counters.value("views") == 42
        await day.later(hours=30)
        assert await counters.value("views") == 42
        totals = await day.stores.counters.totals(["views", "views#0", "views#7"])
        assert [total.value for total in totals] == [42, 0, 0]
        layout = await day.stores.registry.layout("views")
        assert counters._partitions("views", layout, totals[0].folded_ms) == ["views"]
        await counters.add("views")
        assert await counters.value("views") == 43


async def test_counters_of_two_processes_add_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    async with connect(url) as one, connect(url) as other:
        await asyncio.gather(*(hs.counters.add("views") for hs in (one, other) for _ in range(100)))
        assert await one.counters.value("views") == await other.counters.value("views") == 200
