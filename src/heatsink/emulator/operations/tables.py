"""CreateTable, DescribeTable, DeleteTable, ListTables, UpdateTimeToLive, DescribeTimeToLive."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

from heatsink.emulator.database import Database, Json
from heatsink.emulator.expiry import Expiry
from heatsink.emulator.indexes import INVALID, GlobalIndex, IndexSpec, LocalIndex
from heatsink.emulator.streams import Stream, StreamSpec
from heatsink.emulator.table import EngineTable, TableSpec
from heatsink.stores.dynamodb.wire.errors import ServiceRefused, ValidationFailed, not_found
from heatsink.stores.dynamodb.wire.requests import (
    BillingMode,
    CreateTable,
    Encryption,
    GlobalSecondaryIndex,
    ListTables,
    OneTable,
    StreamSpecification,
    TableClass,
    Tag,
    UpdateTimeToLive,
)

from .definitions import (
    check_definitions,
    check_index_throughput,
    check_indexes,
    check_name,
    check_throughput,
    check_units,
    global_index,
    kinds_of,
    limits_of,
    local_index,
    show_throughput,
    table_schema,
)

REGION, ACCOUNT = "us-east-1", "000000000000"
TAGS_MAX, TAG_KEY_MAX, TAG_VALUE_MAX = 50, 128, 256
TAG = re.compile(r"[\w\s.:/=+@-]*")
DELETED = ("CreationDateTime", "KeySchema", "AttributeDefinitions")


def create_table(database: Database, request: CreateTable) -> Json:
    name = request.table_name
    check_name(name, "tableName")
    mode: BillingMode = request.billing_mode or "PROVISIONED"
    check_units(request.provisioned_throughput)
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
    tags = checked_tags(request.tags or [])
    if name in database.tables:
        raise ServiceRefused("ResourceInUseException", f"Table already exists: {name}")
    id_ = str(UUID(int=database.rng.getrandbits(128), version=4))
    spec = TableSpec(name, arn, id_, schema, limits, _description(database, request))
    table = EngineTable(spec, database.clock, database.settings.replica_lag_s)
    show_throughput(table.description, limits, request.warm_throughput)
    lag_s = database.settings.replica_lag_s
    table.add([LocalIndex(one, table.throughput, lag_s, database.clock) for one in local])
    table.add(
        [made_index(database, spec, one, mode) for spec, one in zip(global_, wanted, strict=True)]
    )
    set_class(table, request.table_class)
    set_encryption(table, request.sse_specification)
    table.tags = tags
    if request.stream_specification is not None and request.stream_specification.stream_enabled:
        open_stream(database, table, request.stream_specification)
    database.tables[name] = table
    return {"TableDescription": {**table.describe(), "TableStatus": "CREATING"}}


def checked_tags(tags: list[Tag], before: dict[str, str] | None = None) -> dict[str, str]:
    """Return the old and the new tags, by key. Raises if a table may not have these tags."""
    for tag in tags:
        if not 1 <= len(tag.key) <= TAG_KEY_MAX or len(tag.value) > TAG_VALUE_MAX:
            raise ValidationFailed(
                f"Invalid tag {tag.key!r}: a key has 1 to {TAG_KEY_MAX} characters, a value at "
                f"most {TAG_VALUE_MAX}"
            )
        if not (TAG.fullmatch(tag.key) and TAG.fullmatch(tag.value)):
            raise ValidationFailed(
                f"Invalid tag {tag.key!r}: keys and values have letters, numbers, white space and "
                "_ . : / = + - @"
            )
    found = {**(before or {}), **{tag.key: tag.value for tag in tags}}
    if len(found) > TAGS_MAX:
        raise ValidationFailed(f"{INVALID}Too many tags: a table has at most {TAGS_MAX}")
    return found


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
    show_throughput(spec.description, limits, wanted.warm_throughput)
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
        description["BillingModeSummary"] = {
            "BillingMode": "PAY_PER_REQUEST",
            "LastUpdateToPayPerRequestDateTime": description["CreationDateTime"],
        }
    return description


def set_class(table: EngineTable, wanted: TableClass | None) -> None:
    if wanted is not None:
        table.description["TableClassSummary"] = {"TableClass": wanted}


def set_encryption(table: EngineTable, wanted: Encryption | None) -> None:
    """Remember the wanted encryption. The emulator encrypts nothing."""
    if wanted is None:
        return
    table.description.pop("SSEDescription", None)
    if wanted.enabled:
        key = wanted.kms_master_key_id or f"arn:aws:kms:{REGION}:{ACCOUNT}:alias/aws/dynamodb"
        table.description["SSEDescription"] = {
            "Status": "ENABLED",
            "SSEType": wanted.sse_type or "KMS",
            "KMSMasterKeyArn": key,
        }


def open_stream(database: Database, table: EngineTable, wanted: StreamSpecification) -> None:
    if wanted.stream_view_type is None:
        raise ValidationFailed(f"{INVALID}StreamViewType is required when StreamEnabled is true")
    now = datetime.fromtimestamp(database.clock.now_s(), UTC)
    label, arn = _label(now), f"{table.spec.arn}/stream/{_label(now)}"
    while arn in database.streams:
        now += timedelta(milliseconds=1)
        label, arn = _label(now), f"{table.spec.arn}/stream/{_label(now)}"
    key_schema, schema = table.description["KeySchema"], table.schema
    spec = StreamSpec(
        arn, label, table.spec.name, wanted.stream_view_type, schema, key_schema, REGION
    )
    table.stream = Stream(spec, table.throughput.adaptive.map, database.clock)
    database.streams[arn] = table.stream


def _label(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").removesuffix("+00:00")


def close_stream(table: EngineTable) -> None:
    """End the stream of a table. Its records can be read for a day."""
    if table.stream is not None:
        table.stream.close()
    table.stream = None


def named(database: Database, name: str) -> EngineTable:
    table = database.tables.get(name.rpartition("/")[2])
    if table is None:
        raise not_found(f"Requested resource not found: Table: {name} not found")
    return table


def describe_table(database: Database, request: OneTable) -> Json:
    return {"Table": named(database, request.table_name).describe()}


def delete_table(database: Database, request: OneTable) -> Json:
    table = named(database, request.table_name)
    if table.description["DeletionProtectionEnabled"]:
        raise ValidationFailed(
            "Resource cannot be deleted as it is currently protected against deletion. Disable "
            "deletion protection first."
        )
    close_stream(table)
    del database.tables[table.spec.name]
    described = {**table.describe(), "TableStatus": "DELETING"}
    hidden = (*DELETED, "LocalSecondaryIndexes", "GlobalSecondaryIndexes")
    return {"TableDescription": {n: v for n, v in described.items() if n not in hidden}}


def list_tables(database: Database, request: ListTables) -> Json:
    after = request.exclusive_start_table_name or ""
    names = sorted(name for name in database.tables if name > after)
    answer: Json = {"TableNames": names[: request.limit]}
    if len(names) > request.limit:
        answer["LastEvaluatedTableName"] = answer["TableNames"][-1]
    return answer


def update_time_to_live(database: Database, request: UpdateTimeToLive) -> Json:
    table, wanted = named(database, request.table_name), request.time_to_live_specification
    if wanted.enabled == (table.expiry is not None):
        raise ValidationFailed(f"TimeToLive is already {'en' if wanted.enabled else 'dis'}abled")
    if table.expiry is not None and table.expiry.attribute != wanted.attribute_name:
        raise ValidationFailed(
            "TimeToLive is active on a different AttributeName: current AttributeName is "
            f"{table.expiry.attribute}"
        )
    lag_s = database.settings.ttl_lag_s
    enabled = Expiry(wanted.attribute_name, table.walk(), lag_s) if wanted.enabled else None
    table.expiry = enabled
    return {"TimeToLiveSpecification": wanted}


def describe_time_to_live(database: Database, request: OneTable) -> Json:
    expiry = named(database, request.table_name).expiry
    if expiry is None:
        return {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
    described = {"TimeToLiveStatus": "ENABLED", "AttributeName": expiry.attribute}
    return {"TimeToLiveDescription": described}
