"""The DynamoDB API as a function from operation name and body to status and body."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb.wire import requests
from heatsink.stores.dynamodb.wire.errors import (
    SERVICE,
    EngineError,
    NotFound,
    ServiceRefused,
    ValidationFailed,
)
from heatsink.stores.dynamodb.wire.shapes import Reading, explain
from heatsink.stores.dynamodb.wire.values import TOO_DEEP

from .adaptation import TableReport
from .database import Database, Json
from .journal import DEFINING, Journal
from .operations.batches import batch_get_item, batch_write_item
from .operations.reads import get_item, query, scan
from .operations.resources import (
    describe_continuous_backups,
    describe_endpoints,
    describe_limits,
    list_tags_of_resource,
    tag_resource,
    untag_resource,
)
from .operations.streams import (
    describe_stream,
    get_records,
    get_shard_iterator,
    list_streams,
)
from .operations.tables import (
    create_table,
    delete_table,
    describe_table,
    describe_time_to_live,
    list_tables,
    update_time_to_live,
)
from .operations.transactions import transact_get_items, transact_write_items
from .operations.updates import update_table
from .operations.writes import delete_item, put_item, update_item
from .settings import EngineSettings
from .table import EngineTable

logger = logging.getLogger("heatsink")
API = "DynamoDB_20120810."
STREAMS_API = "DynamoDBStreams_20120810."
OK, BAD_REQUEST, INTERNAL = 200, 400, 500
TEND_S = 0.02
Operation = tuple[msgspec.json.Decoder[Any], Callable[[Database, Any], Json]]


def _operation(request: type, function: Callable[[Database, Any], Json]) -> Operation:
    return msgspec.json.Decoder(request), function


OPERATIONS: dict[str, Operation] = {
    "CreateTable": _operation(requests.CreateTable, create_table),
    "DescribeTable": _operation(requests.OneTable, describe_table),
    "DeleteTable": _operation(requests.OneTable, delete_table),
    "ListTables": _operation(requests.ListTables, list_tables),
    "UpdateTimeToLive": _operation(requests.UpdateTimeToLive, update_time_to_live),
    "DescribeTimeToLive": _operation(requests.OneTable, describe_time_to_live),
    "UpdateTable": _operation(requests.UpdateTable, update_table),
    "TagResource": _operation(requests.TagResource, tag_resource),
    "UntagResource": _operation(requests.UntagResource, untag_resource),
    "ListTagsOfResource": _operation(requests.ListTagsOfResource, list_tags_of_resource),
    "DescribeLimits": _operation(requests.Nothing, describe_limits),
    "DescribeEndpoints": _operation(requests.Nothing, describe_endpoints),
    "DescribeContinuousBackups": _operation(requests.OneTable, describe_continuous_backups),
    "PutItem": _operation(requests.PutItem, put_item),
    "GetItem": _operation(requests.GetItem, get_item),
    "UpdateItem": _operation(requests.UpdateItem, update_item),
    "DeleteItem": _operation(requests.DeleteItem, delete_item),
    "Query": _operation(requests.Query, query),
    "Scan": _operation(requests.Scan, scan),
    "BatchGetItem": _operation(requests.BatchGetItem, batch_get_item),
    "BatchWriteItem": _operation(requests.BatchWriteItem, batch_write_item),
    "TransactWriteItems": _operation(requests.TransactWriteItems, transact_write_items),
    "TransactGetItems": _operation(requests.TransactGetItems, transact_get_items),
    STREAMS_API + "ListStreams": _operation(requests.ListStreams, list_streams),
    STREAMS_API + "DescribeStream": _operation(requests.DescribeStream, describe_stream),
    STREAMS_API + "GetShardIterator": _operation(requests.GetShardIterator, get_shard_iterator),
    STREAMS_API + "GetRecords": _operation(requests.GetRecords, get_records),
}

PARTIQL = "it has no PartiQL; use PutItem, GetItem, UpdateItem, DeleteItem, Query or Scan"
BACKUPS = "it makes no backups; start it with --data FILE and copy that file"
EXPORTS = "it has no S3 to import from or export to; use Scan and BatchWriteItem"
REPLICAS = "it has one region; test global tables on AWS"
KINESIS = "it has no Kinesis; read the table's stream"
INSIGHTS = "its page and GET /partitions show the hottest keys"
VECTORS = "it has no vector indexes"
POLICIES = "it has no users and no access rules"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("ExecuteStatement", "BatchExecuteStatement", "ExecuteTransaction"), PARTIQL),
    **dict.fromkeys(("CreateBackup", "DeleteBackup", "DescribeBackup", "ListBackups"), BACKUPS),
    **dict.fromkeys(("RestoreTableFromBackup", "RestoreTableToPointInTime"), BACKUPS),
    "UpdateContinuousBackups": BACKUPS,
    **dict.fromkeys(("ExportTableToPointInTime", "DescribeExport", "ListExports"), EXPORTS),
    **dict.fromkeys(("ImportTable", "DescribeImport", "ListImports"), EXPORTS),
    **dict.fromkeys(("CreateGlobalTable", "UpdateGlobalTable", "DescribeGlobalTable"), REPLICAS),
    **dict.fromkeys(("ListGlobalTables", "DescribeTableReplicaAutoScaling"), REPLICAS),
    **dict.fromkeys(("DescribeGlobalTableSettings", "UpdateGlobalTableSettings"), REPLICAS),
    "UpdateTableReplicaAutoScaling": REPLICAS,
    **dict.fromkeys(
        (
            *("EnableKinesisStreamingDestination", "DisableKinesisStreamingDestination"),
            *("DescribeKinesisStreamingDestination", "UpdateKinesisStreamingDestination"),
        ),
        KINESIS,
    ),
    **dict.fromkeys(("DescribeContributorInsights", "ListContributorInsights"), INSIGHTS),
    "UpdateContributorInsights": INSIGHTS,
    "SearchVectors": VECTORS,
    **dict.fromkeys(("StartBulkPutItems", "DescribeBulkOperation"), EXPORTS),
    **dict.fromkeys(("CancelBulkOperation", "ListBulkOperations"), EXPORTS),
    **dict.fromkeys(("PutResourcePolicy", "GetResourcePolicy", "DeleteResourcePolicy"), POLICIES),
}
"""The operations that the emulator refuses on purpose, and what to do instead."""

_encode = msgspec.json.Encoder().encode
INTERNAL_ERROR = _encode(
    ServiceRefused(
        "InternalServerError",
        "The emulator failed to process the request: its log has the traceback.",
    ).body()
)


class Engine:
    """Answers one request at a time, from memory.

    With `data` in the settings, all tables are also stored in that file, and are restored from it.
    """

    def __init__(self, settings: EngineSettings, clock: Clock, rng: Random) -> None:
        self._database = Database(settings, clock, rng)
        self._clock = clock
        self._journal: Journal | None = None
        if settings.data is not None:
            journal = Journal(Path(settings.data))
            try:
                journal.restore(self._database, self._perform)
            except BaseException:
                journal.close()
                raise
            self._journal = journal

    def answer(self, target: str, body: bytes) -> tuple[int, bytes]:
        """Answer one request. Returns the HTTP status and the body.

        `target` is the header X-Amz-Target. A wrong request gets status 400. If a bug in the engine
        raises an exception, the exception is logged with its traceback, and the answer has status
        500. So the server can go on: this method raises nothing.
        """
        try:
            return OK, _encode(self._carry_out(target, body))
        except EngineError as error:
            return BAD_REQUEST, _encode(error.body())
        except RecursionError:
            return BAD_REQUEST, _encode(ValidationFailed(TOO_DEEP).body())
        except Exception:
            logger.exception("%s failed: this is a bug in the emulator", target.removeprefix(API))
            return INTERNAL, INTERNAL_ERROR

    def tend(self) -> None:
        """Let the partitions of all tables adapt to their heat."""
        self._database.tend()

    async def keep_tending(self) -> None:
        """Call `tend` every 20 ms until cancelled. Each engine needs one such task."""
        while True:
            self.tend()
            await self._clock.sleep(TEND_S)

    def table(self, name: str) -> EngineTable:
        """Return the table with this name or ARN, for tests and tools in the same process."""
        return self._database.table(name)

    def reset(self) -> None:
        """Delete all tables, as if the emulator had just started for the first time."""
        self._database.reset()
        if self._journal is not None:
            self._journal.clear()

    def close(self) -> None:
        """Close the file of `--data`, if there is one."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def partitions(self) -> list[TableReport]:
        """Return a report on the partitions of every table and of every global index."""
        tables = self._database.tables.values()
        return [report for table in tables for report in table.reports()]

    def _carry_out(self, target: str, body: bytes) -> Json:
        answer = self._perform(target, body)
        if self._journal is not None and (name := target.removeprefix(API)) in DEFINING:
            self._journal.define(name, body, self._database)
        return answer

    def _perform(self, target: str, body: bytes) -> Json:
        operation = OPERATIONS.get(target.removeprefix(API))
        if operation is None:
            raise _unknown(target)
        decoder, function = operation
        try:
            request = decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            request = _understood(decoder, body).request
        try:
            return function(self._database, request)
        except (ValidationFailed, NotFound):
            reading = _understood(decoder, body)
            if not reading.differs:
                raise
        return function(self._database, reading.request)


def _understood(decoder: msgspec.json.Decoder[Any], body: bytes) -> Reading:
    """Read a request as DynamoDB does. Raises if its form is wrong."""
    reading = explain(decoder.type, body)
    if reading.problem is not None:
        raise reading.problem from None
    return reading


def _unknown(target: str) -> EngineError:
    name = target.removeprefix(API)
    if target.startswith(API):
        reason = REFUSED.get(name, "no such operation is known")
        return ServiceRefused(
            "UnknownOperationException", f"this emulator does not support {name}: {reason}"
        )
    return EngineError(
        "com.amazon.coral.service#UnknownOperationException",
        f"no {SERVICE[:-1]} operation in X-Amz-Target: {target!r}",
    )
