"""CreateTable, DescribeTable, DeleteTable, ListTables, UpdateTimeToLive, DescribeTimeToLive."""

from __future__ import annotations

import re
from math import ceil
from typing import Any
from uuid import UUID

from heatsink.emulator.capacity.limits import TableCapacity
from heatsink.emulator.database import Database, Json
from heatsink.emulator.requests import CreateTable, ListTables, OneTable, UpdateTimeToLive
from heatsink.emulator.schema import KeyPart, Schema
from heatsink.emulator.settings import PARTITIONS_MAX, EngineSettings
from heatsink.emulator.table import EngineTable, TableSpec
from heatsink.emulator.units import TableLimits
from heatsink.stores.dynamodb.wire.errors import (
    Refused,
    ValidationFailed,
    constraint_failed,
    not_found,
)

REGION, ACCOUNT = "us-east-1", "000000000000"
NAME = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
LISTED_MAX = 100
TABLE_UNITS_MAX = 40_000  # the service's default quota of a table, for reads and for writes
UNITS_MAX = 10**12
INVALID = "One or more parameter values were invalid: "


def create_table(database: Database, request: CreateTable) -> Json:
    name = request.table_name
    if not NAME.fullmatch(name):
        if 3 <= len(name) <= 255:
            pattern = "satisfy regular expression pattern: [a-zA-Z0-9_.-]+"
            raise constraint_failed(f"Value '{name}' at 'tableName'", pattern)
        raise ValidationFailed(
            "TableName must be at least 3 characters long and at most 255 characters long"
        )
    if request.global_secondary_indexes or request.local_secondary_indexes:
        raise ValidationFailed(
            f"{INVALID}this emulator has no secondary indexes: create the table without them"
        )
    schema = _schema(request)
    limits = _limits(request, database.settings)
    if name in database.tables:
        raise Refused("ResourceInUseException", f"Table already exists: {name}")
    spec = _spec(database, request, schema, limits)
    table = EngineTable(spec, database.clock, database.settings.replica_lag_s)
    database.tables[name] = table
    return {"TableDescription": table.describe()}


def _schema(request: CreateTable) -> Schema:
    kinds = {one.attribute_name: one.attribute_type for one in request.attribute_definitions}
    elements = request.key_schema
    if not 1 <= len(elements) <= 2 or elements[0].key_type != "HASH":
        raise ValidationFailed(
            "Invalid KeySchema: The first KeySchemaElement is not a HASH key type"
        )
    if len(elements) == 2 and elements[1].key_type != "RANGE":
        raise ValidationFailed(
            "Invalid KeySchema: The second KeySchemaElement is not a RANGE key type"
        )
    names = [element.attribute_name for element in elements]
    for name in names:
        if name not in kinds:
            raise ValidationFailed(
                f"{INVALID}Some index key attributes are not defined in AttributeDefinitions. "
                f"Keys: [{name}], AttributeDefinitions: [{', '.join(kinds)}]"
            )
    if len(set(names)) != len(names):
        raise ValidationFailed(
            "Both the Hash Key and the Range Key element in the KeySchema have the same name"
        )
    if len(kinds) != len(names):
        raise ValidationFailed(
            f"{INVALID}Number of attributes in KeySchema does not exactly match number of "
            f"attributes defined in AttributeDefinitions"
        )
    parts = [KeyPart(name, kinds[name]) for name in names]
    return Schema(parts[0], parts[1] if len(parts) == 2 else None)


def _limits(request: CreateTable, settings: EngineSettings) -> TableLimits:
    provisioned = request.provisioned_throughput
    if request.billing_mode == "PAY_PER_REQUEST":
        if provisioned is not None:
            raise ValidationFailed(
                f"{INVALID}Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when "
                f"BillingMode is PAY_PER_REQUEST"
            )
        return TableLimits(
            on_demand=True,
            kind="MaxOnDemandThroughputExceeded",
            table=_most_on_demand(request),
            partitions=settings.partitions,
            settings=settings.of_partitions(),
        )
    if provisioned is None:
        raise ValidationFailed(
            f"{INVALID}ReadCapacityUnits and WriteCapacityUnits must both be specified when "
            f"BillingMode is PROVISIONED"
        )
    reads, writes = provisioned.read_capacity_units, provisioned.write_capacity_units
    return TableLimits(
        on_demand=False,
        kind="ProvisionedThroughputExceeded",
        table=TableCapacity(
            reads=_units("ReadCapacityUnits", reads), writes=_units("WriteCapacityUnits", writes)
        ),
        partitions=_partitions(reads, writes, settings),
        settings=settings.of_partitions(),
    )


def _partitions(reads: int, writes: int, settings: EngineSettings) -> int:
    """Return the number of partitions that the provisioned throughput needs."""
    needed = reads / settings.read_limit + writes / settings.write_limit
    return min(max(ceil(needed), 1), PARTITIONS_MAX)


def _units(field: str, units: int) -> float:
    """Return `units` as a float. Raises if there are too few or too many.

    The check comes before the table is made, since the number of partitions grows with the units.
    """
    if units < 1:
        name = field[0].lower() + field[1:]
        member = f"Value '{units}' at 'provisionedThroughput.{name}'"
        raise constraint_failed(member, "have value greater than or equal to 1")
    if units > UNITS_MAX:
        raise ValidationFailed(f"Given value {units} for {field} is out of bounds")
    if units > TABLE_UNITS_MAX:
        raise Refused(
            "LimitExceededException",
            f"Subscriber limit exceeded: Requested {field} of {units} exceeds the per-table limit "
            f"of {TABLE_UNITS_MAX}",
        )
    return float(units)


def _most_on_demand(request: CreateTable) -> TableCapacity:
    most = request.on_demand_throughput
    if most is None:
        return TableCapacity()
    reads, writes = most.max_read_request_units, most.max_write_request_units
    return TableCapacity(
        reads=None if reads < 1 else _units("MaxReadRequestUnits", reads),
        writes=None if writes < 1 else _units("MaxWriteRequestUnits", writes),
    )


def _spec(
    database: Database, request: CreateTable, schema: Schema, limits: TableLimits
) -> TableSpec:
    name = request.table_name
    arn = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{name}"
    id_ = str(UUID(int=database.rng.getrandbits(128), version=4))
    provisioned = request.provisioned_throughput
    description: dict[str, Any] = {
        "TableName": name,
        "TableArn": arn,
        "TableId": id_,
        "CreationDateTime": database.clock.now_s(),
        "AttributeDefinitions": request.attribute_definitions,
        "KeySchema": request.key_schema,
        "ProvisionedThroughput": {
            "NumberOfDecreasesToday": 0,
            "ReadCapacityUnits": provisioned.read_capacity_units if provisioned else 0,
            "WriteCapacityUnits": provisioned.write_capacity_units if provisioned else 0,
        },
        "DeletionProtectionEnabled": False,
    }
    if limits.on_demand:
        description["BillingModeSummary"] = {"BillingMode": "PAY_PER_REQUEST"}
    return TableSpec(name, arn, id_, schema, limits, description)


def _named(database: Database, name: str) -> EngineTable:
    table = database.tables.get(name.rpartition("/")[2])
    if table is None:
        raise not_found(f"Requested resource not found: Table: {name} not found")
    return table


def describe_table(database: Database, request: OneTable) -> Json:
    return {"Table": _named(database, request.table_name).describe()}


def delete_table(database: Database, request: OneTable) -> Json:
    table = _named(database, request.table_name)
    del database.tables[table.spec.name]
    return {"TableDescription": {**table.describe(), "TableStatus": "DELETING"}}


def list_tables(database: Database, request: ListTables) -> Json:
    if not 1 <= request.limit <= LISTED_MAX:
        raise ValidationFailed(f"Limit must be between 1 and {LISTED_MAX}, not {request.limit}")
    after = request.exclusive_start_table_name or ""
    names = sorted(name for name in database.tables if name > after)
    answer: Json = {"TableNames": names[: request.limit]}
    if len(names) > request.limit:
        answer["LastEvaluatedTableName"] = answer["TableNames"][-1]
    return answer


def update_time_to_live(database: Database, request: UpdateTimeToLive) -> Json:
    """Store the TTL setting. The emulator never deletes expired items.

    DynamoDB deletes an expired item within a few days.
    """
    table, wanted = _named(database, request.table_name), request.time_to_live_specification
    if wanted.enabled == (table.ttl_attribute is not None):
        raise ValidationFailed(f"TimeToLive is already {'en' if wanted.enabled else 'dis'}abled")
    table.ttl_attribute = wanted.attribute_name if wanted.enabled else None
    return {"TimeToLiveSpecification": wanted}


def describe_time_to_live(database: Database, request: OneTable) -> Json:
    attribute = _named(database, request.table_name).ttl_attribute
    if attribute is None:
        return {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
    return {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED", "AttributeName": attribute}}
