"""UpdateTable: capacity, billing mode, global indexes, stream and deletion protection."""

from __future__ import annotations

from heatsink.emulator.database import Database, Json
from heatsink.emulator.indexes import INVALID, GlobalIndex
from heatsink.emulator.table import EngineTable
from heatsink.emulator.units import TableLimits, Throughput
from heatsink.stores.dynamodb.wire.errors import ServiceRefused, ValidationFailed, not_found
from heatsink.stores.dynamodb.wire.requests import (
    AttributeDefinition,
    BillingMode,
    CreateIndex,
    IndexUpdate,
    ProvisionedThroughput,
    UpdateIndex,
    UpdateTable,
)

from .definitions import (
    check_definitions,
    check_index_throughput,
    check_indexes,
    check_units,
    global_index,
    kinds_of,
    limits_of,
    most_on_demand,
    show_throughput,
)
from .tables import close_stream, made_index, named, open_stream, set_class, set_encryption

NOTHING = (
    "At least one of ProvisionedThroughput, BillingMode, UpdateStreamEnabled, "
    "GlobalSecondaryIndexUpdates or SSESpecification or ReplicaUpdates is required"
)


def update_table(database: Database, request: UpdateTable) -> Json:
    _check(request)
    table = named(database, request.table_name)
    if table.status != "ACTIVE":
        raise ServiceRefused(
            "ResourceInUseException",
            "Attempt to change a resource which is still in use: Table is being updated: "
            f"{table.spec.name}",
        )
    mode = _mode(table, request)
    updates = request.global_secondary_index_updates or []
    created = [
        _created(database, table, request, one.create, mode) for one in updates if one.create
    ]
    deleted = [_index(table, one.delete.index_name) for one in updates if one.delete]
    limits = _new_limits(database, table, request, mode)
    _change_stream(database, table, request)
    for throughput, changed in limits:
        throughput.change(changed)
    _show(table, request, limits, database.clock.now_s())
    _grow(table, limits)
    if request.deletion_protection_enabled is not None:
        table.description["DeletionProtectionEnabled"] = request.deletion_protection_enabled
    set_class(table, request.table_class)
    set_encryption(table, request.sse_specification)
    for index in created:
        _define(table, request.attribute_definitions or [])
        table.backfill(index)
    for index in deleted:
        table.drop(index)
        _forget_definitions(table)
    return {"TableDescription": {**table.describe(), "TableStatus": "UPDATING"}}


def _check(request: UpdateTable) -> None:
    check_units(request.provisioned_throughput)
    updates = request.global_secondary_index_updates
    fields = (
        *(request.provisioned_throughput, request.billing_mode, request.stream_specification),
        *(updates or None, request.sse_specification, request.deletion_protection_enabled),
        *(request.table_class, request.on_demand_throughput, request.warm_throughput),
    )
    if all(one is None for one in fields):
        raise ValidationFailed(NOTHING)
    if request.billing_mode == "PROVISIONED" and request.provisioned_throughput is None:
        raise ValidationFailed(
            f"{INVALID}ProvisionedThroughput must be specified when BillingMode is PROVISIONED"
        )
    seen: set[str] = set()
    for one in updates or ():
        given = [each for each in (one.create, one.update, one.delete) if each is not None]
        if len(given) > 1:
            raise ValidationFailed(
                f"{INVALID}Only one of GlobalSecondaryIndexUpdate.Update, "
                "GlobalSecondaryIndexUpdate.Create, GlobalSecondaryIndexUpdate.Delete may be given"
            )
        if not given:
            raise ValidationFailed(
                f"{INVALID}One of GlobalSecondaryIndexUpdate.Update, "
                "GlobalSecondaryIndexUpdate.Create, GlobalSecondaryIndexUpdate.Delete must not "
                "be null"
            )
        name = _name(one)
        if name in seen:
            raise ValidationFailed(
                f"{INVALID}Only one global secondary index update per index is allowed "
                f"simultaneously. Index: {name}"
            )
        seen.add(name)
    if sum(one.update is None for one in updates or ()) > 1:
        raise ServiceRefused(
            "LimitExceededException",
            "Subscriber limit exceeded: Only 1 online index can be created or deleted "
            "simultaneously per table",
        )


def _name(one: IndexUpdate) -> str:
    given = one.create or one.update or one.delete
    assert given is not None
    return given.index_name


def _mode(table: EngineTable, request: UpdateTable) -> BillingMode:
    now: BillingMode = "PAY_PER_REQUEST" if table.throughput.limits.on_demand else "PROVISIONED"
    mode = request.billing_mode or now
    if mode == "PAY_PER_REQUEST" and request.provisioned_throughput is not None:
        raise ValidationFailed(
            f"{INVALID}Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when "
            f"BillingMode is PAY_PER_REQUEST"
        )
    return mode


def _index(table: EngineTable, name: str) -> GlobalIndex:
    index = table.indexes.get(name)
    if not isinstance(index, GlobalIndex):
        raise not_found("Requested resource not found")
    return index


def _created(
    database: Database,
    table: EngineTable,
    request: UpdateTable,
    wanted: CreateIndex,
    mode: BillingMode,
) -> GlobalIndex:
    if wanted.index_name in table.indexes:
        raise ValidationFailed("Attempting to create an index which already exists")
    new = kinds_of(request.attribute_definitions or ())
    old = kinds_of(table.description["AttributeDefinitions"])
    changed = [name for name in new if name in old and new[name] != old[name]]
    if changed:
        name = changed[0]
        raise ValidationFailed(
            f"{INVALID}Attributes cannot be redefined. Please check that your attribute has the "
            f"same type as previously defined. Existing schema: {name}:{old[name]} New schema: "
            f"{name}:{new[name]}"
        )
    kinds = {**old, **new}
    spec = global_index(wanted, table.schema, new, table.spec.arn)
    others = [index.spec for index in table.indexes.values()]
    check_indexes(
        [index.spec for index in table.local_indexes()],
        [*(index.spec for index in table.global_indexes()), spec],
    )
    check_definitions(kinds, table.schema, [*others, spec])
    check_index_throughput(mode, wanted)
    return made_index(database, spec, wanted, mode)


def _check_index_units(updates: list[UpdateIndex], mode: BillingMode) -> None:
    if mode == "PAY_PER_REQUEST" and any(one.provisioned_throughput for one in updates):
        raise ValidationFailed(
            f"{INVALID}Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when "
            f"BillingMode is PAY_PER_REQUEST"
        )


def _new_limits(
    database: Database, table: EngineTable, request: UpdateTable, mode: BillingMode
) -> list[tuple[Throughput, TableLimits]]:
    """Return the limits that change: those of the table, and those of global indexes."""
    found: list[tuple[Throughput, TableLimits]] = []
    settings, is_new_mode = database.settings, mode != _mode_of(table)
    updates = [one.update for one in request.global_secondary_index_updates or () if one.update]
    wanted = {one.index_name: one for one in updates}
    given = request.provisioned_throughput
    if is_new_mode or given or request.on_demand_throughput or request.warm_throughput:
        if given is not None and not is_new_mode:
            _check_differs(table.throughput.limits, given, "table")
        limits = limits_of(
            mode,
            given or _now(table.throughput),
            request.on_demand_throughput or most_on_demand(table.throughput.limits),
            request.warm_throughput,
            settings,
        )
        found.append((table.throughput, limits))
    for name in wanted:
        _index(table, name)
    _check_index_units(updates, mode)
    for index in table.global_indexes():
        one = wanted.get(index.spec.name)
        if one is None and not is_new_mode:
            continue
        one = one or UpdateIndex(index_name=index.spec.name)
        capacity = one.provisioned_throughput
        if mode == "PROVISIONED" and is_new_mode and capacity is None:
            raise ValidationFailed(
                f"{INVALID}ProvisionedThroughput must be specified for index: {one.index_name}"
            )
        if capacity is not None and not is_new_mode:
            _check_differs(index.throughput.limits, capacity, f"index {one.index_name}")
        limits = limits_of(
            mode,
            capacity or _now(index.throughput),
            one.on_demand_throughput or most_on_demand(index.throughput.limits),
            one.warm_throughput,
            settings,
        )
        found.append((index.throughput, limits))
    return found


def _mode_of(table: EngineTable) -> BillingMode:
    return "PAY_PER_REQUEST" if table.throughput.limits.on_demand else "PROVISIONED"


def _now(throughput: Throughput) -> ProvisionedThroughput | None:
    capacity = throughput.limits.table
    if throughput.limits.on_demand or capacity.reads is None or capacity.writes is None:
        return None
    return ProvisionedThroughput(
        read_capacity_units=int(capacity.reads), write_capacity_units=int(capacity.writes)
    )


def _check_differs(limits: TableLimits, given: ProvisionedThroughput, what: str) -> None:
    reads, writes = given.read_capacity_units, given.write_capacity_units
    if (reads, writes) != (limits.table.reads, limits.table.writes):
        return
    raise ValidationFailed(
        f"The provisioned throughput for the {what} will not change. The requested value equals "
        f"the current value. Current ReadCapacityUnits provisioned for the {what}: {reads}. "
        f"Requested ReadCapacityUnits: {reads}. Current WriteCapacityUnits provisioned for the "
        f"{what}: {writes}. Requested WriteCapacityUnits: {writes}. Refer to the Amazon DynamoDB "
        "Developer Guide for current limits and how to request higher limits."
    )


def _show(
    table: EngineTable,
    request: UpdateTable,
    limits: list[tuple[Throughput, TableLimits]],
    now_s: float,
) -> None:
    """Bring the description of the table and of its indexes up to date."""
    updates = [one.update for one in request.global_secondary_index_updates or () if one.update]
    warm = {one.index_name: one.warm_throughput for one in updates}
    for throughput, changed in limits:
        if throughput is table.throughput:
            show_throughput(table.description, changed, request.warm_throughput)
        for index in table.global_indexes():
            if throughput is index.throughput:
                show_throughput(index.spec.description, changed, warm.get(index.spec.name))
    if request.billing_mode is not None:
        summary = table.description.setdefault("BillingModeSummary", {})
        if summary.get("BillingMode") != request.billing_mode == "PAY_PER_REQUEST":
            summary["LastUpdateToPayPerRequestDateTime"] = now_s
        summary["BillingMode"] = request.billing_mode


def _grow(table: EngineTable, limits: list[tuple[Throughput, TableLimits]]) -> None:
    """Split partitions until the new throughput fits. DynamoDB never merges them again."""
    for throughput, changed in limits:
        if throughput is table.throughput:
            table.adaptation.grow(changed.partitions)
        for index in table.global_indexes():
            if throughput is index.throughput:
                index.adaptation.grow(changed.partitions)


def _change_stream(database: Database, table: EngineTable, request: UpdateTable) -> None:
    wanted = request.stream_specification
    if wanted is None:
        return
    if not wanted.stream_enabled:
        if table.stream is None:
            raise ValidationFailed(
                f"{INVALID}Table has no stream to disable: TableName: {table.spec.name}"
            )
        close_stream(table)
        return
    if table.stream is not None:
        raise ValidationFailed(
            f"{INVALID}Table already has an enabled stream: TableName: {table.spec.name}"
        )
    open_stream(database, table, wanted)


def _define(table: EngineTable, definitions: list[AttributeDefinition]) -> None:
    known = list(table.description["AttributeDefinitions"])
    names = {one.attribute_name for one in known}
    known += [one for one in definitions if one.attribute_name not in names]
    table.description["AttributeDefinitions"] = known


def _forget_definitions(table: EngineTable) -> None:
    """Drop the attributes that no key uses any more."""
    used = {*table.schema.names, *(n for one in table.indexes.values() for n in one.schema.names)}
    table.description["AttributeDefinitions"] = [
        one for one in table.description["AttributeDefinitions"] if one.attribute_name in used
    ]
