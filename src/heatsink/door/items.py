"""GetItem, PutItem, UpdateItem and DeleteItem on an item of a declared table.

Each operation is one upstream call on the item's place. The exception is an append-only table,
where a row may be a stray under the bare key: there, a get or a delete may take two calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .places import ItemPlaces, Keys, Spot
from .protocol import Body, Steps, UpstreamCall, WireError, refusal
from .rewriting import for_place
from .tagging import NONE_COMPUTED, Tagged, values_in

TARGETS = {"PutItem": "Item", "UpdateItem": "Key", "DeleteItem": "Key"}
NOT_APPENDED = ("ConditionExpression", "Expected", "UpdateExpression", "AttributeUpdates")


def get_item(places: ItemPlaces, parameters: Body, keys: Keys) -> Steps:
    consistent = parameters.get("ConsistentRead") is True
    spot = yield from places.to_read(keys, consistent=consistent)
    answer = yield from _read(places, parameters, spot)
    if "Item" not in answer and places.may_stray(keys, spot):
        return (yield from _read(places, parameters, bare(spot, keys)))
    return answer


def _read(places: ItemPlaces, parameters: Body, spot: Spot) -> Steps:
    changed = {**parameters, "Key": places.parameters(parameters["Key"], spot)}
    [answer] = yield [places.call("GetItem", changed, spot)]
    return shown_answer(answer, places)


def write_item(places: ItemPlaces, operation: str, parameters: Body, keys: Keys) -> Steps:
    target = TARGETS[operation]
    spot = yield from (
        places.to_delete(keys) if operation == "DeleteItem" else places.to_write(keys)
    )
    spots = [spot]
    if operation == "DeleteItem" and places.may_stray(keys, spot):
        spots.append(bare(spot, keys))
    where = [(target, keys, one) for one in spots]
    answers = yield [placed_write(places, operation, parameters, one) for one in where]
    shown = [shown_answer(answer, places) for answer in answers]
    return shown[0]


def placed_write(
    places: ItemPlaces,
    operation: str,
    parameters: Body,
    where: tuple[str, Keys, Spot],
    computed: Mapping[str, Any] = NONE_COMPUTED,
) -> UpstreamCall:
    """Return the call that carries out a write of an item at its place.

    `where` is (field of the key, the item's keys, the place); the field is "Item" or "Key". If
    DynamoDB computes the key of a spread index in this update, `computed` has its value, by index
    name. Raises `Computed` if such a value is missing.
    """
    target, keys, spot = where
    changed = parameters
    if places.indexes:
        changed = Tagged(places, keys, computed=computed).request(target, parameters)
    changed = {**changed, target: places.parameters(changed[target], spot)}
    if spot.bucket is not None:
        changed = for_place(changed, places.table, keys.key)
    indexes = places.indexes.values()
    values = (index.label(one) for index in indexes for one in values_in(index, parameters))
    return places.call(operation, changed, spot)._replace(values=tuple(filter(None, values)))


def bare(spot: Spot, keys: Keys) -> Spot:
    return Spot(spot.label, None, keys.key)


def check_append_only(table: str, operation: str, parameters: Body) -> None:
    """Raise if a write to an append-only table needs the stored item, for example for a condition.

    The item may be in two places: under the bare key or in a bucket.
    """
    given = [name for name in NOT_APPENDED if parameters.get(name)]
    if parameters.get("ReturnValues") not in (None, "NONE"):
        given.append("ReturnValues")
    if operation == "UpdateItem":
        given.insert(0, "UpdateItem")
    if given:
        raise refusal(
            f"table {table} is declared append_only, so a write cannot have {given[0]}: complete "
            "the table's adoption and declare it without append_only"
        )


def shown_answer(answer: Any, places: ItemPlaces) -> Body:
    """Return the answer to a call on one item, with the application's keys.

    Raise it if it is an error.
    """
    if isinstance(answer, WireError):
        raise places.error(answer)
    for field in ("Item", "Attributes"):
        if answer.get(field):
            shown = places.shown(answer[field])
            answer = {**answer, field: shown}
            if not shown:
                del answer[field]  # an update that has changed nothing else
    metrics = answer.get("ItemCollectionMetrics")
    if metrics and "ItemCollectionKey" in metrics:
        key = places.shown(metrics["ItemCollectionKey"])
        answer = {**answer, "ItemCollectionMetrics": {**metrics, "ItemCollectionKey": key}}
    return dict(places.shown_costs(answer))
