"""Rows of logs in DynamoDB."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import lru_cache

import msgspec

from heatsink.primitives.clock import Clock, now_ms
from heatsink.registry.layouts import COLD, Layout
from heatsink.spread.store import Answer, Ask, Row
from heatsink.stores.stores import ConsumptionNotes

from .client import BROKEN, ConditionFailed, Item, failure_of
from .table import EPOCHS, ROW, DynamoTable, binary, key, layout_of, row_item, row_of, sort_of

CONDITIONS = {
    "ConditionExpression": "attribute_not_exists(p)",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    "ReturnConsumedCapacity": "TOTAL",
}
encode = msgspec.json.encode
LAST = b"\xff"
ERASE_AT_ONCE = 25
NEXT = b"\x00"
RESERVED = ("%meta", "%log", "%keys", "%pins")


class ConsumedUnits(msgspec.Struct, frozen=True):
    """The capacity units that a put consumed.

    `Partition` is the physical partition. Heatsink's emulator returns it, and DynamoDB does not.
    """

    CapacityUnits: float = 0.0
    Partition: int | None = None


class PutAnswer(msgspec.Struct):
    """The response to a put. It always has the consumed capacity, since a put requests it."""

    ConsumedCapacity: ConsumedUnits


decode = msgspec.json.Decoder(PutAnswer).decode


@lru_cache(maxsize=64)
def consumed_in(answer: bytes) -> ConsumedUnits:
    """Return the consumed capacity in the response to a put.

    Most rows cost one unit, so most responses are identical. Therefore each different response is
    decoded only once.
    """
    return decode(answer).ConsumedCapacity


class RowPuts:
    """Puts new rows, as fast as possible, since most requests are puts.

    `DynamoClient.call` encodes a request from dictionaries, decodes the response into dictionaries,
    and reads the time in its headers. A put does none of this: it joins its request as text, and
    decodes only the consumed capacity. A put also sends the request itself, since one more
    coroutine would cost more than a microsecond.
    """

    def __init__(self, table: DynamoTable, meter: ConsumptionNotes) -> None:
        self._table = table
        self._client = table.client
        self._note = meter.notes.append
        self._request = {"TableName": table.name, **CONDITIONS}
        self._head = encode(self._request)[:-1] + b',"Item":{"p":{"S":'

    async def put(self, partition: str, row: Row) -> Row | None:
        """Put a row. Returns the existing row if its id is taken, otherwise None."""
        body = self.body(partition, row)
        client = self._client
        try:
            with client.in_time():
                if not (turns := client.turns).take_if_free():
                    await turns.take()
                try:
                    answer = await client.post("PutItem", body, await client.credentials.get())
                finally:
                    turns.give_back()
        except BROKEN as error:
            raise client.explained(error) from None
        if answer.status != 200:
            refusal = failure_of("PutItem", msgspec.json.decode(body), answer.status, answer.body)
            return await self._taken_by(partition, row, refusal)
        try:
            consumed = consumed_in(answer.body)
        except ValueError:
            raise client.not_dynamodb() from None
        units, place = consumed.CapacityUnits, consumed.Partition
        if units > 1 or place is not None:
            self._note((partition, len(row.body), units, place))
        return None

    async def _taken_by(self, partition: str, row: Row, refusal: Exception) -> Row:
        """Return the stored row that has the id of `row`. Raises `refusal` if no id was taken.

        The row is read from the table if the response does not contain it.
        """
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


class DynamoLog:
    """Rows of logs in one table.

    With `consistent=False`, reads of rows may be stale and cost half as much. Reads of layouts are
    always consistent.
    """

    def __init__(
        self, table: DynamoTable, clock: Clock, consistent: bool, meter: ConsumptionNotes
    ) -> None:
        self._table = table
        self.put = RowPuts(table, meter).put
        self._clock = clock
        self._consistent = consistent

    def _is_live(self, row: Row) -> bool:
        expired = row.expires_ms is not None and row.expires_ms <= now_ms(self._clock)
        return not row.deleted and not expired

    async def get(self, partition: str, raw: bytes) -> Row | None:
        item = await self._table.get(key(partition, ROW + raw), self._consistent)
        row = row_of(item) if item else None
        return row if row and self._is_live(row) else None

    async def query(self, partition: str, ask: Ask) -> Answer:
        """Return live rows of a partition key. With `ask.layout_of`, also return the key's layout.

        The layout is stored under the bare key and sorts after the rows. So one query reads both.
        """
        carries = ask.layout_of is not None
        rows: list[Row] = []
        layout: Layout | None = COLD if carries else None
        start: Item | None = None
        while True:
            wanted = ask.limit - len(rows) + carries
            items, start = await self._page(partition, ask, wanted, start)
            for item in items:
                if sort_of(item) == EPOCHS:
                    layout = layout_of(item)
                elif len(rows) < ask.limit and self._is_live(row := row_of(item)):
                    rows.append(row)
            if start is None or len(rows) == ask.limit:
                return Answer(rows, layout)

    async def _page(
        self, partition: str, ask: Ask, limit: int, start: Item | None
    ) -> tuple[list[Item], Item | None]:
        low = ROW if ask.above is None else ROW + ask.above + NEXT
        high = ROW + LAST * 17 if ask.below is None else _before(ROW + ask.below)
        if ask.layout_of is not None:
            high = EPOCHS
        request: Item = {
            "KeyConditionExpression": "p = :p AND s BETWEEN :low AND :high",
            "ExpressionAttributeValues": {
                ":p": {"S": partition},
                ":low": binary(low),
                ":high": binary(high),
            },
            "ScanIndexForward": not ask.newest_first,
            "Limit": limit,
            "ConsistentRead": self._consistent or ask.layout_of is not None,
        }
        if low > high:
            return [], None
        return await self._table.page("Query", request, start)

    async def delete(self, partition: str, tombstone: Row) -> bool:
        request = {"Item": row_item(partition, tombstone), "ReturnValues": "ALL_OLD"}
        answer = await self._table.call("PutItem", request)
        before = answer.body.get("Attributes")
        return before is not None and self._is_live(row_of(before))

    async def erase(self, partition: str) -> int:
        """Delete all rows, tokens and counter shares of a partition key.

        Returns the number of deleted rows. EPOCHS stays: the registry never deletes a layout.
        """
        erased = 0
        request: Item = {
            "KeyConditionExpression": "p = :p AND s < :high",
            "ExpressionAttributeValues": {":p": {"S": partition}, ":high": binary(EPOCHS)},
            "ProjectionExpression": "p, s",
            "ConsistentRead": True,
            "Limit": ERASE_AT_ONCE,
        }
        start: Item | None = None
        while True:
            items, start = await self._table.page("Query", request, start)
            await self._table.delete_all(items)
            erased += sum(sort_of(item)[:1] == ROW for item in items)
            if start is None:
                return erased

    async def scan(self) -> AsyncIterator[tuple[str, Row]]:
        start: Item | None = None
        while True:
            items, start = await self._table.page("Scan", {"ConsistentRead": True}, start)
            for item in items:
                if sort_of(item)[:1] == ROW and not item["p"]["S"].startswith(RESERVED):
                    yield item["p"]["S"], row_of(item)
            if start is None:
                return


def _before(sort: bytes) -> bytes:
    """Return a sort key just below `sort`, for a range that excludes `sort`."""
    lower = int.from_bytes(sort, "big") - 1
    return lower.to_bytes(len(sort), "big") + LAST * 4
