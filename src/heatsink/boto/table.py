"""`Table`: the calls of boto3's Table on a spread table, while the client stays as it is.

Heatsink is attached to a copy of the client. The copy shares the client's connections, credentials
and settings, but has hooks of its own. So a program can use the table with and without Heatsink.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Unpack

from heatsink.client.settings import ConnectOptions
from heatsink.coordinator.explainer import Explanation
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.times import After, TimeOf
from heatsink.errors import InvalidSetting

from .attach import attach


class Table:
    """An existing table with the calls of boto3's Table, for any thread. `close` it at the end.

    `boto_table` is your own `boto3.resource("dynamodb").Table(…)`. `time_of` returns the
    milliseconds in a sort key (see `heatsink.boto.times`). `registry` is the URL of a store for
    Heatsink's registry. `settings` are those of `heatsink.connect`: `news`, `rules`, `retries`, …
    The table is declared append-only, so other programs may use it without Heatsink. Raises
    `InvalidSetting` for a bad argument. Its calls raise the ClientErrors of boto3::

        table = Table(boto_table, partition_key="room", sort_key="at", time_of=iso_text,
                      registry="dynamodb://registry")
        table.put_item(Item={"room": "r1", "at": "2026-11-15T12:00:00.000Z"})
    """

    def __init__(
        self,
        boto_table: Any,
        *,
        partition_key: str,
        sort_key: str,
        time_of: TimeOf,
        registry: str,
        **settings: Unpack[ConnectOptions],
    ) -> None:
        has_client = hasattr(getattr(boto_table, "meta", None), "client")
        if not has_client or not hasattr(boto_table, "name"):
            raise InvalidSetting(
                'boto_table must be boto3.resource("dynamodb").Table(…)', field="boto_table"
            )
        self.name: str = boto_table.name
        self._keys = [partition_key, sort_key]
        declared = SpreadTable(
            self.name,
            partition_key,
            sort_key,
            [_rule(time_of)],
            sort_type=_sort_type(boto_table, sort_key),
            append_only=True,
        )
        twin = _twin_of(boto_table.meta.client)
        self._attachment = attach(twin, tables=[declared], registry=registry, **settings)
        self._table = type(boto_table)(self.name, client=twin)

    def put_item(self, **parameters: Any) -> dict[str, Any]:
        """Write an item, or replace the item with the same keys.

        Takes and returns what boto3 does. Raises ClientError: for a condition, for a time in the
        future, and if DynamoDB throttles all retries::

            table.put_item(Item={"room": "r1", "at": "2026-11-15T12:00:00.000Z", "text": "hey"})
        """
        return dict(self._table.put_item(**parameters))

    def delete_item(self, **parameters: Any) -> dict[str, Any]:
        """Delete an item. It is no error if the item does not exist. Raises as `put_item` does.

        Example::

            table.delete_item(Key={"room": "r1", "at": "2026-11-15T12:00:00.000Z"})
        """
        return dict(self._table.delete_item(**parameters))

    def get_item(self, **parameters: Any) -> dict[str, Any]:
        """Return the item with these keys, under "Item" in the response.

        If the item does not exist, the response has no "Item". Raises ClientError::

            found = table.get_item(Key={"room": "r1", "at": "2026-11-15T12:00:00.000Z"})
            item = found.get("Item")
        """
        return dict(self._table.get_item(**parameters))

    def query(self, **parameters: Any) -> dict[str, Any]:
        """Return a page of one key's items, in the order of their sort keys.

        If the response has a `LastEvaluatedKey`, more items follow: pass it as
        `ExclusiveStartKey`. Raises ClientError::

            page = table.query(KeyConditionExpression=Key("room").eq("r1"), Limit=20)
            items = page["Items"]
        """
        return dict(self._table.query(**parameters))

    def batch_writer(self, **parameters: Any) -> Any:
        """Return boto3's context manager that batches puts and deletes.

        If there are several writes to one item, only the last one is sent.

        Example::

            with table.batch_writer() as batch:
                batch.put_item(Item={"room": "r1", "at": "2026-11-15T12:00:00.000Z"})
        """
        return self._table.batch_writer(**{"overwrite_by_pkeys": self._keys, **parameters})

    def explain(self, key: str) -> Explanation:
        """Return a key's buckets, epochs and heat, the reason for them, and what a read costs.

        Example::

            print(table.explain("r1"))
        """
        return self._attachment.explain(self.name, key)

    def pin(self, key: str, *, buckets: int, reason: str) -> None:
        """Give a key a fixed number of buckets until `unpin`, whatever its heat.

        Example::

            table.pin("r1", buckets=8, reason="launch at noon")
        """
        self._attachment.pin(self.name, key, buckets=buckets, reason=reason)

    def unpin(self, key: str) -> bool:
        """Remove a key's pin, so that the policy sets its buckets again: `table.unpin("r1")`"""
        return self._attachment.unpin(self.name, key)

    def flush(self) -> None:
        """Send the heat that was counted so far, before this process is frozen: `table.flush()`"""
        self._attachment.flush()

    def close(self) -> None:
        """Close Heatsink's client; your own boto3 table stays usable: `table.close()`"""
        self._attachment.close()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rule(time_of: TimeOf) -> Any:
    if isinstance(time_of, After):
        return by_time(time_of.prefix, time_of.time_of)
    return by_time("", time_of)


def _sort_type(boto_table: Any, sort_key: str) -> str:
    """Return the type of the sort key in DynamoDB. A wrong name is refused by `attach`."""
    client = boto_table.meta.client
    try:
        described = client.describe_table(TableName=boto_table.name)["Table"]
    except client.exceptions.ResourceNotFoundException:
        return "S"
    kinds = {
        one["AttributeName"]: one["AttributeType"] for one in described["AttributeDefinitions"]
    }
    return str(kinds.get(sort_key, "S"))


def _twin_of(client: Any) -> Any:
    """Return a client that shares everything with another one except the hooks."""
    twin = object.__new__(type(client))
    twin.__dict__.update(client.__dict__)
    twin.meta, twin._endpoint = copy(client.meta), copy(client._endpoint)
    twin.meta.events = twin._endpoint._event_emitter = copy(client.meta.events)
    return twin
