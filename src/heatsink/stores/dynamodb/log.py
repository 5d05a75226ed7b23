"""Rows in DynamoDB."""

from __future__ import annotations

from collections.abc import AsyncIterator

from heatsink.clock import Clock, now_ms
from heatsink.registry.layout import COLD, Layout
from heatsink.spread.store import Answer, Ask, Row
from heatsink.stores.stores import Meter

from .items import EPOCHS, ROW, Item, binary, key, layout_of, row_item, row_of, sort_of
from .puts import RowPuts
from .table import Table

LAST = b"\xff"
ERASE_AT_ONCE = 25


class DynamoLog:
    """`consistent=False` reads what may be stale, at half the price: never the registry's."""

    def __init__(self, table: Table, clock: Clock, consistent: bool, meter: Meter) -> None:
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
        """Live rows; the key's layout comes along from the top of its bare partition."""
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
        """Rows, tokens and shares; EPOCHS stays, since the registry never forgets."""
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


NEXT = b"\x00"
RESERVED = ("%meta", "%log", "%keys", "%pins")


def _before(sort: bytes) -> bytes:
    """The largest sort key below one of the same length, for a range that excludes its end."""
    lower = int.from_bytes(sort, "big") - 1
    return lower.to_bytes(len(sort), "big") + LAST * 4
