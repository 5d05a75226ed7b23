"""CreateTable, DescribeTable, DeleteTable, ListTables, UpdateTimeToLive, DescribeTimeToLive."""

from __future__ import annotations

from uuid import UUID

from heatsink.emulator.database import Database, Json
from heatsink.emulator.indexes import INVALID, GlobalIndex, IndexSpec, LocalIndex
from heatsink.emulator.requests import (
    BillingMode,
    CreateTable,
    GlobalSecondaryIndex,
    ListTables,
    OneTable,
    UpdateTimeToLive,
)
from heatsink.emulator.table import EngineTable, TableSpec
from heatsink.stores.dynamodb.wire.errors import Refused, ValidationFailed, not_found

from .definitions import (
    check_definitions,
    check_index_throughput,
    check_indexes,
    check_name,
    check_throughput,
    global_index,
    kinds_of,
    limits_of,
    local_index,
    shown_throughput,
    table_schema,
)

REGION, ACCOUNT = "us-east-1", "000000000000"
LISTED_MAX = 100


def create_table(database: Database, request: CreateTable) -> Json:
    name = request.table_name
    check_name(name, "tableName")
    mode: BillingMode = request.billing_mode or "PROVISIONED"
    check_throughput(mode, request.provisioned_throughput)
    arn = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{name}"
    kinds = kinds_of(request.attribute_definitions)
    schema = table_schema(request.key_schema, kinds)
    _check_lists(request)
    local = [local_index(w, schema, kinds, arn) for w in request.local_secondary_indexes or ()]
    wanted = request.global_secondary_indexes or []
    global_ = [global_index(one, schema, kinds, arn) for one in wanted]
    for one in wanted:
        check_index_throughput(mode, one)
    check_indexes(local, global_)
    check_definitions(kinds, schema, [*local, *global_])
    limits = limits_of(
        mode,
        request.provisioned_throughput,
        request.on_demand_throughput,
        request.warm_throughput,
        database.settings,
    )
    if name in database.tables:
        raise Refused("ResourceInUseException", f"Table already exists: {name}")
    id_ = str(UUID(int=database.rng.getrandbits(128), version=4))
    spec = TableSpec(name, arn, id_, schema, limits, _description(database, request))
    table = EngineTable(spec, database.clock, database.settings.replica_lag_s)
    table.description["ProvisionedThroughput"] = shown_throughput(limits)
    lag_s = database.settings.replica_lag_s
    table.add([LocalIndex(one, table.throughput, lag_s, database.clock) for one in local])
    table.add(
        [made_index(database, spec, one, mode) for spec, one in zip(global_, wanted, strict=True)]
    )
    database.tables[name] = table
    return {"TableDescription": {**table.describe(), "TableStatus": "CREATING"}}


def _check_lists(request: CreateTable) -> None:
    if request.local_secondary_indexes == []:
        raise ValidationFailed(f"{INVALID}List of LocalSecondaryIndexes is empty")
    if request.global_secondary_indexes == []:
        raise ValidationFailed(f"{INVALID}List of GlobalSecondaryIndexes is empty")


def made_index(
    database: Database, spec: IndexSpec, wanted: GlobalSecondaryIndex, mode: BillingMode
) -> GlobalIndex:
    """Return a new, empty global index."""
    limits = limits_of(
        mode,
        wanted.provisioned_throughput,
        wanted.on_demand_throughput,
        wanted.warm_throughput,
        database.settings,
    )
    spec.description["ProvisionedThroughput"] = shown_throughput(limits)
    lag_s = database.settings.index_lag_s
    return GlobalIndex(spec, limits, database.clock, lag_s, database.rng)


def _description(database: Database, request: CreateTable) -> Json:
    name = request.table_name
    description: Json = {
        "TableName": name,
        "CreationDateTime": database.clock.now_s(),
        "AttributeDefinitions": request.attribute_definitions,
        "KeySchema": request.key_schema,
        "DeletionProtectionEnabled": bool(request.deletion_protection_enabled),
    }
    if request.billing_mode == "PAY_PER_REQUEST":
        description["BillingModeSummary"] = {"BillingMode": "PAY_PER_REQUEST"}
    return description


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
