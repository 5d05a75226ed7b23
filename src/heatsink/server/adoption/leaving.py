"""Moves the rows of a table back under the bare key, so that programs can use it without Heatsink.

First the registry gets a note, after which all processes refuse requests on the table. Then each
row in a bucket is moved by one transaction. The transaction puts the row under the bare key and
deletes it from its bucket. It fails if the bare key already holds such a row, or if the row in the
bucket has changed since it was read. So a row is in exactly one place at any time. If another
program changes a row before the transaction, the row is moved in its new form.

If both places hold a row with the same sort key, another program has written the row under the bare
key. The move leaves both rows as they are, and reports them: only you know which one is right.

If a move was interrupted, even by `kill -9`, run it again: it continues.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from heatsink.door.keys import TAG, physical
from heatsink.door.places import application_key
from heatsink.errors import Unavailable
from heatsink.registry.decisions import View
from heatsink.registry.layouts import Layout
from heatsink.stores.dynamodb.client import ConditionFailed

from .patient import Caller
from .writers import rows_of, spread_keys

Row = dict[str, Any]
TRIES = 20
COMPARED_MAX = 140  # DynamoDB allows 300 operators in an expression, and each AND may be one
Outcome = Literal["moved", "merged", "conflict"]


class Keys(msgspec.Struct, frozen=True):
    """The names of a table and of its key attributes."""

    table: str
    partition: str
    sort: str


class Moved(msgspec.Struct, frozen=True):
    """What became of one row that leaves its bucket.

    `merged` means that the same row was already under the bare key.
    """

    partition_key: str
    sort_key: Any
    outcome: Outcome


async def bucket_rows(
    client: Caller, keys: Keys, view: View, everything: bool
) -> AsyncIterator[Row]:
    """Yield the rows that are in buckets.

    The layouts in the registry name the keys that were ever spread. With `everything`, scan the
    whole table instead: prefixes with a fixed number of buckets leave no layout.
    """
    names = {"#p": keys.partition}
    if everything:
        request: Row = {
            "TableName": keys.table,
            "FilterExpression": "contains(#p, :tag)",
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": {":tag": {"S": TAG}},
            "ConsistentRead": True,
        }
        async for row in rows_of(client, "Scan", request):
            if application_key(row[keys.partition]["S"]) != row[keys.partition]["S"]:
                yield row
        return
    from heatsink.door.keys import subject_in

    for key in spread_keys(view, keys.table):
        layout = view.layout(subject_in(keys.table, key).text)
        for bucket in range(_most(layout)):
            request = {
                "TableName": keys.table,
                "KeyConditionExpression": "#p = :p",
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": {":p": {"S": physical(key, bucket)}},
                "ConsistentRead": True,
            }
            async for row in rows_of(client, "Query", request):
                yield row


def _most(layout: Layout) -> int:
    return max(epoch.buckets for epoch in layout.epochs)


class RowMover:
    """Moves rows. Several moves may run at the same time."""

    def __init__(self, client: Caller, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def move(self, row: Row, name: str | None = None) -> Moved:
        """Move a row under the partition key `name`; None moves it from its bucket to the bare key.

        If the row changes during the move, this tries again. Raises `Unavailable` if it changes too
        often.
        """
        for _ in range(TRIES):
            outcome = await self._try(row, name)
            if outcome is not None:
                key = application_key(row[self._keys.partition]["S"])
                return Moved(key, row[self._keys.sort], outcome)
            found = await self.read(self._key_of(row))
            if found is None:  # another run has moved it
                key = application_key(row[self._keys.partition]["S"])
                return Moved(key, row[self._keys.sort], "merged")
            row = found
        raise Unavailable(f"a row of table {self._keys.table} could not be moved: run this again")

    async def _try(self, row: Row, name: str | None) -> Outcome | None:
        """Try one move. Returns None if the row has changed since it was read."""
        goes_to = application_key(row[self._keys.partition]["S"]) if name is None else name
        bare = {**row, self._keys.partition: {"S": goes_to}}
        put = {
            "TableName": self._keys.table,
            "Item": bare,
            "ConditionExpression": "attribute_not_exists(#p)",
            "ExpressionAttributeNames": {"#p": self._keys.partition},
        }
        delete = self._delete(row)
        try:
            actions = [{"Put": put}, {"Delete": delete}]
            await self._client.call("TransactWriteItems", {"TransactItems": actions})
        except ConditionFailed as refusal:
            if refusal.codes[1] == "ConditionalCheckFailed":
                return None
            return await self._settle(row, bare)
        return "moved"

    async def _settle(self, row: Row, bare: Row) -> Outcome | None:
        """Finish a move that found a row in the new place, which is that of `bare`.

        If the same row is in the new place, delete the old one. If another row is there, this is a
        conflict. Returns None if the move must be tried again.
        """
        found = await self.read(self._key_of(bare))
        if found is None:
            return None
        if found != bare:
            return "conflict"
        return "merged" if await self.drop(row) else None

    def _delete(self, row: Row) -> Row:
        """Return the request that deletes a row unless it has changed since it was read.

        It compares the first attributes of a row with very many: an expression cannot compare more.
        """
        others = [name for name in row if name not in (self._keys.partition, self._keys.sort)]
        others = others[:COMPARED_MAX]
        names = {f"#n{place}": name for place, name in enumerate(others)}
        values = {f":v{place}": row[name] for place, name in enumerate(others)}
        equal = [f"#n{place} = :v{place}" for place in range(len(others))]
        request: Row = {
            "TableName": self._keys.table,
            "Key": self._key_of(row),
            "ConditionExpression": " AND ".join(["attribute_exists(#p)", *equal]),
            "ExpressionAttributeNames": {"#p": self._keys.partition, **names},
        }
        return {**request, "ExpressionAttributeValues": values} if values else request

    async def drop(self, row: Row) -> bool:
        """Delete a row unless it has changed since it was read. Returns whether it was deleted."""
        try:
            await self._client.call("DeleteItem", self._delete(row))
        except ConditionFailed:
            return False
        return True

    async def read(self, key: Row) -> Row | None:
        request = {"TableName": self._keys.table, "Key": key, "ConsistentRead": True}
        found: Row | None = (await self._client.call("GetItem", request)).body.get("Item")
        return found

    def _key_of(self, row: Row) -> Row:
        return {name: row[name] for name in (self._keys.partition, self._keys.sort)}
