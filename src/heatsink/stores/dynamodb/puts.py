"""The hot path: the PutItem of a new row, put together as text and read for its price alone.

A general call builds a request of dictionaries, encodes it, decodes the answer into dictionaries
and reads the store's time. A row's shape is known, and nobody asks what time it was. It is also
sent from here and not through one more coroutine, which would cost more than a microsecond.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from heatsink.spread.store import Row
from heatsink.stores.stores import Meter

from .client import BROKEN
from .failures import ConditionFailed, failure_of
from .items import ROW, key, row_item, row_of
from .table import Table

CONDITIONS = {
    "ConditionExpression": "attribute_not_exists(p)",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    "ReturnConsumedCapacity": "TOTAL",
}
encode = msgspec.json.encode


class Consumed(msgspec.Struct, frozen=True):
    """`Partition` is where our engine put the row; DynamoDB does not tell."""

    CapacityUnits: float = 0.0
    Partition: int | None = None


class PutAnswer(msgspec.Struct):
    """What was asked for must be in it: else something else answered, and no row was written."""

    ConsumedCapacity: Consumed


decode = msgspec.json.Decoder(PutAnswer).decode


@lru_cache(maxsize=64)
def consumed_in(answer: bytes) -> Consumed:
    """Most answers are the same to the letter, as most rows cost one unit."""
    return decode(answer).ConsumedCapacity


class RowPuts:
    """Puts of rows that must not be there yet."""

    def __init__(self, table: Table, meter: Meter) -> None:
        self._table = table
        self._client = table.client
        self._note = meter.notes.append
        self._request = {"TableName": table.name, **CONDITIONS}
        self._head = encode(self._request)[:-1] + b',"Item":{"p":{"S":'

    async def put(self, partition: str, row: Row) -> Row | None:
        """The row that has this id already, if there is one."""
        body = self.body(partition, row)
        client = self._client
        try:
            with client.in_time():
                async with client.turns:
                    response = await client.post("PutItem", body, await client.credentials.get())
                    answer = await response.read()
        except BROKEN as error:
            raise client.explained(error) from None
        if response.status != 200:
            refusal = failure_of("PutItem", msgspec.json.decode(body), response.status, answer)
            return await self._taken_by(partition, row, refusal)
        try:
            consumed = consumed_in(answer)
        except ValueError:
            raise client.stranger() from None
        units, place = consumed.CapacityUnits, consumed.Partition
        if units > 1 or place is not None:
            self._note((partition, len(row.body), units, place))
        return None

    async def _taken_by(self, partition: str, row: Row, refusal: Exception) -> Row:
        """Read once more for engines that do not send the old item back."""
        if not isinstance(refusal, ConditionFailed):
            raise refusal
        item = refusal.items[0]
        if not item:
            item = await self._table.get(key(partition, ROW + row.raw), consistent=True)
        return row_of(item) if item else row

    def body(self, partition: str, row: Row) -> bytes:
        if row.expires_ms is not None or row.deleted:
            return encode({**self._request, "Item": row_item(partition, row)})
        parts = (
            self._head,
            encode(partition),
            b'},"s":{"B":',
            encode(ROW + row.raw),
            b'},"b":{"B":',
            encode(row.body),
            b'},"e":{"N":"%d"},"n":{"N":"%d"}}}' % (row.epoch_ms, row.buckets),
        )
        return b"".join(parts)
