"""The request of a new row is put together by hand, and is the one a general call would send."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from heatsink import connect
from heatsink.clock import SystemClock
from heatsink.dynamo.server import running_engine
from heatsink.dynamo.settings import EngineSettings
from heatsink.spread.store import Row
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.client import DynamoClient
from heatsink.stores.dynamodb.credentials import FixedCredentials
from heatsink.stores.dynamodb.items import row_item
from heatsink.stores.dynamodb.puts import CONDITIONS, RowPuts
from heatsink.stores.dynamodb.table import Table
from heatsink.stores.stores import Meter

CLIENT = DynamoClient("http://localhost", "local", FixedCredentials(), SystemClock())
times = st.integers(0, 2**48)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
rows = st.builds(
    Row, st.binary(min_size=8, max_size=16), st.binary(), times, st.integers(1, 512),
    st.none() | times, st.booleans(),
)  # fmt: skip


@given(names, names, rows)
def test_a_row_is_sent_as_a_general_call_would_send_it(table: str, name: str, row: Row) -> None:
    sent = msgspec.json.decode(RowPuts(Table(CLIENT, table), Meter()).body(name, row))
    assert sent == {"TableName": table, **CONDITIONS, "Item": row_item(name, row)}


class Text(str):
    __slots__ = ()


class Blob(bytes):
    pass


async def test_what_is_derived_from_text_or_bytes_is_sent_as_such() -> None:
    async with running_engine(EngineSettings(port=0), SystemClock()) as endpoint:
        address = parse("messages", {"endpoint": endpoint})
        await make_table(address, SystemClock())
        async with connect(f"dynamodb://messages?endpoint={endpoint}") as hs:
            await hs.log.append(Text("general"), Blob(b"hello"))
            [entry] = (await hs.log.page("general")).entries
            assert entry.body == b"hello"
