"""Stream records of a spread table, for consumers that read the stream without Heatsink.

A consumer such as a Lambda function gets its records from DynamoDB itself. There, the partition key
of an item in a bucket carries the name of the bucket. `decoded` puts the application's key back
into the record::

    from heatsink.door.streams import decoded

    def handler(event, context):
        for record in event["Records"]:
            record = decoded(record, partition_key="room")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .places import application_key, shown_item

IMAGES = ("Keys", "NewImage", "OldImage")
CHANGE = "dynamodb"

__all__ = ["application_key", "decoded"]


def decoded(record: Mapping[str, Any], *, partition_key: str) -> dict[str, Any]:
    """Return a stream record with the application's partition key in keys and images.

    `record` comes from a Lambda event, from `GetRecords`, or from a Kinesis stream. Records of
    items that are in no bucket are returned unchanged. All records of an item have the same stored
    partition key, so their order is kept::

        decoded(event["Records"][0], partition_key="room")["dynamodb"]["Keys"]["room"]
    """
    change = record.get(CHANGE)
    if not isinstance(change, Mapping):
        return dict(record)
    shown = {name: shown_item(change[name], partition_key) for name in IMAGES if name in change}
    return {**record, CHANGE: {**change, **shown}}
