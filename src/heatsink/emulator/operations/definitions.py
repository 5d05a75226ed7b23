"""Definitions of tables and indexes in requests: their checks, key schemas and limits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import ceil
from typing import Any

import msgspec

from heatsink.emulator.capacity.limits import TableCapacity
from heatsink.emulator.indexes import INVALID, IndexSpec
from heatsink.emulator.settings import PARTITIONS_MAX, EngineSettings
from heatsink.emulator.units import TableLimits
from heatsink.stores.dynamodb.wire.errors import ServiceRefused, ValidationFailed, constraint_failed
from heatsink.stores.dynamodb.wire.keys import IndexSchema, KeyPart, Schema
from heatsink.stores.dynamodb.wire.requests import (
    AttributeDefinition,
    BillingMode,
    GlobalSecondaryIndex,
    KeySchemaElement,
    LocalSecondaryIndex,
    OnDemandThroughput,
    ProvisionedThroughput,
    WarmThroughput,
)

NAME = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
TABLE_UNITS_MAX = 40_000  # the service's default quota of a table, for reads and for writes
UNITS_MAX = 10**12
PARTS_MAX = 4
LOCAL_MAX, GLOBAL_MAX = 5, 20
PROJECTED_MAX = 100

NO_HASH = "Invalid KeySchema: The first KeySchemaElement is not a HASH key type"
NO_RANGE = "Invalid KeySchema: The second KeySchemaElement is not a RANGE key type"
SAME_NAME = "Both the Hash Key and the Range Key element in the KeySchema have the same name"


def check_name(name: str, field: str) -> None:
    """Raise unless `name` is a valid name of a table or an index. The error names `field`."""
    if NAME.fullmatch(name):
        return
    member = f"Value '{name}' at '{field}'"
    if len(name) < 3:
        raise constraint_failed(member, "have length greater than or equal to 3")
    if len(name) > 255:
        raise constraint_failed(member, "have length less than or equal to 255")
    raise constraint_failed(member, "satisfy regular expression pattern: [a-zA-Z0-9_.-]+")


def kinds_of(definitions: Iterable[AttributeDefinition]) -> dict[str, str]:
    """Return the types of the defined attributes, by name. Raises if one is defined twice."""
    kinds: dict[str, str] = {}
    for one in definitions:
        if one.attribute_name in kinds:
            raise ValidationFailed(
                f"{INVALID}Cannot have two attributes with the same name: {one.attribute_name}"
            )
        kinds[one.attribute_name] = one.attribute_type
    return kinds


def table_schema(elements: list[KeySchemaElement], kinds: dict[str, str]) -> Schema:
    _check_length(elements, "keySchema")
    if len(elements) > len(kinds):
        raise ValidationFailed("Invalid KeySchema: Some index key attribute have no definition")
    parts = _parts(elements, kinds)
    _check_second(elements)
    return Schema(parts[0], parts[1] if len(parts) == 2 else None)


def _check_length(elements: list[KeySchemaElement], member: str) -> None:
    if 1 <= len(elements) <= 2:
        return
    shown = ", ".join(
        f"KeySchemaElement(attributeName={one.attribute_name}, keyType={one.key_type})"
        for one in elements
    )
    bound = "less than or equal to 2" if elements else "greater than or equal to 1"
    raise constraint_failed(f"Value '[{shown}]' at '{member}'", f"have length {bound}")


def _check_second(elements: list[KeySchemaElement]) -> None:
    if len(elements) > 1 and elements[1].key_type != "RANGE":
        raise ValidationFailed(NO_RANGE)


def _parts(elements: list[KeySchemaElement], kinds: dict[str, str]) -> list[KeyPart]:
    """Return the attributes of a key schema: those of the hash, then those of the sort key."""
    names = [element.attribute_name for element in elements]
    if any(name not in kinds for name in names):
        raise ValidationFailed(
            f"{INVALID}Some index key attributes are not defined in AttributeDefinitions. "
            f"Keys: [{', '.join(names)}], AttributeDefinitions: [{', '.join(kinds)}]"
        )
    if len(set(names)) != len(names):
        raise ValidationFailed(SAME_NAME)
    roles = [element.key_type for element in elements]
    if roles[0] != "HASH":
        raise ValidationFailed(NO_HASH)
    if roles != sorted(roles):
        raise ValidationFailed(f"{INVALID}HASH elements of a KeySchema come before RANGE elements")
    return [KeyPart(name, kinds[name]) for name in names]


def local_index(
    wanted: LocalSecondaryIndex, table: Schema, kinds: dict[str, str], arn: str
) -> IndexSpec:
    if table.sort is None:
        raise ValidationFailed(
            f"{INVALID}Table KeySchema does not have a range key, which is required when "
            f"specifying a LocalSecondaryIndex"
        )
    check_name(wanted.index_name, "localSecondaryIndexes.1.member.indexName")
    _check_length(wanted.key_schema, "localSecondaryIndexes.1.member.keySchema")
    parts = _parts(wanted.key_schema, kinds)
    _check_second(wanted.key_schema)
    if len(parts) != 2:
        raise ValidationFailed(
            f"{INVALID}Index KeySchema does not have a range key for index: {wanted.index_name}"
        )
    if parts[0].name != table.hash.name:
        raise ValidationFailed(
            f"{INVALID}Index KeySchema does not have the same leading hash key as table KeySchema "
            f"for index: {wanted.index_name}. index hash key: {parts[0].name}, table hash key: "
            f"{table.hash.name}"
        )
    return _spec(wanted, IndexSchema((parts[0],), (parts[1],), table), arn)


def global_index(
    wanted: GlobalSecondaryIndex, table: Schema, kinds: dict[str, str], arn: str
) -> IndexSpec:
    """Return the definition of a global index. Each part of its key has up to four attributes."""
    member = "globalSecondaryIndexes.1.member"
    check_name(wanted.index_name, f"{member}.indexName")
    if not wanted.key_schema:
        bound = "have length greater than or equal to 1"
        raise constraint_failed(f"Value '[]' at '{member}.keySchema'", bound)
    parts = _parts(wanted.key_schema, kinds)
    hashes = sum(element.key_type == "HASH" for element in wanted.key_schema)
    if hashes > PARTS_MAX or len(parts) - hashes > PARTS_MAX:
        raise ValidationFailed(
            f"{INVALID}Index KeySchema has more than {PARTS_MAX} HASH or {PARTS_MAX} RANGE "
            f"elements for index: {wanted.index_name}"
        )
    return _spec(wanted, IndexSchema(tuple(parts[:hashes]), tuple(parts[hashes:]), table), arn)


def _spec(wanted: LocalSecondaryIndex, schema: IndexSchema, arn: str) -> IndexSpec:
    kind, extra = wanted.projection.projection_type, wanted.projection.non_key_attributes
    if kind is None:
        raise ValidationFailed(f"{INVALID}Unknown ProjectionType: null")
    if extra is not None and kind != "INCLUDE":
        raise ValidationFailed(
            f"{INVALID}ProjectionType is {kind}, but NonKeyAttributes is specified"
        )
    if extra is None and kind == "INCLUDE":
        raise ValidationFailed(
            f"{INVALID}ProjectionType is INCLUDE, but NonKeyAttributes is not specified"
        )
    projected = None if kind == "ALL" else frozenset({*schema.entry_names, *(extra or ())})
    index_arn = f"{arn}/index/{wanted.index_name}"
    description = {
        "IndexName": wanted.index_name,
        "IndexArn": index_arn,
        "KeySchema": wanted.key_schema,
        "Projection": {
            "ProjectionType": kind,
            **({"NonKeyAttributes": extra} if extra is not None else {}),
        },
    }
    return IndexSpec(wanted.index_name, index_arn, schema, kind, projected, description)


def check_indexes(local: list[IndexSpec], global_: list[IndexSpec]) -> None:
    """Raise if a table may not have these indexes together."""
    seen: set[str] = set()
    for spec in (*local, *global_):
        if spec.name in seen:
            raise ValidationFailed(f"{INVALID}Duplicate index name: {spec.name}")
        seen.add(spec.name)
    if len(local) > LOCAL_MAX:
        raise ValidationFailed(
            f"{INVALID}Number of LocalSecondaryIndexes exceeds per-table limit of {LOCAL_MAX}"
        )
    if len(global_) > GLOBAL_MAX:
        raise ValidationFailed(
            f"{INVALID}GlobalSecondaryIndex count exceeds the per-table limit of {GLOBAL_MAX}"
        )
    extra = [
        spec.description["Projection"].get("NonKeyAttributes", ()) for spec in (*local, *global_)
    ]
    if sum(map(len, extra)) > PROJECTED_MAX:
        raise ValidationFailed(
            f"{INVALID}The number of projected attributes of all indexes exceeds {PROJECTED_MAX}"
        )


def check_definitions(kinds: dict[str, str], schema: Schema, indexes: list[IndexSpec]) -> None:
    """Raise if an attribute is defined that no key uses."""
    used = dict.fromkeys((*schema.names, *(n for one in indexes for n in one.schema.names)))
    if len(used) == len(kinds):
        return
    if not indexes:
        raise ValidationFailed(
            f"{INVALID}Number of attributes in KeySchema does not exactly match number of "
            f"attributes defined in AttributeDefinitions"
        )
    raise ValidationFailed(
        f"{INVALID}Some AttributeDefinitions are not used. AttributeDefinitions: "
        f"[{', '.join(kinds)}], keys used: [{', '.join(used)}]"
    )


def limits_of(
    mode: BillingMode,
    provisioned: ProvisionedThroughput | None,
    on_demand: OnDemandThroughput | None,
    warm: WarmThroughput | None,
    settings: EngineSettings,
) -> TableLimits:
    """Return the limits of a table or of a global index, in the billing mode of its table."""
    reads, writes = _warm(warm)
    if mode == "PAY_PER_REQUEST":
        return TableLimits(
            on_demand=True,
            kind="MaxOnDemandThroughputExceeded",
            table=_most_on_demand(on_demand),
            partitions=max(settings.partitions, partitions_for(reads, writes, settings)),
            settings=settings.of_partitions(),
        )
    assert provisioned is not None
    capacity = TableCapacity(
        reads=_units("ReadCapacityUnits", provisioned.read_capacity_units),
        writes=_units("WriteCapacityUnits", provisioned.write_capacity_units),
    )
    reads = max(reads, provisioned.read_capacity_units)
    writes = max(writes, provisioned.write_capacity_units)
    return TableLimits(
        on_demand=False,
        kind="ProvisionedThroughputExceeded",
        table=capacity,
        partitions=partitions_for(reads, writes, settings),
        settings=settings.of_partitions(),
    )


def partitions_for(reads: int, writes: int, settings: EngineSettings) -> int:
    """Return the number of partitions that this throughput needs."""
    needed = reads / settings.read_limit + writes / settings.write_limit
    return min(max(ceil(needed), 1), PARTITIONS_MAX)


def _warm(warm: WarmThroughput | None) -> tuple[int, int]:
    if warm is None:
        return 0, 0
    return warm.read_units_per_second or 0, warm.write_units_per_second or 0


def check_throughput(mode: BillingMode, provisioned: ProvisionedThroughput | None) -> None:
    if mode == "PAY_PER_REQUEST" and provisioned is not None:
        raise ValidationFailed(
            f"{INVALID}Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when "
            f"BillingMode is PAY_PER_REQUEST"
        )
    if mode == "PROVISIONED" and provisioned is None:
        raise ValidationFailed(
            f"{INVALID}ReadCapacityUnits and WriteCapacityUnits must both be specified when "
            f"BillingMode is PROVISIONED"
        )


def check_units(provisioned: ProvisionedThroughput | None) -> None:
    """Raise if the units are more than DynamoDB can count. DynamoDB checks this first."""
    if provisioned is None:
        return
    for field, units in (
        ("ReadCapacityUnits", provisioned.read_capacity_units),
        ("WriteCapacityUnits", provisioned.write_capacity_units),
    ):
        _check_countable(field, units)


def _check_countable(field: str, units: int) -> None:
    if units > UNITS_MAX:
        raise ValidationFailed(f"Given value {units} for {field} is out of bounds")


def check_index_throughput(mode: BillingMode, wanted: GlobalSecondaryIndex) -> None:
    if mode == "PAY_PER_REQUEST" and wanted.provisioned_throughput is not None:
        raise ValidationFailed(
            f"{INVALID}ProvisionedThroughput should not be specified for index: "
            f"{wanted.index_name} when BillingMode is PAY_PER_REQUEST"
        )
    if mode == "PROVISIONED" and wanted.provisioned_throughput is None:
        raise ValidationFailed(
            f"{INVALID}ProvisionedThroughput is not specified for index: {wanted.index_name}"
        )


def _units(field: str, units: int) -> float:
    """Return `units` as a float. Raises if there are too many.

    The check comes before the table is made, since the number of partitions grows with the units.
    """
    _check_countable(field, units)
    if units > TABLE_UNITS_MAX:
        raise ServiceRefused(
            "LimitExceededException",
            f"Subscriber limit exceeded: Requested {field} of {units} exceeds the per-table limit "
            f"of {TABLE_UNITS_MAX}",
        )
    return float(units)


def _most_on_demand(most: OnDemandThroughput | None) -> TableCapacity:
    if most is None:
        return TableCapacity()
    reads, writes = most.max_read_request_units, most.max_write_request_units
    return TableCapacity(
        reads=None if reads < 1 else _units("MaxReadRequestUnits", reads),
        writes=None if writes < 1 else _units("MaxWriteRequestUnits", writes),
    )


def most_on_demand(limits: TableLimits) -> OnDemandThroughput | None:
    """Return the maximum throughput of a table on demand. None without one."""
    reads, writes = limits.table.reads, limits.table.writes
    if not limits.on_demand or (reads is None and writes is None):
        return None
    return OnDemandThroughput(
        max_read_request_units=int(reads or -1), max_write_request_units=int(writes or -1)
    )


def show_throughput(
    description: dict[str, Any], limits: TableLimits, warm: WarmThroughput | None
) -> None:
    """Bring the fields about throughput in the description of a table or index up to date."""
    reads, writes = (limits.table.reads, limits.table.writes)
    if limits.on_demand:
        reads = writes = 0
    description["ProvisionedThroughput"] = {
        "NumberOfDecreasesToday": 0,
        "ReadCapacityUnits": int(reads or 0),
        "WriteCapacityUnits": int(writes or 0),
    }
    description.pop("OnDemandThroughput", None)
    if (most := most_on_demand(limits)) is not None:
        description["OnDemandThroughput"] = most
    if warm is not None:
        known = description.get("WarmThroughput", {})
        given = msgspec.to_builtins(warm)
        description["WarmThroughput"] = {
            **known,
            **{name: units for name, units in given.items() if units is not None},
            "Status": "ACTIVE",
        }
