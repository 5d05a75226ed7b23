"""Stream records of a spread table.

The door and an attached client of DynamoDB Streams show the application's keys in the records that
pass through them. Other consumers, such as a Lambda function, get their records from DynamoDB
itself. There, the partition key of an item in a bucket carries the name of the bucket. `decoded`
puts the application's key back into the record::

    from heatsink.door.streams import decoded

    def handler(event, context):
        for record in event["Records"]:
            record = decoded(record, partition_key="room")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .declaration import SpreadTable
from .keys import table_of
from .places import application_key, shown_item
from .spread_indexes import stripped

IMAGES = ("Keys", "NewImage", "OldImage")
CHANGE = "dynamodb"
GET_RECORDS = "GetRecords"

__all__ = ["application_key", "decoded", "shown_records"]


def decoded(record: Mapping[str, Any], *, partition_key: str) -> dict[str, Any]:
    """Return a stream record with the application's partition key, and without shadow attributes.

    `record` comes from a Lambda event, from `GetRecords`, or from a Kinesis stream. Records of
    items that are in no bucket are returned unchanged. All records of an item have the same stored
    partition key, so their order is kept::

        decoded(event["Records"][0], partition_key="room")["dynamodb"]["Keys"]["room"]
    """
    change = record.get(CHANGE)
    if not isinstance(change, Mapping):
        return dict(record)
    images = [name for name in IMAGES if name in change]
    shown = {name: stripped(shown_item(change[name], partition_key)) for name in images}
    return {**record, CHANGE: {**change, **shown}}


def shown_records(answer: Mapping[str, Any], tables: Iterable[SpreadTable]) -> dict[str, Any]:
    """Return the answer to GetRecords with the application's keys in records of declared tables.

    On AWS, a shard iterator begins with the ARN of the stream, which names the table. On a server
    whose iterators do not name the table, a record counts for a declared table with the same key
    attributes.
    """
    iterator = str(answer.get("NextShardIterator") or "")
    found = list(tables)
    if name := table_of(iterator) if iterator.startswith("arn:") else "":
        found = [table for table in found if table.name == name]
    shown = []
    for record in answer.get("Records", ()):
        keys = (record.get(CHANGE) or {}).get("Keys") or {}
        of = next((t for t in found if keys.keys() == {t.partition_key, t.sort_key}), None)
        shown.append(record if of is None else decoded(record, partition_key=of.partition_key))
    return {**answer, "Records": shown}
