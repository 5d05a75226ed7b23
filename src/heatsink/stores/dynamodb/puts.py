"""The hot path: the PutItem of a new row, put together as text and read for its price alone.

A general call builds a request of dictionaries, encodes it, decodes the answer into dictionaries
and reads the store's time. A row's shape is known, and nobody asks what time it was.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from heatsink.spread.store import Row

from .client import DynamoClient
from .failures import failure_of
from .items import ROW, row_item

CONDITIONS = {
    "ConditionExpression": "attribute_not_exists(p)",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    "ReturnConsumedCapacity": "TOTAL",
}
encode = msgspec.json.encode


class Consumed(msgspec.Struct):
    """`Partition` is where our engine put the row; DynamoDB does not tell."""

    CapacityUnits: float = 0.0
    Partition: int | None = None


class PutAnswer(msgspec.Struct):
    ConsumedCapacity: Consumed | None = None


decode = msgspec.json.Decoder(PutAnswer).decode
NOTHING = Consumed()


class RowPuts:
    """Puts of rows that must not be there yet."""

    def __init__(self, client: DynamoClient, table: str) -> None:
        self._client = client
        self._request = {"TableName": table, **CONDITIONS}
        self._head = encode(self._request)[:-1]

    async def put(self, partition: str, row: Row) -> Consumed:
        """What it consumed. `ConditionFailed` if there is a row of this id."""
        body = self.body(partition, row)
        status, _, answer = await self._client.send("PutItem", body)
        if status != 200:
            request: dict[str, Any] = msgspec.json.decode(body)
            raise failure_of("PutItem", request, status, answer)
        return self._client.read(answer, decode).ConsumedCapacity or NOTHING

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
