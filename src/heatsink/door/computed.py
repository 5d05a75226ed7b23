"""Updates that set an indexed attribute to a value which DynamoDB computes: `SET #s = wanted`.

The core must set the shadow attribute of a spread index to the same value, so it has to know the
value. It reads the item and computes the value from the item's attributes. Then it sends the update
on condition that these attributes have not changed. If they have changed, the update fails, and the
core starts again.
"""

from __future__ import annotations

from typing import Any

from heatsink.errors import Unavailable
from heatsink.stores.dynamodb.wire.errors import DoesNotFit
from heatsink.stores.dynamodb.wire.expressions.reading import mentioned, read_expressions

from .drivers import of_heatsink
from .items import placed_write, shown_answer
from .places import ItemPlaces, Keys, Spot
from .protocol import Body, Steps, UpstreamCall, WireError, checked
from .rewriting import CONDITION, NAMES, UPDATE, VALUES
from .tagging import Computed

TRIES = 5
FAILED = "ConditionalCheckFailedException"
ON_FAILURE = "ReturnValuesOnConditionCheckFailure"


def computing(places: ItemPlaces, parameters: Body, keys: Keys, write: Steps) -> Steps:
    """Carry out `write`, the steps of a write to the item with these `keys`.

    An update may set the key of a spread index to a value that DynamoDB computes, such as `n + 1`.
    The shadow attribute depends on this value. In this case the item is read first, and the value
    is computed here.
    """
    try:
        return (yield from write)
    except Computed:  # before anything was sent
        spot = yield from places.to_write(keys)
        return (yield from _update(places, parameters, keys, spot))


def _update(places: ItemPlaces, parameters: Body, keys: Keys, spot: Spot) -> Steps:
    """Carry out an update that sets keys of spread indexes to computed values."""
    texts = {UPDATE: parameters[UPDATE], CONDITION: parameters.get(CONDITION)}
    given = read_expressions(parameters.get(NAMES), parameters.get(VALUES), texts)
    assert given.update is not None
    own = {index.attribute: index.name for index in places.indexes.values()}
    sets = {
        own[str(path.parts[0])]: operand
        for path, operand in given.update.sets
        if path.parts[0] in own and len(path.parts) == 1
    }
    table = places.table
    used = {name for operand in sets.values() for name in mentioned(operand, given.scope)}
    used -= {table.partition_key, table.sort_key}
    key = places.parameters(parameters["Key"], spot)
    reading = {"TableName": parameters["TableName"], "Key": key, "ConsistentRead": True}
    for _ in range(TRIES):
        [answer] = checked((yield [UpstreamCall("GetItem", reading, spot.label, spot.bucket)]))
        item = answer.get("Item", {})
        known = {**item, **parameters["Key"]}
        computed = {}
        for name, operand in sets.items():
            try:
                computed[name] = operand.value(known, given.scope)
            except DoesNotFit:
                computed[name] = None
        request = _only_if_unchanged(parameters, {name: item.get(name) for name in used})
        call = placed_write(places, "UpdateItem", request, ("Key", keys, spot), computed)
        [answer] = yield [call]
        if not isinstance(answer, WireError) or answer.code != FAILED:
            return shown_answer(answer, places)
        found = answer.body.get("Item", {})
        if all(found.get(name) == item.get(name) for name in used):
            if parameters.get(ON_FAILURE) != "ALL_OLD":
                body = {name: one for name, one in answer.body.items() if name != "Item"}
                answer = WireError(answer.status, body)
            return shown_answer(answer, places)  # the application's own condition does not hold
    raise of_heatsink(
        Unavailable(f"an item of table {table.name} changes too often to be updated: retry")
    )


def _only_if_unchanged(parameters: Body, read: dict[str, Any]) -> Body:
    """Return the update with a condition: it fails if an attribute in `read` has changed."""
    names, values = dict(parameters.get(NAMES) or {}), dict(parameters.get(VALUES) or {})
    tests = [] if parameters.get(CONDITION) is None else [f"({parameters[CONDITION]})"]
    for number, (name, value) in enumerate(sorted(read.items())):
        alias = f"hs_read{number}"
        while f"#{alias}" in names or f":{alias}" in values:
            alias += "_"
        names[f"#{alias}"] = name
        if value is None:
            tests.append(f"attribute_not_exists(#{alias})")
        else:
            values[f":{alias}"] = value
            tests.append(f"#{alias} = :{alias}")
    changed = {**parameters, ON_FAILURE: "ALL_OLD"}
    if tests:
        changed[CONDITION] = " AND ".join(tests)
    return {
        **changed,
        **({NAMES: names} if names else {}),
        **({VALUES: values} if values else {}),
    }
