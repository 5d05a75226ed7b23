"""PutItem, UpdateItem and DeleteItem, in two steps that transactions share: plan, then commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from heatsink.emulator.database import Consumed, Database, Json
from heatsink.emulator.requests import DeleteItem, Names, PutItem, UpdateItem, Values, Write
from heatsink.emulator.rows import Key, Row
from heatsink.emulator.table import EngineTable
from heatsink.emulator.units import write_units
from heatsink.stores.dynamodb.wire.errors import ConditionFailed, DoesNotFit, ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.operands import NO_SCOPE, Scope
from heatsink.stores.dynamodb.wire.expressions.parser import (
    Parsed,
    parse_condition,
    parse_projection,
    parse_update,
)
from heatsink.stores.dynamodb.wire.expressions.updates import Parts, Update, check_paths, project
from heatsink.stores.dynamodb.wire.values import Item, admit, admit_item

NAMES = "ExpressionAttributeNames"
VALUES = "ExpressionAttributeValues"
ITEM_BYTES_MAX = 400 * 1_024
CONDITION = "ConditionExpression"
Change = Callable[[Row | None], Row | None]


def scope_of(
    names: Names | None, values: Values | None, parsed: list[Parsed[Any]], missing: str
) -> Scope:
    """Return the placeholders of a request. Raises if they do not match its expressions.

    `missing` is the name of the expression that an error message asks for, if the request has
    values but no expression.
    """
    if names is None and values is None and not parsed:
        return NO_SCOPE
    if names is not None:
        _check_given(NAMES, names, parsed, "")
    if values is not None:
        _check_given(VALUES, values, parsed, f": {missing} is null" if missing else "")
        _admit_values(values)
    scope = Scope(names or {}, values or {})
    _check_defined(scope, parsed)
    _check_used(scope, parsed)
    return scope


def _check_given(field: str, given: Any, parsed: list[Parsed[Any]], missing: str) -> None:
    if not parsed:
        raise ValidationFailed(f"{field} can only be specified when using expressions{missing}")
    if not given:
        raise ValidationFailed(f"{field} must not be empty")


def _admit_values(values: Values) -> None:
    for name, value in values.items():
        try:
            admit(value)
        except ValidationFailed as error:
            raise ValidationFailed(
                f"{VALUES} contains invalid value: {error.message} for key {name}"
            ) from None


def _check_defined(scope: Scope, parsed: list[Parsed[Any]]) -> None:
    for one in parsed:
        for name in one.names - scope.names.keys():
            raise ValidationFailed(
                f"Invalid {one.field}: An expression attribute name used in the document path is "
                f"not defined; attribute name: {name}"
            )
        for name in one.values - scope.values.keys():
            raise ValidationFailed(
                f"Invalid {one.field}: An expression attribute value used in expression is not "
                f"defined; attribute value: {name}"
            )


def _check_used(scope: Scope, parsed: list[Parsed[Any]]) -> None:
    for field, given, used in (
        (NAMES, scope.names, {name for one in parsed for name in one.names}),
        (VALUES, scope.values, {name for one in parsed for name in one.values}),
    ):
        unused = [name for name in given if name not in used]
        if unused:
            raise ValidationFailed(
                f"Value provided in {field} unused in expressions: keys: {{{', '.join(unused)}}}"
            )


class Projection:
    """Selects the part of each item that goes into the answer.

    Without a projection expression, this is the whole item.
    """

    def __init__(self, parsed: Parsed[Any] | None, scope: Scope) -> None:
        self._paths: list[Parts] | None = None
        if parsed is not None:
            self._paths = [path.resolved(scope) for path in parsed.root]
            check_paths(self._paths)

    def of(self, item: Item) -> Item:
        return item if self._paths is None else project(item, self._paths)


def projection_of(expression: str | None, names: Names | None) -> Projection:
    """Return the projection of a request that has no other expression."""
    parsed = None if expression is None else parse_projection(expression)
    scope = scope_of(names, None, [] if parsed is None else [parsed], "")
    return Projection(parsed, scope)


class PlannedWrite(msgspec.Struct, frozen=True):
    """A valid write that is not committed yet, with the row before it and the row after it.

    `failure` is set if the condition of the write does not hold.
    """

    table: EngineTable
    key: Key
    old: Row | None
    new: Row | None
    failure: ConditionFailed | None

    def units(self, factor: int = 1) -> float:
        """Return the cost of the write, which depends on the larger of the old and the new item.

        If the condition failed, only the old item counts. `factor` is 2 in transactions.
        """
        old, new = self.old, None if self.failure else self.new
        return write_units(max(old.size if old else 0, new.size if new else 0), factor)

    def commit(self) -> None:
        self.table.write(self.key, self.new)


def plan_put(table: EngineTable, request: Write, item: Item) -> PlannedWrite:
    new = Row(item, admit_item(item))
    key = table.schema.key_of_item(item)
    if new.size > ITEM_BYTES_MAX:
        raise ValidationFailed("Item size has exceeded the maximum allowed size")
    return _plan(table, request, key, lambda _: new)


def plan_delete(table: EngineTable, request: Write, key: Item) -> PlannedWrite:
    return _plan(table, request, table.schema.key_of(key), lambda _: None)


def plan_check(table: EngineTable, request: Write, key: Item) -> PlannedWrite:
    return _plan(table, request, table.schema.key_of(key), lambda old: old)


def plan_update(
    table: EngineTable, request: Write, key: Item, expression: str | None
) -> PlannedWrite:
    wanted = table.schema.key_of(key)
    if expression is None:
        return _plan(table, request, wanted, lambda old: old or _sized(dict(key)))
    parsed = parse_update(expression)
    scope = _scope(request, parsed)
    parsed.root.check(scope)
    _check_keys_stay(table, parsed.root, scope)

    def change(old: Row | None) -> Row:
        return _sized(parsed.root.apply(dict(key) if old is None else old.item, scope))

    return _plan(table, request, wanted, change, scope)


def _sized(item: Item) -> Row:
    row = Row(item, admit_item(item))
    if row.size > ITEM_BYTES_MAX:
        raise DoesNotFit("Item size to update has exceeded the maximum allowed size")
    return row


def _check_keys_stay(table: EngineTable, update: Update, scope: Scope) -> None:
    for parts in update.paths(scope):
        if parts[0] in table.schema.names:
            raise ValidationFailed(
                f"One or more parameter values were invalid: Cannot update attribute {parts[0]}. "
                f"This attribute is part of the key"
            )


def _scope(request: Write, update: Parsed[Update] | None) -> Scope:
    expression = request.condition_expression
    parsed = [] if expression is None else [parse_condition(expression, CONDITION)]
    return scope_of(
        request.expression_attribute_names,
        request.expression_attribute_values,
        parsed if update is None else [*parsed, update],
        CONDITION,
    )


def _plan(
    table: EngineTable, request: Write, key: Key, change: Change, scope: Scope | None = None
) -> PlannedWrite:
    scope = scope or _scope(request, None)
    old = table.rows.get(key)
    if request.condition_expression is not None:
        condition = parse_condition(request.condition_expression, CONDITION).root
        condition.check(scope, CONDITION)
        if not condition.holds({} if old is None else old.item, scope):
            shown = old and request.return_values_on_condition_check_failure == "ALL_OLD"
            return PlannedWrite(
                table, key, old, old, ConditionFailed(old.item if old and shown else None)
            )
    return PlannedWrite(table, key, old, change(old), None)


def _carry_out(plan: PlannedWrite, request: PutItem | DeleteItem | UpdateItem) -> Json:
    """Charge and commit the write. Returns the field `ConsumedCapacity` for the answer."""
    consumed = Consumed(request.return_consumed_capacity)
    units = plan.units()
    plan.table.take("Write", plan.key, units)
    consumed.add(plan.table, "Write", units)
    consumed.at(plan.table, plan.key)
    if plan.failure is not None:
        raise plan.failure
    plan.commit()
    return consumed.one()


def put_item(database: Database, request: PutItem) -> Json:
    _only_old(request)
    plan = plan_put(database.table(request.table_name), request, request.item)
    return _answer_with_old(plan, request)


def delete_item(database: Database, request: DeleteItem) -> Json:
    _only_old(request)
    plan = plan_delete(database.table(request.table_name), request, request.key)
    return _answer_with_old(plan, request)


def _only_old(request: PutItem | DeleteItem) -> None:
    if request.return_values not in ("NONE", "ALL_OLD"):
        raise ValidationFailed("ReturnValues can only be ALL_OLD or NONE")


def _answer_with_old(plan: PlannedWrite, request: PutItem | DeleteItem) -> Json:
    cost = _carry_out(plan, request)
    if plan.old is None or request.return_values == "NONE":
        return cost
    return {"Attributes": plan.old.item, **cost}


def update_item(database: Database, request: UpdateItem) -> Json:
    table = database.table(request.table_name)
    plan = plan_update(table, request, request.key, request.update_expression)
    cost = _carry_out(plan, request)
    return {**_returned(request, plan), **cost}


def _returned(request: UpdateItem, plan: PlannedWrite) -> Json:
    which = request.return_values
    if which == "NONE":
        return {}
    row = plan.old if which.endswith("OLD") else plan.new
    if row is None:
        return {}
    if which.startswith("ALL"):
        return {"Attributes": row.item}
    if request.update_expression is None:
        return {}
    names = request.expression_attribute_names or {}
    touched = parse_update(request.update_expression).root.paths(Scope(names))
    part = project(row.item, touched)
    return {"Attributes": part} if part else {}
