"""The hot path: the PutItem of a new row, put together as text and read for its price alone.

A general call builds a request of dictionaries, encodes it, decodes the answer into dictionaries
and reads the store's time. A row's shape is known, and nobody asks what time it was.
"""

from __future__ import annotations

from binascii import b2a_base64
from functools import partial

import msgspec

from heatsink.spread.store import Row
from heatsink.stores.stores import Meter

from .failures import ConditionFailed, failure_of
from .items import ROW, key, row_item, row_of
from .table import Table

CONDITIONS = {
    "ConditionExpression": "attribute_not_exists(p)",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    "ReturnConsumedCapacity": "TOTAL",
}
encode = msgspec.json.encode
b64encode = partial(b2a_base64, newline=False)


class Consumed(msgspec.Struct, frozen=True):
    """`Partition` is where our engine put the row; DynamoDB does not tell."""

    CapacityUnits: float = 0.0
    Partition: int | None = None


NOTHING = Consumed()


class PutAnswer(msgspec.Struct):
    ConsumedCapacity: Consumed = NOTHING


decode = msgspec.json.Decoder(PutAnswer).decode


class RowPuts:
    """Puts of rows that must not be there yet."""

    def __init__(self, table: Table, meter: Meter) -> None:
        self._table = table
        self._client = table.client
        self._note = meter.notes.append
        self._request = {"TableName": table.name, **CONDITIONS}
        self._head = encode(self._request)[:-1]

    async def put(self, partition: str, row: Row) -> Row | None:
        """The row that has this id already, if there is one."""
        body = self.body(partition, row)
        status, _, answer = await self._client.send("PutItem", body)
        if status != 200:
            refusal = failure_of("PutItem", msgspec.json.decode(body), status, answer)
            return await self._taken_by(partition, row, refusal)
        consumed = self._client.read(answer, decode).ConsumedCapacity
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
        return (
            b'%b,"Item":{"p":{"S":%b},"s":{"B":"%b"},"b":{"B":"%b"},"e":{"N":"%d"},"n":{"N":"%d"}}}'
            % (
                self._head,
                encode(partition),
                b64encode(ROW + row.raw),
                b64encode(row.body),
                row.epoch_ms,
                row.buckets,
            )
        )
