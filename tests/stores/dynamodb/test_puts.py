"""The request of a new row is put together by hand, and is the one a general call would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink import Heatsink, connect
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import Misconfigured
from heatsink.primitives.clock import SystemClock
from heatsink.spread.store import Row
from heatsink.stores.dynamodb import make_table, open_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.client import DynamoClient, FixedCredentials, Item
from heatsink.stores.dynamodb.log import CONDITIONS, RowPuts
from heatsink.stores.dynamodb.table import EPOCHS, ROW, SHARE, DynamoTable, key, row_item
from heatsink.stores.stores import ConsumptionNotes

CLIENT = DynamoClient("http://localhost", "local", FixedCredentials(), SystemClock())
times = st.integers(0, 2**48)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
rows = st.builds(
    Row, st.binary(min_size=8, max_size=16), st.binary(), times, st.integers(1, 512),
    st.none() | times, st.booleans(),
)  # fmt: skip


@given(names, names, rows)
def test_a_row_is_sent_as_a_general_call_would_send_it(table: str, name: str, row: Row) -> None:
    sent = msgspec.json.decode(
        RowPuts(DynamoTable(CLIENT, table), ConsumptionNotes()).body(name, row)
    )
    assert sent == {"TableName": table, **CONDITIONS, "Item": row_item(name, row)}


class Text(str):
    __slots__ = ()


class Blob(bytes):
    pass


@asynccontextmanager
async def on_an_engine() -> AsyncIterator[tuple[Heatsink, str]]:
    """With the engine's address."""
    async with running_engine(EngineSettings(port=0), SystemClock()) as endpoint:
        await make_table(parse("messages", {"endpoint": endpoint}), SystemClock())
        async with connect(f"dynamodb://messages?endpoint={endpoint}") as hs:
            yield hs, endpoint


async def test_what_is_derived_from_text_or_bytes_is_sent_as_such() -> None:
    async with on_an_engine() as (hs, _):
        await hs.log.append(Text("general"), Blob(b"hello"))
        [entry] = (await hs.log.page("general")).entries
        assert entry.body == b"hello"


async def test_callers_beyond_the_connections_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who calls again at once does not pass those who wait."""
    monkeypatch.setattr("heatsink.stores.dynamodb.client.CONNECTIONS_MAX", 2)
    appended = [0] * 12

    async def append_until_one_has(enough: int, caller: int) -> None:
        while max(appended) < enough:
            await hs.log.append(f"room-{caller}", b"hello")
            appended[caller] += 1

    async with on_an_engine() as (hs, _), asyncio.TaskGroup() as callers:
        for caller in range(len(appended)):
            callers.create_task(append_until_one_has(20, caller))
    assert min(appended) >= 18


async def test_the_registry_does_not_stand_in_line_behind_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows wait for the closed time, and a pin for nobody."""
    monkeypatch.setattr("heatsink.stores.dynamodb.client.CONNECTIONS_MAX", 1)
    async with on_an_engine() as (hs, _):
        turns = hs.parts.stores.log._table.client.turns  # type: ignore[attr-defined]
        await turns.take()  # as if by rows whose answers do not come
        await hs.pin("general", buckets=2, reason="launch")
        assert hs.status().pinned_keys == 1
        turns.give_back()
        await hs.log.append("general", b"hello")


async def put_past(endpoint: str, partition: str, sort: bytes, **attributes: Item) -> None:
    """As somebody else would who writes to the table."""
    table, client = open_table(parse("messages", {"endpoint": endpoint}), SystemClock())
    await table.call("PutItem", {"Item": {**key(partition, sort), **attributes}})
    await client.close()


async def test_an_item_that_is_no_row_is_named() -> None:
    async with on_an_engine() as (hs, endpoint):
        id = (await hs.log.append("general", b"hello")).id
        await put_past(endpoint, "general", ROW + id.bytes, color={"S": "green"})
        with pytest.raises(Misconfigured, match=r"general.*not a valid row .*Delete the item"):
            await hs.log.append("general", b"hello", id=id)
        with pytest.raises(Misconfigured, match="another program writes"):
            await hs.log.page("general")


async def test_a_row_whose_id_is_none_is_named() -> None:
    async with on_an_engine() as (hs, endpoint):
        await put_past(endpoint, "general", ROW + b"short", b={"B": "aGVsbG8="})
        with pytest.raises(Misconfigured, match=r"not a valid row .*Delete the item"):
            await hs.log.page("general")


async def test_a_counter_that_is_none_is_named() -> None:
    async with on_an_engine() as (hs, endpoint):
        await put_past(endpoint, "views", SHARE, v={"S": "many"})
        with pytest.raises(Misconfigured, match=r"views.*not a valid counter .*again at 0"):
            await hs.counters.value("views")


async def test_a_layout_that_is_none_is_named_and_other_keys_get_their_buckets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with on_an_engine() as (hs, endpoint):
        await put_past(endpoint, "bad", EPOCHS, color={"S": "green"})
        with pytest.raises(Misconfigured, match=r"bad.*not a valid layout .*fsck --rebuild"):
            await hs.log.page("bad")
        await hs.pin("bad", buckets=2, reason="launch")
        await hs.pin("good", buckets=2, reason="launch")
        while (await hs.explain("good")).buckets != 2:
            await asyncio.sleep(0.05)
    assert "a turn of the coordinator failed: the item with p=" in caplog.text
