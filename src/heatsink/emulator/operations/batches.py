"""BatchGetItem and BatchWriteItem. Throttled items are returned as unprocessed."""

from __future__ import annotations

from typing import Any

from heatsink.emulator.database import Consumed, Database, Json, only_one
from heatsink.emulator.requests import (
    BatchGetItem,
    BatchWriteItem,
    KeysOfTable,
    Write,
    WriteRequest,
)
from heatsink.emulator.table import EngineTable
from heatsink.emulator.units import read_units
from heatsink.stores.dynamodb.wire.errors import Throttled, ValidationFailed, constraint_failed

from .writes import PlannedWrite, plan_delete, plan_put, projection_of

REQUESTS = "Value at 'requestItems'"
WRITES_MAX = 25
READS_MAX = 100
ANSWER_BYTES_MAX = 16 * 1_024 * 1_024
DUPLICATES = "Provided list of item keys contains duplicates"


def batch_write_item(database: Database, request: BatchWriteItem) -> Json:
    _check_writes(request)
    plans = [
        (name, one, _plan(database.table(name), one))
        for name, writes in request.request_items.items()
        for one in writes
    ]
    if len({(plan.table.spec.name, plan.key) for _, _, plan in plans}) != len(plans):
        raise ValidationFailed(DUPLICATES)
    consumed = Consumed(request.return_consumed_capacity)
    unprocessed: dict[str, list[Any]] = {}
    throttled: Throttled | None = None
    for name, one, plan in plans:
        try:
            plan.table.take("Write", plan.key, plan.units())
        except Throttled as error:
            throttled = error
            unprocessed.setdefault(name, []).append(_shown(one))
        else:
            consumed.add(plan.table, "Write", plan.units())
            plan.commit()
    if throttled is not None and sum(map(len, unprocessed.values())) == len(plans):
        raise throttled
    return {"UnprocessedItems": unprocessed, **consumed.many()}


def _check_writes(request: BatchWriteItem) -> None:
    if not request.request_items or not all(request.request_items.values()):
        raise constraint_failed(REQUESTS, "have length greater than or equal to 1")
    if sum(map(len, request.request_items.values())) > WRITES_MAX:
        raise ValidationFailed("Too many items requested for the BatchWriteItem call")


def _plan(table: EngineTable, one: WriteRequest) -> PlannedWrite:
    if not only_one((one.put_request, one.delete_request)):
        raise ValidationFailed(
            "Each request of a batch must have exactly one of PutRequest and DeleteRequest"
        )
    bare = Write(table_name=table.spec.name)
    if one.put_request is not None:
        return plan_put(table, bare, one.put_request.item)
    assert one.delete_request is not None
    return plan_delete(table, bare, one.delete_request.key)


def _shown(one: WriteRequest) -> Json:
    if one.put_request is not None:
        return {"PutRequest": one.put_request}
    return {"DeleteRequest": one.delete_request}


def batch_get_item(database: Database, request: BatchGetItem) -> Json:
    _check_reads(request)
    consumed = Consumed(request.return_consumed_capacity)
    batch = _ReadBatch(consumed)
    for name, wanted in request.request_items.items():
        batch.read(database.table(name), name, wanted)
    if batch.throttled is not None and not batch.done:
        raise batch.throttled
    return {
        "Responses": batch.responses,
        "UnprocessedKeys": batch.unprocessed,
        **consumed.many(),
    }


def _check_reads(request: BatchGetItem) -> None:
    if not request.request_items or not all(one.keys for one in request.request_items.values()):
        raise constraint_failed(REQUESTS, "have length greater than or equal to 1")
    if sum(len(one.keys) for one in request.request_items.values()) > READS_MAX:
        raise ValidationFailed("Too many items requested for the BatchGetItem call")


class _ReadBatch:
    def __init__(self, consumed: Consumed) -> None:
        self._consumed = consumed
        self._bytes = 0
        self.responses: dict[str, list[Any]] = {}
        self.unprocessed: dict[str, Any] = {}
        self.throttled: Throttled | None = None
        self.done = 0

    def read(self, table: EngineTable, name: str, wanted: KeysOfTable) -> None:
        projection = projection_of(wanted.projection_expression, wanted.expression_attribute_names)
        keys = [table.schema.key_of(key) for key in wanted.keys]
        if len(set(keys)) != len(keys):
            raise ValidationFailed(DUPLICATES)
        found = self.responses.setdefault(name, [])
        source = table.read_from(wanted.consistent_read)
        left = []
        for given, key in zip(wanted.keys, keys, strict=True):
            row = source.get(key)
            size = row.size if row else 0
            if not self._admit(table, key, size, wanted.consistent_read):
                left.append(given)
            elif row is not None:
                found.append(projection.of(row.item))
        if left:
            self.unprocessed[name] = _rest(wanted, left)

    def _admit(self, table: EngineTable, key: Any, size: int, consistent: bool) -> bool:
        if self._bytes + size > ANSWER_BYTES_MAX:
            return False
        units = read_units(size, consistent)
        try:
            table.take("Read", key, units)
        except Throttled as error:
            self.throttled = error
            return False
        self._bytes += size
        self.done += 1
        self._consumed.add(table, "Read", units)
        return True


def _rest(wanted: KeysOfTable, left: list[Any]) -> Json:
    rest: Json = {"Keys": left, "ConsistentRead": wanted.consistent_read}
    if wanted.projection_expression is not None:
        rest["ProjectionExpression"] = wanted.projection_expression
    if wanted.expression_attribute_names is not None:
        rest["ExpressionAttributeNames"] = wanted.expression_attribute_names
    return rest
