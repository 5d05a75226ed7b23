from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from msgspec.structs import replace as replace_struct

from heatsink import Heatsink, Retries, Settings, Snowflake, Ulid, connect
from heatsink.errors import (
    Conflict,
    Deleted,
    InvalidId,
    InvalidSetting,
    Overloaded,
    Unavailable,
)
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.ids import TWITTER_EPOCH_MS, Uuid7
from heatsink.spread.log import Entry, Receipt
from heatsink.spread.store import Row
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.data import MemoryLog
from heatsink.testing import SkewedClock, run_on_virtual_time


async def spread(hs: Heatsink, key: str, buckets: int) -> None:
    """Pin a key and wait until the new epoch is in force."""
    await hs.pin(key, buckets=buckets, reason="test")
    while (await hs.explain(key)).buckets != buckets:
        await asyncio.sleep(0.02)


async def everything(hs: Heatsink, key: str, limit: int = 7, order: str = "newest") -> list[Entry]:
    entries: list[Entry] = []
    cursor = None
    while True:
        page = await hs.log.page(key, limit=limit, cursor=cursor, order=order)  # type: ignore[arg-type]
        entries += page.entries
        cursor = page.cursor
        if cursor is None:
            return entries


async def test_what_is_appended_is_read_newest_first(hs: Heatsink) -> None:
    receipts = [await hs.log.append("conv", b"%d" % n) for n in range(3)]
    page = await hs.log.page("conv")
    assert [entry.body for entry in page.entries] == [b"2", b"1", b"0"]
    assert [entry.id for entry in page.entries] == [r.id for r in reversed(receipts)]
    assert page.cursor is None
    assert isinstance(receipts[0].id, UUID)
    assert abs(receipts[0].time - datetime.now(UTC)) < timedelta(seconds=30)


class Room(str, Enum):  # noqa: UP042  whose members have another hash than their text
    GENERAL = "general"


class Text(str):
    __slots__ = ()


class Blob(bytes):
    pass


@pytest.mark.parametrize("key", [Room.GENERAL, Text("general")])
async def test_what_is_derived_from_text_or_bytes_is_taken_as_such(hs: Heatsink, key: str) -> None:
    await hs.log.append(key, Blob(b"first"))
    await spread(hs, key, 3)
    await hs.log.append(key, Blob(b"second"))
    assert (await hs.explain("general")).buckets == 3
    assert [entry.body for entry in await everything(hs, "general")] == [b"second", b"first"]
    await hs.counters.add(key)
    assert await hs.counters.value("general") == await hs.counters.value(key) == 1


async def test_a_page_of_an_unknown_key_is_empty(hs: Heatsink) -> None:
    page = await hs.log.page("nobody")
    assert (page.entries, page.cursor) == ([], None)
    assert await hs.log.get("nobody", Uuid7().value(Uuid7().from_parts(1, 1, 1))) is None


async def test_a_retry_with_the_same_id_is_the_same_append(hs: Heatsink) -> None:
    receipt = await hs.log.append("conv", b"hey")
    again = await hs.log.append("conv", b"hey", id=receipt.id)
    assert again.id == receipt.id
    assert len((await hs.log.page("conv")).entries) == 1
    with pytest.raises(Conflict, match="another body"):
        await hs.log.append("conv", b"you", id=receipt.id)


async def test_a_deleted_entry_stays_deleted(hs: Heatsink) -> None:
    receipt = await hs.log.append("conv", b"hey")
    assert await hs.log.delete("conv", receipt.id) is True
    assert await hs.log.delete("conv", receipt.id) is False
    with pytest.raises(Deleted, match="new id"):
        await hs.log.append("conv", b"hey", id=receipt.id)
    assert await hs.log.get("conv", receipt.id) is None
    assert (await hs.log.page("conv")).entries == []


async def test_layouts_change_under_the_readers_and_nothing_moves(hs: Heatsink) -> None:
    """1 → 4 → 2 → 1 buckets: every row once, in order, found by id, repeatable, erasable."""
    receipts: list[Receipt] = []
    for buckets in (1, 4, 2, 1):
        if buckets != 1 or receipts:
            await spread(hs, "conv", buckets)
        receipts += [await hs.log.append("conv", b"%d of %d" % (n, buckets)) for n in range(30)]
    newest, oldest = await everything(hs, "conv"), await everything(hs, "conv", order="oldest")
    assert [entry.id for entry in oldest] == [receipt.id for receipt in receipts]
    assert newest == oldest[::-1]
    for receipt, entry in zip(receipts, oldest, strict=True):
        assert await hs.log.get("conv", receipt.id) == entry
        await hs.log.append("conv", entry.body, id=receipt.id)
    assert len(await everything(hs, "conv")) == 120
    assert await hs.log.erase("conv") == 120
    assert await everything(hs, "conv") == []


async def test_a_cursor_survives_a_change_of_layout(hs: Heatsink) -> None:
    receipts = [await hs.log.append("conv", b"%d" % n) for n in range(20)]
    page = await hs.log.page("conv", limit=5)
    await spread(hs, "conv", 4)
    await hs.log.append("conv", b"later")
    rest = await hs.log.page("conv", limit=50, cursor=page.cursor)
    ids = [entry.id for entry in page.entries + rest.entries]
    assert ids == [receipt.id for receipt in reversed(receipts)]


async def test_ranges_by_id_and_by_time(hs: Heatsink) -> None:
    receipts = [await hs.log.append("conv", b"%d" % n) for n in range(9)]
    between = await hs.log.page("conv", after=receipts[2].id, before=receipts[6].id)
    assert [entry.body for entry in between.entries] == [b"5", b"4", b"3"]
    oldest = await hs.log.page("conv", after=receipts[2].id, order="oldest", limit=2)
    assert [entry.body for entry in oldest.entries] == [b"3", b"4"]
    since = receipts[0].time - timedelta(seconds=1)
    assert len((await hs.log.page("conv", after=since)).entries) == 9
    assert (await hs.log.page("conv", before=since)).entries == []
    assert (await hs.log.page("conv", after=receipts[6].id, before=receipts[2].id)).entries == []


async def test_a_time_splits_the_ids_of_every_kind() -> None:
    """Also ids whose low bits are all ones or all zeros: each is before or after, never neither."""
    time_ms = 1_656_432_460_000
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    ticks = time_ms - TWITTER_EPOCH_MS
    async with connect("memory://", ids=Snowflake()) as hs:
        for tweet in ((ticks << 22) - 1, ticks << 22, (ticks << 22) + 1):
            await hs.log.append("conv", b"", id=tweet)
        before = (await hs.log.page("conv", before=moment)).entries
        after = (await hs.log.page("conv", after=moment)).entries
    assert [entry.id for entry in before] == [(ticks << 22) - 1]
    assert [entry.id for entry in after] == [(ticks << 22) + 1, ticks << 22]


@pytest.mark.parametrize("key", ["a#b", "50%", "a b", "🔥", "#", "%23", "x" * 1000])
async def test_unusual_keys_do_not_meet(hs: Heatsink, key: str) -> None:
    await hs.log.append("a", b"a")
    await hs.log.append(key, b"")
    (entry,) = (await hs.log.page(key)).entries
    assert entry.body == b""


async def test_a_key_named_like_a_bucket_is_another_key(hs: Heatsink) -> None:
    await spread(hs, "c", 2)
    for n in range(10):
        await hs.log.append("c", b"%d" % n)
    assert (await hs.log.page("c#0")).entries == []
    await hs.log.append("c#0", b"foreign")
    assert b"foreign" not in [entry.body for entry in (await hs.log.page("c")).entries]


async def test_entries_expire(hs: Heatsink) -> None:
    await hs.log.append("conv", b"for ever")
    await hs.log.append("conv", b"brief", ttl=0.05)
    while len((await hs.log.page("conv")).entries) > 1:
        await asyncio.sleep(0.02)
    assert [entry.body for entry in (await hs.log.page("conv")).entries] == [b"for ever"]


async def test_other_kinds_of_ids() -> None:
    async with connect("memory://", ids=Ulid()) as hs:
        receipt = await hs.log.append("conv", b"hey")
        assert len(receipt.id) == 26
        entry = await hs.log.get("conv", receipt.id)
        assert entry is not None
        assert entry.id == receipt.id
    async with connect("memory://", ids=Snowflake()) as snow:
        await snow.log.append("conv", b"tweet", id=1541815603606036480)
        (found,) = (await snow.log.page("conv")).entries
        assert (found.id, found.time.year) == (1541815603606036480, 2022)
        with pytest.raises(InvalidId, match="id is missing: this deployment uses Snowflake ids"):
            await snow.log.append("conv", b"no id")
        await snow.counters.add("views")
        async with snow.counters.buffered() as counts:
            counts.add_soon("views")
        assert await snow.counters.value("views") == 2


@pytest.mark.parametrize("scheme", [Uuid7(), Ulid()])
async def test_a_text_of_the_caller_names_one_id(scheme: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    async with connect(url, ids=scheme) as one, connect(url, ids=scheme) as two:
        first, again = await asyncio.gather(
            one.log.id_for("conv", "order-17"), two.log.id_for("conv", "order-17")
        )
        assert first == again
        await one.pin("conv", buckets=4, reason="a layout between the attempts")
        assert first == await two.log.id_for("conv", "order-17")
        others = [await one.log.id_for(*of) for of in (("conv", "order-18"), ("c", "order-17"))]
        assert len({first, *others}) == 3
        receipt = await one.log.append("conv", b"hey", id=first)
        assert not (await two.log.append("conv", b"hey", id=first)).is_new
        assert (await two.log.page("conv")).entries == [await one.log.get("conv", receipt.id)]


async def test_a_bad_text_of_the_caller_is_named(hs: Heatsink) -> None:
    for text in ("", "a" * 257, 17):
        with pytest.raises(InvalidSetting, match="retry_key") as refused:
            await hs.log.id_for("conv", text)  # type: ignore[arg-type]
        assert refused.value.field == "retry_key"


async def test_thousands_at_once_are_all_there(hs: Heatsink) -> None:
    await asyncio.gather(*(hs.log.append("conv", b"%d" % n) for n in range(3_000)))
    bodies = [int(entry.body) for entry in await everything(hs, "conv", limit=1_000)]
    assert sorted(bodies) == list(range(3_000))


async def test_erase_counts_what_it_knows_to_have_removed() -> None:
    """An attempt whose answer is lost has removed rows that nobody can count any more."""
    stores = memory_stores(SystemClock())
    async with Heatsink(stores, Settings(), SystemClock(), Random(1)) as hs:
        for n in range(5):
            await hs.log.append("conv", b"%d" % n)
        erase, answers = stores.log.erase, [Unavailable("the answer was lost")]

        async def unheard(partition: str) -> int:
            erased = await erase(partition)
            if answers:
                raise answers.pop()
            return erased

        with patch.object(stores.log, "erase", unheard):
            assert await hs.log.erase("conv") == 0
        assert (await hs.log.page("conv")).entries == []
        await hs.log.append("conv", b"anew")
        assert await hs.log.erase("conv") == 1


@pytest.mark.parametrize("answers_in_s", [1.5, inf])
@pytest.mark.parametrize("own_id", [True, False])
def test_an_append_ends_at_its_deadline(answers_in_s: float, own_id: bool) -> None:
    """Also if the store ends an attempt by itself, so that the first one need not be cut."""

    async def put_in_vain(*_: object) -> None:
        await asyncio.sleep(min(answers_in_s, 60))
        raise Unavailable("it hangs")

    async def scenario() -> float:
        clock = SkewedClock()
        stores = replace(memory_stores(clock), answers_in_s=answers_in_s)
        settings = Settings(retries=Retries(deadline_s=2.0))
        async with Heatsink(stores, settings, clock, Random(1)) as hs:
            fresh = hs.log._router.fresh("conv")[0] if own_id else None
            started_s = asyncio.get_running_loop().time()
            with pytest.raises(Overloaded):
                await hs.log.append("conv", b"hey", id=fresh and Uuid7().value(fresh))
            return asyncio.get_running_loop().time() - started_s

    with patch.object(MemoryLog, "put", put_in_vain):
        assert 1.5 <= run_on_virtual_time(scenario()) <= 2.01


def test_an_append_that_may_have_happened_is_repeated_with_its_errors_id() -> None:
    """The row lands, its answer does not come."""
    put = MemoryLog.put

    async def put_and_forget(*row: Any) -> None:
        await put(*row)
        raise Unavailable("the answer is lost")

    async def scenario() -> list[Entry]:
        clock = SkewedClock()
        settings = Settings(retries=Retries(deadline_s=2.0))
        async with Heatsink(memory_stores(clock), settings, clock, Random(1)) as hs:
            with (
                patch.object(MemoryLog, "put", put_and_forget),
                pytest.raises(Overloaded) as caught,
            ):
                await hs.log.append("conv", b"hey")
            receipt = await hs.log.append("conv", b"hey", id=caught.value.id)
            assert (receipt.id, receipt.is_new) == (caught.value.id, False)
            return (await hs.log.page("conv")).entries

    [entry] = run_on_virtual_time(scenario())
    assert entry.body == b"hey"


def losing_the_first_answer(
    store: type = MemoryLog, then: Callable[[Any, Any, Any], Awaitable[None]] | None = None
) -> Any:
    """The first put of every row lands, and its answer is lost; `then` happens before the retry."""
    put, seen = store.put, set[bytes]()  # type: ignore[attr-defined]

    async def put_twice(self: Any, partition: str, row: Row) -> Row | None:
        taken_by: Row | None = await put(self, partition, row)
        if row.raw in seen:
            return taken_by
        seen.add(row.raw)
        if then is not None:
            await then(self, partition, row)
        raise Unavailable("the answer is lost")

    return patch.object(store, "put", put_twice)


def log_store(hs: Heatsink) -> type:
    return type(hs.log._store)


async def test_an_append_without_an_id_is_new_also_when_its_retry_meets_its_first_attempt(
    hs: Heatsink,
) -> None:
    with losing_the_first_answer(log_store(hs)):
        receipts = [await hs.log.append("conv", b"hey") for _ in range(20)]
        assert all(receipt.is_new for receipt in receipts)
        again = await hs.log.append("conv", b"hey", id=receipts[0].id)
    assert not again.is_new
    assert len(await everything(hs, "conv")) == len(receipts)


async def test_an_append_that_was_deleted_before_its_retry_was_an_append(hs: Heatsink) -> None:
    async def delete(log: Any, partition: str, row: Row) -> None:
        await log.delete(partition, replace_struct(row, body=b"", deleted=True))

    with losing_the_first_answer(log_store(hs), delete):
        receipt = await hs.log.append("conv", b"hey")
    assert receipt.is_new
    assert await hs.log.get("conv", receipt.id) is None
    with pytest.raises(Deleted):
        await hs.log.append("conv", b"hey", id=receipt.id)
