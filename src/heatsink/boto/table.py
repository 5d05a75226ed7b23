"""The common calls of boto3's Table resource, for a table whose hot keys are spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Unpack

from heatsink.client.settings import ConnectOptions
from heatsink.coordinator.explainer import Explanation
from heatsink.door.keys import check_partition_value, comparable, physical, size_of
from heatsink.door.records import record_of_times
from heatsink.door.times import TimeOf
from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_text, check_whole, shown
from heatsink.primitives.subjects import Subject

from .calls import Background, Calls
from .places import KeyPlaces
from .query import Item, Queries, TableKeys, Wanted, read_condition

REQUESTS_MAX = 25
NAME_MAX = 255
LIMIT_MAX = 10**9
PARALLEL_QUERIES = 16
Place = tuple[str, int | None, Any]  # a key as the registry calls it, its bucket, the sort key


class Table:
    """An existing table with the calls of boto3's Table, for any thread. `close` it at the end.

    `boto_table` is your own `boto3.resource("dynamodb").Table(…)`. `time_of` returns the
    milliseconds in a sort key (see `heatsink.boto.times`). `registry` is the URL of a store for
    Heatsink's registry. `settings` are those of `heatsink.connect`: `news`, `rules`, `retries`, …
    Raises `InvalidSetting` for a bad argument::

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
        check_text("partition_key", partition_key, NAME_MAX)
        check_text("sort_key", sort_key, NAME_MAX)
        if not callable(time_of):
            raise InvalidSetting(
                "time_of must be a function that returns the time in a sort key, in milliseconds",
                field="time_of",
            )
        has_client = hasattr(getattr(boto_table, "meta", None), "client")
        if not has_client or not hasattr(boto_table, "name"):
            raise InvalidSetting(
                'boto_table must be boto3.resource("dynamodb").Table(…)', field="boto_table"
            )
        self.name: str = boto_table.name
        self._keys = TableKeys(partition_key, sort_key)
        self._background = Background(registry, settings)
        self._places = KeyPlaces(self.name, time_of, self._background)
        self._calls = Calls(boto_table, self._background)
        self._pool = ThreadPoolExecutor(PARALLEL_QUERIES, "heatsink-query")
        parts = (self._places, self._calls, self._background, self._pool)
        self._queries = Queries(self._keys, *parts)
        try:
            record = record_of_times((partition_key, sort_key), time_of)
            self._background.declare(self.name, record)
            self._background.declare_append_only(self.name)
        except BaseException:
            self.close()
            raise

    def put_item(self, *, Item: Item, **others: Any) -> dict[str, Any]:  # noqa: N803 (boto3's name)
        """Write an item, or replace the item with the same keys.

        Raises `InvalidSetting` for a missing key or an unknown parameter, `InvalidId` if the sort
        key has no time or a time in the future, and `Overloaded` if all retries are throttled::

            table.put_item(Item={"room": "r1", "at": "2026-11-15T12:00:00.000Z", "text": "hey"})
        """
        _refuse("put_item", others)
        ((key, bucket, _), request), *_ = self._placed(Item, deleted=False).items()
        answer = self._calls.send("put_item", key, bucket, **request["PutRequest"])
        return dict(answer)

    def delete_item(self, *, Key: Item, **others: Any) -> dict[str, Any]:  # noqa: N803 (boto3's name)
        """Delete an item. It is no error if the item does not exist.

        Raises as `put_item` does::

            table.delete_item(Key={"room": "r1", "at": "2026-11-15T12:00:00.000Z"})
        """
        _refuse("delete_item", others)
        answer: dict[str, Any] = {}
        for (key, bucket, _), request in self._placed(Key, deleted=True).items():
            answer = self._calls.send("delete_item", key, bucket, **request["DeleteRequest"])
        return dict(answer)

    def get_item(
        self,
        *,
        Key: Item,  # noqa: N803 (boto3's name)
        ConsistentRead: bool = False,  # noqa: N803 (boto3's name)
        **others: Any,
    ) -> dict[str, Any]:
        """Return the item with these keys, under "Item" in the response.

        If the item does not exist, the response has no "Item". Raises as `put_item` does::

            found = table.get_item(Key={"room": "r1", "at": "2026-11-15T12:00:00.000Z"})
            item = found.get("Item")
        """
        _refuse("get_item", others)
        self._background.check_open()
        key, sort = self._key_of(Key, exactly=True)
        label = self._places.registry_key(key)
        self._background.tracker.record_read(label)
        answer: dict[str, Any] = {}
        for bucket in self._places.candidates(key, sort):
            name = self._named(Key, physical(key, bucket))
            parameters = {"Key": name, "ConsistentRead": ConsistentRead}
            answer = dict(self._calls.send("get_item", label, bucket, **parameters))
            if "Item" in answer:
                return {**answer, "Item": self._named(answer["Item"], key)}
        self._background.confirm_absence(label)
        return answer

    def query(
        self,
        *,
        KeyConditionExpression: Any,  # noqa: N803 (boto3's name)
        ScanIndexForward: bool = True,  # noqa: N803 (boto3's name)
        Limit: int | None = None,  # noqa: N803 (boto3's name)
        ExclusiveStartKey: Item | None = None,  # noqa: N803 (boto3's name)
        ConsistentRead: bool = False,  # noqa: N803 (boto3's name)
        **others: Any,
    ) -> dict[str, Any]:
        """Return a page of one key's items, in the order of their sort keys.

        If the response has a `LastEvaluatedKey`, more items follow: pass it as
        `ExclusiveStartKey`. Raises `InvalidSetting` for a condition or parameter that is not
        supported, and `Overloaded` if all retries are throttled::

            page = table.query(KeyConditionExpression=Key("room").eq("r1"), Limit=20)
            items = page["Items"]
        """
        _refuse("query", others)
        self._background.check_open()
        if Limit is not None:
            check_whole("Limit", Limit, 1, LIMIT_MAX)
        asked = read_condition(KeyConditionExpression, self._keys.partition, self._keys.sort)
        start = self._start(ExclusiveStartKey, asked.key)
        self._background.tracker.record_read(self._places.registry_key(asked.key))
        wanted = Wanted(asked, start, not ScanIndexForward, Limit, ConsistentRead)
        items, last = self._queries.page(wanted)
        if not items:
            self._background.confirm_absence(self._places.registry_key(asked.key))
        items = [self._named(item, asked.key) for item in items]
        answer = {"Items": items, "Count": len(items), "ScannedCount": len(items)}
        if last is not None:
            answer["LastEvaluatedKey"] = {self._keys.partition: asked.key, self._keys.sort: last}
        return answer

    def batch_writer(self, **others: Any) -> BatchWriter:
        """Return a context manager that batches puts and deletes.

        If there are several writes to one item, only the last one is sent, as in boto3 with
        `overwrite_by_pkeys`.

        Example::

            with table.batch_writer() as batch:
                batch.put_item(Item={"room": "r1", "at": "2026-11-15T12:00:00.000Z"})
        """
        others.pop("overwrite_by_pkeys", None)
        _refuse("batch_writer", others)
        return BatchWriter(self._calls, self._placed)

    def explain(self, key: str) -> Explanation:
        """Return a key's buckets, epochs and heat, the reason for them, and what a read costs.

        Example::

            print(table.explain("r1"))
        """
        return self._background.client.explain(self._subject(key))

    def pin(self, key: str, *, buckets: int, reason: str) -> None:
        """Give a key a fixed number of buckets until `unpin`, whatever its heat.

        Example::

            table.pin("r1", buckets=8, reason="launch at noon")
        """
        self._background.client.pin(self._subject(key), buckets=buckets, reason=reason)

    def unpin(self, key: str) -> None:
        """Remove a key's pin, so that the policy sets its buckets again: `table.unpin("r1")`"""
        self._background.client.unpin(self._subject(key))

    def _subject(self, key: str) -> Subject:
        self._background.check_open()
        return self._places.subject(check_partition_value(key))

    def close(self) -> None:
        """Close Heatsink's client; your own boto3 table stays usable: `table.close()`"""
        self._background.refuse_calls()
        self._pool.shutdown()
        self._background.close()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _placed(self, item: Item, deleted: bool) -> dict[Place, Any]:
        """Return the requests that put or delete an item, by the place of the item.

        A delete may need two requests: one for the bucket and one for the bare key.
        """
        self._background.check_open()
        key, sort = self._key_of(item, exactly=deleted)
        places = self._places
        label = places.registry_key(key)
        buckets = places.candidates(key, sort) if deleted else [places.bucket(key, sort)]
        requests: dict[Place, Any] = {}
        for bucket in buckets:
            named = self._named(item, physical(key, bucket))
            self._background.tracker.record(label, 1, size_of(item))
            request = (
                {"DeleteRequest": {"Key": named}} if deleted else {"PutRequest": {"Item": named}}
            )
            requests[label, bucket, comparable(sort)] = request
        return requests

    def _key_of(self, item: Any, exactly: bool) -> tuple[str, Any]:
        names = {self._keys.partition, self._keys.sort}
        if not isinstance(item, dict) or not names <= item.keys():
            raise InvalidSetting(
                f"{shown(item)} lacks a key attribute: it needs {' and '.join(sorted(names))}"
            )
        if exactly and item.keys() != names:
            raise InvalidSetting(f"Key takes {' and '.join(sorted(names))} only, not {shown(item)}")
        return check_partition_value(item[self._keys.partition]), item[self._keys.sort]

    def _start(self, start: Item | None, key: str) -> Any:
        if start is None:
            return None
        named, sort = self._key_of(start, exactly=True)
        if named != key:
            raise InvalidSetting("ExclusiveStartKey has another partition key than the query")
        return comparable(sort)

    def _named(self, item: Item, partition: str) -> Item:
        return {**item, self._keys.partition: partition}


class BatchWriter:
    """`with table.batch_writer() as batch`: many puts and deletes in few requests, with retries.

    If there are several writes to one item, only the last one is sent, since DynamoDB allows only
    one write of an item per batch. All items of a batch go to one bucket, so that a throttled
    bucket does not delay other buckets::

        with table.batch_writer() as batch:
            batch.delete_item(Key={"room": "r1", "at": "2026-11-15T12:00:00.000Z"})
    """

    def __init__(self, calls: Calls, placed: Callable[[Any, bool], dict[Place, Any]]) -> None:
        self._calls = calls
        self._placed = placed
        self._waiting: dict[tuple[str, int | None], dict[Any, Any]] = defaultdict(dict)

    def put_item(self, Item: dict[str, Any]) -> None:  # noqa: N803 (boto3's name)
        """Queue a put, and send a batch when it is full."""
        self._add(self._placed(Item, False))

    def delete_item(self, Key: dict[str, Any]) -> None:  # noqa: N803 (boto3's name)
        """Queue a delete, and send a batch when it is full."""
        self._add(self._placed(Key, True))

    def _add(self, requests: dict[Place, Any]) -> None:
        for (key, bucket, sort), request in requests.items():
            bucketful = self._waiting[key, bucket]
            bucketful[sort] = request
            if len(bucketful) >= REQUESTS_MAX:
                self._send(key, bucket)

    def _send(self, key: str, bucket: int | None) -> None:
        """Send a batch. If sending fails, the batch stays queued; call `flush` to retry."""
        requests = self._waiting[key, bucket]
        self._calls.write_batch(list(requests.values()), key, bucket)
        del self._waiting[key, bucket]

    def flush(self) -> None:
        """Send everything that is queued. Leaving the `with` block also does this."""
        for key, bucket in list(self._waiting):
            self._send(key, bucket)

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Flush, even if the block raised, as boto3 does."""
        self.flush()


def _refuse(call: str, others: dict[str, Any]) -> None:
    if others:
        raise InvalidSetting(
            f"{call} does not take {', '.join(others)} on a spread table: leave it out"
        )
