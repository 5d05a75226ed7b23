"""Batches and transactions on declared tables, which may also name other tables.

Every item has one place, so each action stays one action, and the request stays one upstream call.
Only a delete from an append-only table takes two actions, since the item may be a stray under the
bare key.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

from heatsink.stores.dynamodb.wire.errors import ValidationFailed

from .items import bare, check_append_only
from .pages import total
from .places import ItemPlaces, Keys, Spot
from .protocol import Body, Need, Renew, Steps, UpstreamCall, WireError, checked, refusal
from .rewriting import check_expressions, for_place
from .spread_indexes import NOW, Moment
from .tagging import TOKENS_LIVE_MS, Tagged, values_in

ACTIONS = {"Put": "Item", "Update": "Key", "Delete": "Key", "ConditionCheck": "Key"}
Tables = Mapping[str, ItemPlaces]
Waits = Generator[list[Need], list[Any], Any]
REUSED = "IdempotentParameterMismatchException"


def batch_get(tables: Tables, parameters: Body) -> Steps:
    """Carry out BatchGetItem. `tables` are the declared tables, by their names in the request."""
    items = dict(parameters["RequestItems"])
    for name, places in tables.items():
        wanted = items[name]
        if not isinstance(wanted, dict) or not isinstance(wanted.get("Keys"), list):
            continue
        consistent = wanted.get("ConsistentRead") is True
        keys = [None] * len(wanted["Keys"])
        for number, key in enumerate(wanted["Keys"]):
            keys[number] = yield from _place_to_read(places, key, consistent)
        items[name] = {**places.with_keys(wanted), "Keys": keys}
    [answer] = yield [UpstreamCall("BatchGetItem", {**parameters, "RequestItems": items})]
    if isinstance(answer, WireError):
        raise _shown_error(answer, tables.values())
    found, left = dict(answer.get("Responses", {})), dict(answer.get("UnprocessedKeys", {}))
    for name, places in tables.items():
        if name in found:
            found[name] = [places.shown(item) for item in found[name]]
        if name in left:
            left[name] = {**left[name], "Keys": [places.shown(key) for key in left[name]["Keys"]]}
    answer = {**answer, "Responses": found, "UnprocessedKeys": left}
    return _with_costs(tables, answer)


def _place_to_read(places: ItemPlaces, key: Any, consistent: bool) -> Waits:
    keys = places.keys_of(key, exactly=True)
    if keys is None:
        return key  # DynamoDB refuses the request
    _check_one_place(places)
    spot = yield from places.to_read(keys, consistent=consistent)
    return places.parameters(key, spot)


def _check_one_place(places: ItemPlaces) -> None:
    if places.table.append_only:
        raise refusal(
            f"table {places.table.name} is declared append_only, so a row may be in two places: "
            "use GetItem in place of a batch or a transaction"
        )


def batch_write(tables: Tables, parameters: Body) -> Steps:
    """Carry out BatchWriteItem.

    In an append-only table, a deleted item may also be under the bare key. These deletes go
    upstream in a second batch.
    """
    items, strays = dict(parameters["RequestItems"]), dict[str, list[Body]]()
    for name, places in tables.items():
        if not isinstance(items[name], list):
            continue
        writes, others = [None] * len(items[name]), strays.setdefault(name, [])
        for number, one in enumerate(items[name]):
            writes[number] = yield from _placed_request(places, one, others)
        items[name] = writes
    needs: list[Need] = [UpstreamCall("BatchWriteItem", {**parameters, "RequestItems": items})]
    extra = {name: writes for name, writes in strays.items() if writes}
    if extra:
        needs.append(UpstreamCall("BatchWriteItem", {**parameters, "RequestItems": extra}))
    answers = yield needs
    for answer in answers:
        if isinstance(answer, WireError):
            raise _shown_error(answer, tables.values())
    return _shown_batch(tables, answers)


def _placed_request(places: ItemPlaces, one: Any, strays: list[Body]) -> Waits:
    for verb, target in (("PutRequest", "Item"), ("DeleteRequest", "Key")):
        given = one.get(verb) if isinstance(one, dict) and len(one) == 1 else None
        if not isinstance(given, dict):
            continue
        keys = places.keys_of(given.get(target), exactly=target == "Key")
        if keys is None:
            return one
        place = places.to_delete if target == "Key" else places.to_write
        spot = yield from place(keys)
        if target == "Key" and places.may_stray(keys, spot):
            key = places.parameters(given[target], bare(spot, keys))
            strays.append({verb: {target: key}})
        if places.indexes:
            given = Tagged(places, keys).request(target, given)
        return {verb: {**given, target: places.parameters(given[target], spot)}}
    return one


def _shown_batch(tables: Tables, answers: list[Body]) -> Body:
    shown = dict(answers[0])
    left: dict[str, list[Any]] = {}
    for answer in answers:
        for name, writes in answer.get("UnprocessedItems", {}).items():
            places = tables.get(name)
            for one in writes if places is None else [_shown_write(places, w) for w in writes]:
                if one not in left.setdefault(name, []):
                    left[name].append(one)
    shown["UnprocessedItems"] = left
    capacities: list[Any] = [answer.get("ConsumedCapacity") for answer in answers]
    if len(answers) > 1 and all(capacities):
        shown["ConsumedCapacity"] = [total([one for group in capacities for one in group])]
    return _with_metrics(tables, shown)


def _shown_write(places: ItemPlaces, one: Body) -> Body:
    [(verb, given)] = one.items()
    target = "Item" if verb == "PutRequest" else "Key"
    return {verb: {**given, target: places.shown(given[target])}}


def _with_costs(tables: Tables, answer: Body) -> Body:
    for places in tables.values():
        answer = places.shown_costs(answer)
    return answer


def _shown_error(error: WireError, among: Iterable[ItemPlaces]) -> WireError:
    for places in among:
        error = places.error(error)
    return error


def _with_metrics(tables: Tables, answer: Body) -> Body:
    answer = _with_costs(tables, answer)
    metrics = answer.get("ItemCollectionMetrics")
    if not metrics:
        return answer
    shown = dict(metrics)
    for name, places in tables.items():
        for table in (name, places.table.name):
            if table in shown:
                shown[table] = [
                    {**one, "ItemCollectionKey": places.shown(one["ItemCollectionKey"])}
                    for one in metrics[table]
                ]
    return {**answer, "ItemCollectionMetrics": shown}


def transact_write(tables: Tables, parameters: Body) -> Steps:
    """Carry out TransactWriteItems.

    A retry has the same token as the first request, and DynamoDB refuses a token with other
    content. If the number of a value's buckets in a spread index has changed in between, the
    retry's upstream request differs from the first one. So if DynamoDB refuses the token, the core
    also tries older forms of the upstream request: for each change while the token was valid, the
    form from before this change.
    """
    owners = [_owner(tables, action)[1] for action in parameters["TransactItems"]]
    sent: list[list[Any]] = []
    answer = yield from _transacted(tables, parameters, NOW, sent)
    refused = answer
    if _is_reuse(answer):
        checked((yield [Renew()]))
        for moment in _earlier(tables, parameters):
            answer = yield from _transacted(tables, parameters, moment, sent)
            if answer is not None and not _is_reuse(answer):
                refused = answer
                break
    if isinstance(refused, WireError):
        raise _shown_reasons(refused, owners)
    return _with_metrics(tables, refused)


def _is_reuse(answer: Any) -> bool:
    return isinstance(answer, WireError) and answer.code == REUSED


def _transacted(tables: Tables, parameters: Body, moment: Moment, sent: list[list[Any]]) -> Waits:
    """Send a transaction as it would have been sent at `moment`, and return the answer.

    `sent` are the requests that were already sent. Returns None if this one is among them.
    """
    given, actions = parameters["TransactItems"], list[Any]()
    for action in given:
        verb, places = _owner(tables, action)
        if places is None:
            actions.append(action)
            continue
        try:
            actions.append((yield from _placed_action(places, verb, action[verb], moment)))
        except ValidationFailed:
            for earlier in given[: len(actions)]:  # DynamoDB reports the first mistake
                for one in earlier.values() if isinstance(earlier, dict) else ():
                    check_expressions(one if isinstance(one, dict) else {})
            raise
    if actions in sent:
        return None
    sent.append(actions)
    [answer] = yield [UpstreamCall("TransactWriteItems", {**parameters, "TransactItems": actions})]
    return answer


def _earlier(tables: Tables, parameters: Body) -> Iterator[Moment]:
    """Yield the moments at which the first request with this token may have been made.

    The upstream request may differ from moment to moment: just before each change of buckets, and
    on each side of an index's step to shadow attributes.
    """
    times: set[int] = set()
    indexes: set[tuple[str, str]] = set()
    for action in parameters["TransactItems"]:
        verb, places = _owner(tables, action)
        for index in places.indexes.values() if places is not None else ():
            from_ms = index.horizon_ms - TOKENS_LIVE_MS
            indexes.add((index.table.name, index.name))
            for value in values_in(index, action[verb]):
                times.update(index.epochs_since(value, from_ms))
    for time_ms in [None, *(one - 1 for one in sorted(times, reverse=True))]:
        yield Moment(time_ms)
        for one in sorted(indexes):
            yield Moment(time_ms, frozenset([one]))


def _owner(tables: Tables, action: Any) -> tuple[str, ItemPlaces | None]:
    """Return the verb of an action (Put, Get, …), and its table if that is declared."""
    if isinstance(action, dict) and len(action) == 1:
        [(verb, given)] = action.items()
        if isinstance(given, dict) and isinstance(given.get("TableName"), str):
            return verb, tables.get(given["TableName"])
    return "", None


def _placed_action(places: ItemPlaces, verb: str, given: Body, moment: Moment) -> Waits:
    target = ACTIONS.get(verb)
    keys = places.keys_of(given.get(target), exactly=target == "Key") if target else None
    if keys is None or target is None:
        return {verb: given}  # DynamoDB refuses the request
    given = places.with_keys(given)
    if places.table.append_only:
        check_append_only(places.table.name, "UpdateItem", given)
    spot = yield from places.to_write(keys)
    changed = Tagged(places, keys, moment).request(target, given) if places.indexes else given
    changed = {**changed, target: places.parameters(changed[target], spot)}
    if spot.bucket is not None:
        changed = for_place(changed, places.table, keys.key)
    return {verb: changed}


def _shown_reasons(error: WireError, owners: list[ItemPlaces | None]) -> WireError:
    error = _shown_error(error, {id(one): one for one in owners if one is not None}.values())
    reasons = error.body.get("CancellationReasons")
    if not isinstance(reasons, list) or len(reasons) != len(owners):
        return error
    shown = []
    for reason, places in zip(reasons, owners, strict=True):
        item = reason.get("Item")
        if places is not None and isinstance(item, dict):
            reason = {**reason, "Item": places.shown(item)}  # noqa: PLW2901 (a copy)
        shown.append(reason)
    return WireError(error.status, {**error.body, "CancellationReasons": shown})


def transact_get(tables: Tables, parameters: Body) -> Steps:
    """Carry out TransactGetItems, as one upstream call.

    An item's time may be past the horizon. Then its bucket is not decided yet, and the call reads
    it under the bare key. Before DynamoDB carries out this call, a transaction may write that item
    into a bucket, and change a second item. The call would find the change of the second item only.
    So the core renews its view after the call. If an item has another place by then, the core reads
    all items again.
    """
    given = parameters["TransactItems"]
    owners = [_owner(tables, action)[1] for action in given]
    wanted = [_wanted(places, action) for action, places in zip(given, owners, strict=True)]
    spots = yield from _spots(wanted)
    while True:
        actions = [_looking_at(*one) for one in zip(given, wanted, spots, strict=True)]
        [answer] = yield [
            UpstreamCall("TransactGetItems", {**parameters, "TransactItems": actions})
        ]
        if isinstance(answer, WireError):
            raise _shown_reasons(answer, owners)
        placed = yield from _spots(wanted)
        if placed == spots:
            break
        spots = placed
    found = zip(answer.get("Responses", []), owners, strict=True)
    answer = {**answer, "Responses": [_shown_response(one, places) for one, places in found]}
    return _with_costs(tables, answer)


def _wanted(places: ItemPlaces | None, action: Body) -> tuple[ItemPlaces, Keys] | None:
    """Return the table and the keys of the item that an action reads.

    Returns None if the action can go upstream unchanged.
    """
    if places is None:
        return None
    [given] = action.values()
    keys = places.keys_of(given.get("Key"), exactly=True)
    if keys is not None:
        _check_one_place(places)
    return None if keys is None else (places, keys)


def _spots(
    wanted: list[tuple[ItemPlaces, Keys] | None],
) -> Generator[list[Need], list[Any], list[Spot | None]]:
    """Return the places of items that are read together, or None where `wanted` has no keys.

    If an item's time is past the horizon, renew the view first.
    """
    if any(one is not None and one[0].is_past(one[1]) for one in wanted):
        checked((yield [Renew()]))
    return [None if one is None else one[0].spot_to_read(one[1]) for one in wanted]


def _looking_at(action: Body, one: tuple[ItemPlaces, Keys] | None, spot: Spot | None) -> Body:
    if one is None or spot is None:
        return action
    [(verb, given)] = action.items()
    given = one[0].with_keys(given)
    return {verb: {**given, "Key": one[0].parameters(given["Key"], spot)}}


def _shown_response(one: Body, places: ItemPlaces | None) -> Body:
    if places is None or "Item" not in one:
        return one
    return {**one, "Item": places.shown(one["Item"])}
