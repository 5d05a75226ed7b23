"""BatchGetItem and BatchWriteItem. Throttled items are returned as unprocessed."""

from __future__ import annotations

from typing import Any

from heatsink.emulator.database import Consumed, Database, Json, only_one
from heatsink.emulator.table import EngineTable
from heatsink.emulator.units import read_units
from heatsink.stores.dynamodb.wire.errors import Throttled, ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.reading import Projection, projection_of
from heatsink.stores.dynamodb.wire.keys import MISMATCH
from heatsink.stores.dynamodb.wire.requests import (
    BatchGetItem,
    BatchWriteItem,
    KeysAndAttributes,
    Write,
    WriteRequest,
)
from heatsink.stores.dynamodb.wire.values import admit_item

from .writes import PlannedWrite, PreparedWrite, collections, prepare_delete, prepare_put

WRITES_MAX = 25
READS_MAX = 100
ANSWER_BYTES_MAX = 16 * 1_024 * 1_024
DUPLICATES = "Provided list of item keys contains duplicates"


def batch_write_item(database: Database, request: BatchWriteItem) -> Json:
    _check_writes(request)
    prepared = [
        (name, one, _prepared(name, one))
        for name, writes in request.request_items.items()
        for one in writes
    ]
    plans = [(name, one, _planned(write, database.table(name))) for name, one, write in prepared]
    if len({(plan.table.spec.name, plan.key) for _, _, plan in plans}) != len(plans):
        raise ValidationFailed(DUPLICATES)
    consumed = Consumed(request.return_consumed_capacity)
    unprocessed: dict[str, list[Any]] = {}
    undone: list[WriteRequest] = []
    throttled: Throttled | None = None
    for name, one, plan in plans:
        try:
            plan.take(consumed)
        except Throttled as error:
            throttled = error
            undone.append(one)
            unprocessed.setdefault(name, []).append(_shown(one))
        else:
            plan.commit()
    if throttled is not None and sum(map(len, unprocessed.values())) == len(plans):
        raise throttled
    done = (plan for _, one, plan in plans if not any(one is left for left in undone))
    sizes = collections(done, request.return_item_collection_metrics)
    return {"UnprocessedItems": unprocessed, **sizes, **consumed.many()}


def _check_writes(request: BatchWriteItem) -> None:
    if not request.request_items:
        raise ValidationFailed("The requestItems parameter is required for BatchWriteItem")
    if sum(map(len, request.request_items.values())) > WRITES_MAX:
        raise ValidationFailed("Too many items requested for the BatchWriteItem call")


def _prepared(name: str, one: WriteRequest) -> PreparedWrite:
    if not only_one((one.put_request, one.delete_request)):
        raise ValidationFailed(
            "Supplied AttributeValue has more than one datatypes set, must contain exactly one of "
            "the supported datatypes"
        )
    bare = Write(table_name=name)
    if one.put_request is not None:
        return prepare_put(bare, one.put_request.item)
    assert one.delete_request is not None
    return prepare_delete(bare, one.delete_request.key)


def _planned(write: PreparedWrite, table: EngineTable) -> PlannedWrite:
    """Plan one write of a batch.

    DynamoDB words the error for a missing or wrong key differently in a batch than for a put.
    """
    schema = table.schema
    if write.verb == "put":
        for part in (*schema.hash_parts, *schema.sort_parts):
            if part.kind not in write.target.get(part.name, {}):
                raise ValidationFailed(MISMATCH)
    return write.plan(table)


def _shown(one: WriteRequest) -> Json:
    if one.put_request is not None:
        return {"PutRequest": one.put_request}
    return {"DeleteRequest": one.delete_request}


def batch_get_item(database: Database, request: BatchGetItem) -> Json:
    if not request.request_items:
        raise ValidationFailed("The requestItems parameter is required for BatchGetItem")
    wanted = [(name, one, _projection(one)) for name, one in request.request_items.items()]
    if sum(len(one.keys) for _, one, _ in wanted) > READS_MAX:
        raise ValidationFailed("Too many items requested for the BatchGetItem call")
    consumed = Consumed(request.return_consumed_capacity)
    batch = _ReadBatch(consumed)
    tables = [database.table(name) for name in request.request_items]
    for table, (_, _, projection) in zip(tables, wanted, strict=True):
        table.check_scalars(projection.nested)
    for table, (name, one, projection) in zip(tables, wanted, strict=True):
        batch.read(table, name, one, projection)
    if batch.throttled is not None and not batch.done:
        raise batch.throttled
    return {
        "Responses": batch.responses,
        "UnprocessedKeys": batch.unprocessed,
        **consumed.many(),
    }


def _projection(wanted: KeysAndAttributes) -> Projection:
    """Check the part of a request that concerns one table. Returns its projection."""
    projection = projection_of(
        wanted.projection_expression, wanted.expression_attribute_names, wanted.attributes_to_get
    )
    for number, key in enumerate(wanted.keys):
        admit_item(key)
        if key in wanted.keys[:number]:
            raise ValidationFailed(DUPLICATES)
    return projection


class _ReadBatch:
    def __init__(self, consumed: Consumed) -> None:
        self._consumed = consumed
        self._bytes = 0
        self.responses: dict[str, list[Any]] = {}
        self.unprocessed: dict[str, Any] = {}
        self.throttled: Throttled | None = None
        self.done = 0

    def read(
        self, table: EngineTable, name: str, wanted: KeysAndAttributes, projection: Projection
    ) -> None:
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


def _rest(wanted: KeysAndAttributes, left: list[Any]) -> Json:
    rest: Json = {"Keys": left, "ConsistentRead": wanted.consistent_read}
    if wanted.projection_expression is not None:
        rest["ProjectionExpression"] = wanted.projection_expression
    if wanted.attributes_to_get is not None:
        rest["AttributesToGet"] = wanted.attributes_to_get
    if wanted.expression_attribute_names is not None:
        rest["ExpressionAttributeNames"] = wanted.expression_attribute_names
    return rest
