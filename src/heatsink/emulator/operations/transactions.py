"""TransactWriteItems and TransactGetItems: all or nothing, at twice the price.

The emulator runs one request at a time. So transactions never conflict, and no transaction is
canceled with the reason `TransactionConflict`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import chain
from typing import Any

import msgspec

from heatsink.emulator.capacity.limits import CapacityVerdict
from heatsink.emulator.database import Consumed, Database, Json, only_one
from heatsink.emulator.rows import token_of
from heatsink.emulator.table import EngineTable
from heatsink.emulator.units import TRANSACTION_FACTOR, Charge, Operation, read_units
from heatsink.stores.dynamodb.wire.errors import (
    NO_REASON,
    EngineError,
    ServiceRefused,
    Throttled,
    TransactionCanceled,
    ValidationFailed,
    cancellation_reason,
)
from heatsink.stores.dynamodb.wire.expressions.reading import Projection, projection_of
from heatsink.stores.dynamodb.wire.keys import Key
from heatsink.stores.dynamodb.wire.requests import (
    TransactGet,
    TransactGetItems,
    TransactWriteItem,
    TransactWriteItems,
)
from heatsink.stores.dynamodb.wire.values import admit_item

from .writes import (
    PlannedWrite,
    PreparedWrite,
    collections,
    prepare_check,
    prepare_delete,
    prepare_put,
    prepare_update,
)

BYTES_MAX = 4 * 1_024 * 1_024
SAME_ITEM = "Transaction request cannot include multiple operations on one item"
Cost = tuple[EngineTable, Key, float]


def transact_write_items(database: Database, request: TransactWriteItems) -> Json:
    token = request.client_request_token
    digest = _digest(request)
    if token is not None and _is_repeated(database, token, digest):
        return _replayed(database, request)
    plans = _plans(database, request.transact_items)
    if sum(plan.new.size for plan in plans if plan.new) > BYTES_MAX:
        raise ValidationFailed("Transaction request exceeds the maximum allowed size of 4 MB")
    _take_all("Write", [plan.charges(TRANSACTION_FACTOR) for plan in plans])
    failures = [plan.failure for plan in plans]
    if any(failures):
        raise _canceled(failures)
    with database.together(token, digest):
        for plan in plans:
            if plan.new is not plan.old:
                plan.commit()
    if token is not None:
        database.tokens.remember(token, digest)
    consumed = Consumed(request.return_consumed_capacity)
    for plan in plans:
        plan.count(consumed, plan.units(TRANSACTION_FACTOR), TRANSACTION_FACTOR)
    sizes = collections(plans, request.return_item_collection_metrics)
    return {**sizes, **_shown(consumed, [(plan.table, plan.key) for plan in plans])}


def _digest(request: TransactWriteItems) -> bytes:
    encoded = msgspec.json.encode(request.transact_items, order="deterministic")
    return blake2b(encoded, digest_size=16).digest()


def _is_repeated(database: Database, token: str, digest: bytes) -> bool:
    known = database.tokens.fingerprint(token)
    if known is not None and known != digest:
        raise ServiceRefused(
            "IdempotentParameterMismatchException",
            "Another request with the same token but different parameters was already processed",
        )
    return known is not None


def _replayed(database: Database, request: TransactWriteItems) -> Json:
    """Answer a transaction whose client request token was already used.

    The transaction changes nothing and costs as much as a read of its items.
    """
    charges = []
    for action in request.transact_items:
        table, key = _target(database, action)
        row = table.rows.get(key)
        units = read_units(row.size if row else 0, True, TRANSACTION_FACTOR)
        charges.append((table, key, units))
    _take_all("Read", [[_charge(one)] for one in charges])
    return _costs(charges, request.return_consumed_capacity)


def _target(database: Database, action: TransactWriteItem) -> tuple[EngineTable, Key]:
    if action.put is not None:
        table = database.table(action.put.table_name)
        admit_item(action.put.item)
        return table, table.schema.key_of_item(action.put.item)
    request = _request_of(action)
    table = database.table(request.table_name)
    return table, table.schema.key_of(request.key)


def _plans(database: Database, actions: list[TransactWriteItem]) -> list[PlannedWrite]:
    plans: list[PlannedWrite] = []
    errors: list[EngineError | None] = []
    prepared = [(_request_of(action).table_name, _prepared(action)) for action in actions]
    for name, write in prepared:
        try:
            plans.append(write.plan(database.table(name)))
            errors.append(None)
        except ValidationFailed as error:
            errors.append(error)
    targets = [(plan.table.spec.name, plan.key) for plan in plans]
    if any(errors):
        targets = list(_targets(database, actions))
    if len(set(targets)) != len(targets):
        raise ValidationFailed(SAME_ITEM)
    if any(errors):
        raise _canceled(errors)
    return plans


def _targets(database: Database, actions: list[TransactWriteItem]) -> Iterator[tuple[str, Key]]:
    """Yield the items of all actions whose keys are right."""
    for action in actions:
        with suppress(ValidationFailed):
            table, key = _target(database, action)
            yield table.spec.name, key


def _request_of(action: TransactWriteItem) -> Any:
    kinds = (action.put, action.update, action.delete, action.condition_check)
    if not only_one(kinds):
        raise ValidationFailed("TransactItems can only contain one of Check, Put, Update or Delete")
    return next(kind for kind in kinds if kind is not None)


def _prepared(action: TransactWriteItem) -> PreparedWrite:
    if action.put is not None:
        return prepare_put(action.put, action.put.item)
    if action.condition_check is not None:
        return prepare_check(action.condition_check, action.condition_check.key)
    if action.update is not None:
        update = action.update
        return prepare_update(update, update.key, update.update_expression)
    assert action.delete is not None
    return prepare_delete(action.delete, action.delete.key)


def _take_all(operation: Operation, actions: list[list[Charge]]) -> None:
    """Take the units of all actions of a transaction. If any is throttled, take none and raise.

    Each action is judged as if it were the only one, so all together may exceed a limit.
    """
    judged = [
        [(one, one.throughput.judge(operation, one.token, one.units)) for one in charges]
        for charges in actions
    ]
    for one, verdict in chain.from_iterable(judged):
        one.throughput.record(operation, one.token, one.units, verdict)
    if all(verdict.accepted for _, verdict in chain.from_iterable(judged)):
        return
    for one, verdict in chain.from_iterable(judged):
        if verdict.accepted:
            one.throughput.give_back(operation, one.token, one.units, verdict)
    raise _canceled([_first_refusal(operation, verdicts) for verdicts in judged])


def _first_refusal(
    operation: Operation, judged: list[tuple[Charge, CapacityVerdict]]
) -> Throttled | None:
    for one, verdict in judged:
        if not verdict.accepted:
            return one.throughput.refusal(operation, verdict)
    return None


def _canceled(errors: list[Any]) -> TransactionCanceled:
    return TransactionCanceled(
        [NO_REASON if error is None else cancellation_reason(error) for error in errors]
    )


def _charge(cost: Cost) -> Charge:
    table, key, units = cost
    return Charge(table.throughput, token_of(key.hash), units)


def _costs(costs: list[Cost], level: str) -> Json:
    consumed = Consumed(level)
    for table, _, units in costs:
        consumed.add(table, "Read", units)
    return _shown(consumed, [(table, key) for table, key, _ in costs])


def _shown(consumed: Consumed, keys: list[tuple[EngineTable, Key]]) -> Json:
    places = {(table.spec.name, table.partition_of(key)) for table, key in keys}
    if len(places) == 1:
        consumed.at(*keys[0])
    return consumed.many(split=True)


def transact_get_items(database: Database, request: TransactGetItems) -> Json:
    charges: list[Cost] = []
    responses: list[Json] = []
    wanted = [(one.get, _projection(one.get)) for one in request.transact_items]
    places = [(get, database.table(get.table_name), projection) for get, projection in wanted]
    for _, table, projection in places:
        table.check_scalars(projection.nested)
    keys = _keys([(get, table) for get, table, _ in places])
    for (_, table, projection), key in zip(places, keys, strict=True):
        row = table.rows.get(key)
        charges.append((table, key, read_units(row.size if row else 0, True, TRANSACTION_FACTOR)))
        responses.append({} if row is None else {"Item": projection.of(row.item)})
    _take_all("Read", [[_charge(one)] for one in charges])
    return {"Responses": responses, **_costs(charges, request.return_consumed_capacity)}


def _keys(wanted: list[tuple[TransactGet, EngineTable]]) -> list[Key]:
    """Return the keys of all actions. A key that does not fit its table cancels the transaction."""
    keys: list[Key] = []
    errors: list[ValidationFailed | None] = []
    for get, table in wanted:
        try:
            keys.append(table.schema.key_of(get.key))
            errors.append(None)
        except ValidationFailed as error:
            errors.append(error)
    if any(errors):
        raise _canceled(errors)
    places = [(table.spec.name, key) for (_, table), key in zip(wanted, keys, strict=True)]
    if len(set(places)) != len(places):
        raise ValidationFailed(SAME_ITEM)
    return keys


def _projection(wanted: TransactGet) -> Projection:
    admit_item(wanted.key)
    return projection_of(wanted.projection_expression, wanted.expression_attribute_names)
