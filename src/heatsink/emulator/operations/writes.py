"""PutItem, UpdateItem and DeleteItem, in three steps that batches and transactions share.

A write is prepared, planned and committed. The first step checks everything that needs no table,
since DynamoDB checks that first. The second step looks at the stored item.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from heatsink.emulator.database import Consumed, Database, Json
from heatsink.emulator.indexes import IndexChange
from heatsink.emulator.rows import StoredItem, token_of
from heatsink.emulator.table import EngineTable
from heatsink.emulator.units import Charge, take_together, write_units
from heatsink.stores.dynamodb.wire.errors import ConditionFailed, DoesNotFit, ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.legacy import (
    legacy_condition,
    legacy_update,
    legacy_words,
)
from heatsink.stores.dynamodb.wire.expressions.operands import Scope
from heatsink.stores.dynamodb.wire.expressions.reading import (
    CONDITION,
    NONE_GIVEN,
    UPDATE,
    Expressions,
    check_mixed,
    check_used,
    read_expressions,
)
from heatsink.stores.dynamodb.wire.expressions.updates import Update, project
from heatsink.stores.dynamodb.wire.keys import Key
from heatsink.stores.dynamodb.wire.requests import (
    DeleteItem,
    PutItem,
    SingleWrite,
    UpdateItem,
    Write,
)
from heatsink.stores.dynamodb.wire.values import Item, admit_item

ITEM_BYTES_MAX = 400 * 1_024
UNSUPPORTED_INDEX_KEY = (
    "The update expression attempted to update the secondary index key to unsupported type"
)


class PlannedWrite(msgspec.Struct, frozen=True):
    """A valid write that is not committed yet, with the row before it and the row after it.

    `failure` is set if the condition of the write does not hold. `changes` are the changes of the
    table's indexes.
    """

    table: EngineTable
    key: Key
    old: StoredItem | None
    new: StoredItem | None
    failure: ConditionFailed | None
    changes: tuple[IndexChange, ...] = ()

    def units(self, factor: int = 1) -> float:
        """Return the cost of the write, which depends on the larger of the old and the new item.

        If the condition failed, only the old item counts. `factor` is 2 in transactions.
        """
        old, new = self.old, None if self.failure else self.new
        return write_units(max(old.size if old else 0, new.size if new else 0), factor)

    def charges(self, factor: int = 1) -> list[Charge]:
        """Return what the write takes from its table and from each global index that it changes.

        Local indexes take from the table.
        """
        units, found = self.units(factor), []
        for index, removed, added, _, removal, cost in self.changes:
            if not index.is_global:
                units += (removal + cost) * factor
                continue
            for entry, amount in ((removed, removal), (added, cost)):
                if entry is not None:
                    found.append(Charge(index.throughput, token_of(entry.hash), amount * factor))
        return [Charge(self.table.throughput, token_of(self.key.hash), units), *found]

    def take(self, consumed: Consumed) -> None:
        """Take the units of the write from all limits. Raises `Throttled`, and then takes none."""
        units = self.units()
        if not self.changes:
            self.table.take("Write", self.key, units)
        elif throttled := take_together("Write", self.charges()):
            raise throttled
        self.count(consumed, units)

    def count(self, consumed: Consumed, units: float, factor: int = 1) -> None:
        consumed.add(self.table, "Write", units)
        for change in self.changes:
            cost = (change.removal + change.units) * factor
            consumed.add_index(self.table, change.target, "Write", cost)

    def collection(self) -> Json | None:
        """Return the size of the item collection after the write.

        As on DynamoDB, the result is None in a table without local indexes.
        """
        local, row = self.table.local_indexes(), self.new or self.old
        if not local or row is None:
            return None
        held = [self.table.rows, *(index.rows for index in local)]
        gigabytes = sum(rows.bytes_of(self.key.hash) for rows in held) // 2**30
        name = self.table.schema.hash.name
        return {
            "ItemCollectionKey": {name: row.item[name]},
            "SizeEstimateRangeGB": [float(gigabytes), float(gigabytes + 1)],
        }

    def commit(self) -> None:
        self.table.write(self.key, self.old, self.new, self.changes)


class PreparedWrite(msgspec.Struct, frozen=True):
    """A write that is valid by itself, before its table is known.

    `target` is the item to put, or the key of the item. `size` is the size of the item to put.
    """

    verb: Literal["put", "delete", "check", "update"]
    target: Item
    given: Expressions
    shows_old: bool
    size: int = 0
    is_legacy: bool = False

    def plan(self, table: EngineTable) -> PlannedWrite:
        """Decide what the write changes in `table`. Raises if it does not fit the table's keys."""
        schema, verb = table.schema, self.verb
        if verb == "put":
            key = schema.key_of_item(self.target)
            if table.indexes:
                table.check_index_keys(self.target, None)
        else:
            key = schema.key_of(self.target)
            if verb == "update" and self.given.update is not None:
                _check_keys_stay(table, self.given.update)
        if self.given.nested:
            table.check_scalars(self.given.nested)
        old = table.rows.get(key)
        condition = self.given.condition
        if condition is not None and not condition.holds(
            {} if old is None else old.item, self.given.scope
        ):
            shown = old.item if old is not None and self.shows_old else None
            return PlannedWrite(table, key, old, old, ConditionFailed(shown))
        new = self._new(old)
        if not table.indexes or new is old:
            return PlannedWrite(table, key, old, new, None)
        if new is not None and verb == "update":
            self._check_index_keys(table, new, old)
        return PlannedWrite(table, key, old, new, None, table.changes(key, old, new))

    def _check_index_keys(
        self, table: EngineTable, new: StoredItem, old: StoredItem | None
    ) -> None:
        try:
            table.check_index_keys(new.item, None if old is None else old.item)
        except DoesNotFit as error:
            if self.is_legacy or "Type mismatch" not in error.message:
                raise
            raise DoesNotFit(UNSUPPORTED_INDEX_KEY) from None

    def _new(self, old: StoredItem | None) -> StoredItem | None:
        if self.verb == "put":
            return StoredItem(self.target, self.size)
        if self.verb == "delete":
            return None
        if self.verb == "check":
            return old
        update = self.given.update
        if update is None:
            return old or _sized(dict(self.target))
        try:
            item = dict(self.target) if old is None else old.item
            changed = update.apply(item, self.given.scope)
            removes = (update.removes or update.deletes) and not (update.sets or update.adds)
            if old is None and removes:
                return None  # REMOVE and DELETE create no item
            return _sized(changed)
        except DoesNotFit as error:
            raise legacy_words(error) if self.is_legacy else error from None


def prepare_put(request: Write, item: Item) -> PreparedWrite:
    is_plain = _is_plain(request)
    if not is_plain:
        _check_kinds(request, {CONDITION: request.condition_expression})
    size = admit_item(item)
    if isinstance(request, SingleWrite) and request.return_values not in ("NONE", "ALL_OLD"):
        raise ValidationFailed("ReturnValues can only be ALL_OLD or NONE")
    if size > ITEM_BYTES_MAX:
        raise ValidationFailed("Item size has exceeded the maximum allowed size")
    given = NONE_GIVEN if is_plain else _condition(request)
    return PreparedWrite("put", item, given, _shows_old(request), size)


def _is_plain(request: Write) -> bool:
    """Whether a write has no condition, as most have none."""
    return (
        request.condition_expression is None
        and request.expression_attribute_names is None
        and request.expression_attribute_values is None
        and _has_no_legacy(request)
    )


def prepare_delete(request: Write, key: Item) -> PreparedWrite:
    _check_kinds(request, {CONDITION: request.condition_expression})
    admit_item(key)
    if isinstance(request, SingleWrite) and request.return_values not in ("NONE", "ALL_OLD"):
        raise ValidationFailed("ReturnValues can only be ALL_OLD or NONE")
    return PreparedWrite("delete", key, _condition(request), _shows_old(request))


def prepare_check(request: Write, key: Item) -> PreparedWrite:
    admit_item(key)
    return PreparedWrite("check", key, _condition(request), _shows_old(request))


def prepare_update(request: Write, key: Item, expression: str | None) -> PreparedWrite:
    expressions = {UPDATE: expression, CONDITION: request.condition_expression}
    _check_kinds(request, expressions)
    admit_item(key)
    updates = request.attribute_updates if isinstance(request, UpdateItem) else None
    if updates is None and _has_no_legacy(request):
        names, values = request.expression_attribute_names, request.expression_attribute_values
        given = read_expressions(names, values, expressions)
        return PreparedWrite("update", key, given, _shows_old(request))
    update, values = (None, {}) if updates is None else legacy_update(updates)
    given = _condition(request)
    scope = Scope({}, {**values, **given.scope.values})
    given = msgspec.structs.replace(given, update=update, scope=scope)
    return PreparedWrite("update", key, given, _shows_old(request), is_legacy=True)


def _shows_old(request: Write) -> bool:
    return request.return_values_on_condition_check_failure == "ALL_OLD"


def _has_no_legacy(request: Write) -> bool:
    return not isinstance(request, SingleWrite) or (
        request.expected is None and request.conditional_operator is None
    )


def _check_kinds(request: Write, expressions: dict[str, str | None]) -> None:
    """Raise if the request mixes legacy parameters with expressions, or has placeholders only."""
    if isinstance(request, SingleWrite):
        updates = request.attribute_updates if isinstance(request, UpdateItem) else None
        if updates is not None or request.expected is not None:
            check_mixed({"AttributeUpdates": updates, "Expected": request.expected}, expressions)
    names, values = request.expression_attribute_names, request.expression_attribute_values
    if names is None and values is None:
        return
    if all(text is None for text in expressions.values()):
        check_used(names, values, expressions)


def _condition(request: Write) -> Expressions:
    """Return the condition of a write that has no update expression."""
    if isinstance(request, SingleWrite) and not _has_no_legacy(request):
        return legacy_condition(request.expected, request.conditional_operator)
    names, values = request.expression_attribute_names, request.expression_attribute_values
    if request.condition_expression is None and names is None and values is None:
        return NONE_GIVEN
    return read_expressions(names, values, {CONDITION: request.condition_expression})


def _sized(item: Item) -> StoredItem:
    row = StoredItem(item, admit_item(item))
    if row.size > ITEM_BYTES_MAX:
        raise DoesNotFit("Item size to update has exceeded the maximum allowed size")
    return row


def _check_keys_stay(table: EngineTable, update: Update) -> None:
    keys = table.schema.names
    for path in update.targets():
        if path.parts[0] in keys:
            raise ValidationFailed(
                f"One or more parameter values were invalid: Cannot update attribute "
                f"{path.parts[0]}. This attribute is part of the key"
            )


def _carry_out(plan: PlannedWrite, request: PutItem | DeleteItem | UpdateItem) -> Json:
    """Charge and commit the write. Returns the fields of the answer about its cost and size."""
    consumed = Consumed(request.return_consumed_capacity)
    plan.take(consumed)
    consumed.at(plan.table, plan.key)
    if plan.failure is not None:
        raise plan.failure
    plan.commit()
    if request.return_item_collection_metrics == "SIZE" and (size := plan.collection()):
        return {**consumed.one(), "ItemCollectionMetrics": size}
    return consumed.one()


def collections(plans: Iterable[PlannedWrite], level: str) -> Json:
    """Return the field `ItemCollectionMetrics` for the answer to a batch or a transaction."""
    found: dict[str, list[Json]] = {}
    for plan in plans if level == "SIZE" else ():
        if size := plan.collection():
            found.setdefault(plan.table.spec.name, []).append(size)
    return {"ItemCollectionMetrics": found} if found else {}


def put_item(database: Database, request: PutItem) -> Json:
    prepared = prepare_put(request, request.item)
    plan = prepared.plan(database.table(request.table_name))
    return _answer_with_old(plan, request)


def delete_item(database: Database, request: DeleteItem) -> Json:
    prepared = prepare_delete(request, request.key)
    plan = prepared.plan(database.table(request.table_name))
    return _answer_with_old(plan, request)


def _answer_with_old(plan: PlannedWrite, request: PutItem | DeleteItem) -> Json:
    cost = _carry_out(plan, request)
    if plan.old is None or request.return_values == "NONE":
        return cost
    return {"Attributes": plan.old.item, **cost}


def update_item(database: Database, request: UpdateItem) -> Json:
    prepared = prepare_update(request, request.key, request.update_expression)
    plan = prepared.plan(database.table(request.table_name))
    cost = _carry_out(plan, request)
    return {**_returned(request, prepared.given, plan), **cost}


def _returned(request: UpdateItem, given: Expressions, plan: PlannedWrite) -> Json:
    which = request.return_values
    if which == "NONE":
        return {}
    row = plan.old if which.endswith("OLD") else plan.new
    if row is None:
        return {}
    if which.startswith("ALL"):
        return {"Attributes": row.item}
    if given.update is None:
        return {}
    part = project(row.item, given.update.paths(given.scope))
    return {"Attributes": part} if part else {}
