"""DynamoDB may do a part of a batch and hand back the rest as `UnprocessedItems`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from heatsink import connect
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import Unavailable
from heatsink.primitives.clock import SystemClock
from heatsink.stores.dynamodb import make_table, open_table
from heatsink.stores.dynamodb.address import DynamoAddress, parse
from heatsink.stores.dynamodb.client import DynamoClient, Result
from heatsink.stores.dynamodb.table import key

CLOCK = SystemClock()
ROWS = 60


@pytest.fixture
async def address() -> AsyncIterator[DynamoAddress]:
    async with running_engine(EngineSettings(port=0), CLOCK) as endpoint:
        made = parse("messages", {"endpoint": endpoint})
        await make_table(made, CLOCK)
        yield made


@contextmanager
def handing_back(batches: int) -> Iterator[list[int]]:
    """The engine does half of each of the first batches. Yields how many requests came back."""
    call, handed_back = DynamoClient.call, list[int]()

    async def half(self: DynamoClient, operation: str, payload: Any, *others: Any) -> Result:
        if operation != "BatchWriteItem" or len(handed_back) == batches:
            return await call(self, operation, payload, *others)
        ((table, requests),) = payload["RequestItems"].items()
        done, left = requests[::2], requests[1::2]
        answer = await call(self, operation, {"RequestItems": {table: done}}, *others)
        handed_back.append(len(left))
        body = {**answer.body, "UnprocessedItems": {table: left} if left else {}}
        return Result(body, answer.store_ms)

    with patch.object(DynamoClient, "call", half):
        yield handed_back


async def test_erase_goes_on_until_every_row_is_gone(address: DynamoAddress) -> None:
    url = f"dynamodb://{address.table}?endpoint={address.endpoint}"
    async with connect(url) as hs:
        for number in range(ROWS):
            await hs.log.append("conv", b"%d" % number)
            await hs.counters.add("conv")
        with handing_back(3) as handed_back:
            await hs.log.erase("conv")
        assert sum(handed_back) > 0
        assert (await hs.log.page("conv", limit=ROWS)).entries == []
        assert await hs.counters.value("conv") == 0


async def test_deletes_that_were_not_done_are_an_error_to_be_retried(
    address: DynamoAddress,
) -> None:
    """The registry deletes what it restores over and what it trims by the same call."""
    table, client = open_table(address, CLOCK)
    keys = [key("p", b"%03d" % number) for number in range(ROWS)]
    try:
        for each in keys:
            await table.call("PutItem", {"Item": each})
        with handing_back(1), pytest.raises(Unavailable, match="some deletes: retry"):
            await table.delete_all(keys)
        await table.delete_all(keys)
        assert [await table.get(each, consistent=True) for each in keys] == [None] * ROWS
    finally:
        await client.close()
