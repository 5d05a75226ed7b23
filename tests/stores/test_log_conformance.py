"""What every `LogStore` must do."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.primitives.clock import now_ms
from heatsink.registry.decisions import BUCKETS, LogEntry, Meta, for_key
from heatsink.registry.layouts import COLD, Layout
from heatsink.spread.store import Ask, LogStore, Row
from heatsink.stores.stores import Stores
from heatsink.testing import ManualClock


def row(n: int, body: bytes = b"body", **changes: object) -> Row:
    made = Row(n.to_bytes(16, "big"), body, 7, 3)
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
def log(stores: Stores) -> LogStore:
    return stores.log


def everything(limit: int = 100, newest_first: bool = False) -> Ask:
    return Ask(None, None, limit, newest_first)


async def numbers(log: LogStore, partition: str, ask: Ask) -> list[int]:
    answer = await log.query(partition, ask)
    return [int.from_bytes(found.raw, "big") for found in answer.rows]


async def test_a_row_is_there_once_acknowledged(log: LogStore) -> None:
    assert await log.put("p", row(1)) is None
    assert await log.get("p", row(1).raw) == row(1)
    assert await log.get("q", row(1).raw) is None
    assert await log.get("p", row(2).raw) is None


async def test_an_id_is_taken_by_the_first_who_puts_it(log: LogStore) -> None:
    await log.put("p", row(1, b"first"))
    taken_by = await log.put("p", row(1, b"second"))
    assert taken_by == row(1, b"first")
    assert (await log.query("p", everything())).rows == [row(1, b"first")]


async def test_one_of_many_at_once_wins(log: LogStore) -> None:
    puts = [log.put("p", row(1, b"%d" % n)) for n in range(20)]
    puts += [log.put("p", row(n, b"other")) for n in range(2, 40)]
    answers = await asyncio.gather(*puts)
    (stored,) = [
        found for found in (await log.query("p", everything())).rows if found.body != b"other"
    ]
    losers = [answer for answer in answers[:20] if answer is not None]
    assert losers == [stored] * 19
    assert answers[20:] == [None] * 38


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (Ask(None, None, 10, True), [5, 4, 3, 2, 1]),
        (Ask(None, None, 10, False), [1, 2, 3, 4, 5]),
        (Ask(None, None, 2, True), [5, 4]),
        (Ask(row(2).raw, row(5).raw, 10, True), [4, 3]),
        (Ask(row(2).raw, None, 1, False), [3]),
        (Ask(row(5).raw, None, 10, False), []),
    ],
)
async def test_queries_have_bounds_orders_and_limits(
    log: LogStore, ask: Ask, expected: list[int]
) -> None:
    for n in (3, 1, 5, 2, 4):
        await log.put("p", row(n))
    await log.put("q", row(9))
    assert await numbers(log, "p", ask) == expected


async def test_a_tombstone_hides_a_row_and_keeps_its_id(log: LogStore) -> None:
    tombstone = row(1, b"", deleted=True)
    await log.put("p", row(1))
    await log.put("p", row(2))
    assert await log.delete("p", tombstone) is True
    assert await log.delete("p", tombstone) is False
    assert await log.get("p", row(1).raw) is None
    assert await numbers(log, "p", everything()) == [2]
    assert await log.put("p", row(1)) == tombstone


async def test_a_delete_before_its_put_wins(log: LogStore) -> None:
    assert await log.delete("p", row(1, b"", deleted=True)) is False
    assert (await log.put("p", row(1))) is not None
    assert await log.get("p", row(1).raw) is None


async def test_a_limit_counts_live_rows(log: LogStore) -> None:
    for n in range(10):
        await log.put("p", row(n))
    for n in range(5, 10):
        await log.delete("p", row(n, b"", deleted=True))
    assert await numbers(log, "p", everything(3, newest_first=True)) == [4, 3, 2]


async def test_a_row_expires(log: LogStore, clock: ManualClock) -> None:
    await log.put("p", row(1, expires_ms=now_ms(clock) + 5_000))
    await log.put("p", row(2))
    assert await numbers(log, "p", everything()) == [1, 2]
    await clock.advance(5.0)
    assert await numbers(log, "p", everything()) == [2]
    assert await log.get("p", row(1).raw) is None


async def test_expired_rows_do_not_pile_up(
    log: LogStore, clock: ManualClock, request: pytest.FixtureRequest
) -> None:
    if "dynamodb" in request.node.callspec.id:
        return  # DynamoDB removes them in its own time: within some days
    for start in range(0, 3_000, 500):
        expires_ms = now_ms(clock) + 1_000
        puts = [log.put("p", row(start + n, expires_ms=expires_ms)) for n in range(500)]
        await asyncio.gather(*puts)
        await clock.advance(2.0)
    assert len([found async for found in log.scan()]) <= 1_000


async def test_erasing_leaves_nothing_not_even_tombstones(log: LogStore, stores: Stores) -> None:
    await log.put("p", row(1))
    await log.put("p", row(2))
    await log.delete("p", row(2, b"", deleted=True))
    await log.put("q", row(3))
    await stores.counters.add("p", b"token", 1, 5)
    assert await log.erase("p") == 2
    assert await log.erase("p") == 0
    assert [partition async for partition, _ in log.scan()] == ["q"]
    assert (await stores.counters.totals(["p"]))[0].value == 0
    assert await log.put("p", row(2)) is None


async def test_a_scan_sees_every_row_also_deleted_ones(log: LogStore) -> None:
    wanted = {("p" if n % 2 else "q", row(n).raw) for n in range(2_500)}
    for first in range(0, 2_500, 50):
        numbers = range(first, first + 50)
        await asyncio.gather(*(log.put("p" if n % 2 else "q", row(n)) for n in numbers))
    await log.delete("p", row(1, b"", deleted=True))
    assert {(partition, found.raw) async for partition, found in log.scan()} == wanted


async def test_bodies_and_names_are_any(log: LogStore) -> None:
    for partition, body in [
        ("a b#3", b""),
        ("é🔥", bytes(range(256))),
        ("x" * 1_000, b"x" * 300_000),
    ]:
        await log.put(partition, row(1, body))
        assert (await log.query(partition, everything())).rows == [row(1, body)]


async def test_a_query_brings_the_layout_along(log: LogStore, stores: Stores) -> None:
    meta = Meta(0, 0, 1, 0, "", "i", b"s", "uuid7")
    await stores.registry.found(meta)
    ask = Ask(None, None, 5, True, layout_of="k")
    assert (await log.query("k", ask)).layout == COLD
    entry = LogEntry(1, 0, 3_000, (for_key("k", BUCKETS, 4, "hot"),))
    await stores.registry.append(entry, term=1)
    assert (await log.query("k", ask)).layout == Layout.of([(3_000, 4)])
    assert (await log.query("k", everything())).layout is None


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["put", "delete"])), max_size=30))
def test_any_sequence_of_puts_and_deletes_equals_a_dict(changes: list[tuple[int, str]]) -> None:
    """On the reference; the tests above hold the others to it."""
    from heatsink.stores.memory import memory_stores
    from heatsink.testing import run_on_virtual_time

    async def play() -> None:
        log = memory_stores(ManualClock()).log
        model: dict[int, bool] = {}
        for n, change in changes:
            if change == "put":
                await log.put("p", row(n))
                model.setdefault(n, True)
            else:
                await log.delete("p", row(n, b"", deleted=True))
                model[n] = False
        assert await numbers(log, "p", everything()) == sorted(
            n for n, live in model.items() if live
        )

    run_on_virtual_time(play())
