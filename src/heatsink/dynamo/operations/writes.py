"""PutItem, UpdateItem and DeleteItem, in two steps that transactions use too: plan, then commit."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from heatsink.dynamo.capacity import write_units
from heatsink.dynamo.database import Consumed, Database, Json
from heatsink.dynamo.errors import ConditionFailed, DoesNotFit, ValidationFailed
from heatsink.dynamo.expressions.operands import Scope
from heatsink.dynamo.expressions.parser import Parsed, parse_condition, parse_update
from heatsink.dynamo.expressions.projection import project
from heatsink.dynamo.expressions.updates import Update
from heatsink.dynamo.requests import DeleteItem, PutItem, UpdateItem, Write
from heatsink.dynamo.rows.items import Key, Row
from heatsink.dynamo.table import Table
from heatsink.dynamo.values import Item, admit_item

from .scopes import scope_of

ITEM_BYTES_MAX = 400 * 1_024
CONDITION = "ConditionExpression"
Change = Callable[[Row | None], Row | None]


class Plan(msgspec.Struct, frozen=True):
    """A write that is known to be well formed, and what it finds and leaves behind."""

    table: Table
    key: Key
    old: Row | None
    new: Row | None
    failure: ConditionFailed | None

    def units(self, factor: int = 1) -> float:
        """A write costs by the larger item; one whose condition failed by the one it found."""
        old, new = self.old, None if self.failure else self.new
        return write_units(max(old.size if old else 0, new.size if new else 0), factor)

    def commit(self) -> None:
        self.table.write(self.key, self.new)


def plan_put(table: Table, request: Write, item: Item) -> Plan:
    new = Row(item, admit_item(item))
    key = table.schema.key_of_item(item)
    if new.size > ITEM_BYTES_MAX:
        raise ValidationFailed("Item size has exceeded the maximum allowed size")
    return _plan(table, request, key, lambda _: new)


def plan_delete(table: Table, request: Write, key: Item) -> Plan:
    return _plan(table, request, table.schema.key_of(key), lambda _: None)


def plan_check(table: Table, request: Write, key: Item) -> Plan:
    return _plan(table, request, table.schema.key_of(key), lambda old: old)


def plan_update(table: Table, request: Write, key: Item, expression: str | None) -> Plan:
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


def _check_keys_stay(table: Table, update: Update, scope: Scope) -> None:
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
    table: Table, request: Write, key: Key, change: Change, scope: Scope | None = None
) -> Plan:
    scope = scope or _scope(request, None)
    old = table.rows.get(key)
    if request.condition_expression is not None:
        condition = parse_condition(request.condition_expression, CONDITION).root
        condition.check(scope, CONDITION)
        if not condition.holds({} if old is None else old.item, scope):
            shown = old and request.return_values_on_condition_check_failure == "ALL_OLD"
            return Plan(table, key, old, old, ConditionFailed(old.item if old and shown else None))
    return Plan(table, key, old, change(old), None)


def _carry_out(plan: Plan, request: PutItem | DeleteItem | UpdateItem) -> Json:
    """What of the answer tells the cost."""
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


def _answer_with_old(plan: Plan, request: PutItem | DeleteItem) -> Json:
    cost = _carry_out(plan, request)
    if plan.old is None or request.return_values == "NONE":
        return cost
    return {"Attributes": plan.old.item, **cost}


def update_item(database: Database, request: UpdateItem) -> Json:
    table = database.table(request.table_name)
    plan = plan_update(table, request, request.key, request.update_expression)
    cost = _carry_out(plan, request)
    return {**_returned(request, plan), **cost}


def _returned(request: UpdateItem, plan: Plan) -> Json:
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
