"""Writes that keep the shadow attributes of spread indexes in step with the indexed attributes.

If a request contains the new value of the indexed attribute, or removes the attribute, the same
request also sets or removes the shadow attribute. This needs no read. If the value has a wrong
type, such as a number, the shadow gets the same value, and DynamoDB refuses the request.

DynamoDB computes some values from other attributes, so these values are not in the request. Before
an update with such a value, the core reads the item (`computed.py`). The core refuses a transaction
with such a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from heatsink.stores.dynamodb.wire.errors import EngineError
from heatsink.stores.dynamodb.wire.expressions.operands import (
    IfNotExists,
    ListAppend,
    Operand,
    Path,
    Placeholder,
    Sum,
)
from heatsink.stores.dynamodb.wire.expressions.parser import parse_update
from heatsink.stores.dynamodb.wire.expressions.reading import read_expressions
from heatsink.stores.dynamodb.wire.expressions.updates import Update

from .places import ItemPlaces, Keys
from .protocol import Body, WireError, refusal
from .rewriting import CONDITION, NAMES, UPDATE, VALUES, is_formed, mentions, update_text
from .spread_indexes import NOW, Moment, SpreadIndex, check_no_shadow

TOKENS_LIVE_MS = 660_000  # DynamoDB knows a ClientRequestToken for 10 minutes


NONE_COMPUTED: Mapping[str, Any] = {}


class Computed(WireError):
    """An update sets the key of a spread index to a value that DynamoDB computes.

    So the core does not know the shadow attribute. For a single update it reads the item first. For
    a transaction, the application gets this error.
    """

    def __init__(self, index: SpreadIndex) -> None:
        name = index.attribute
        error = refusal(
            f"{name} is set to a value that DynamoDB computes, but it is the key of the spread "
            f"index {index.name}, and a transaction cannot read it: read the item, and set {name} "
            "to a given value, on condition that the item has not changed"
        )
        super().__init__(error.status, error.body)


class Tagged(NamedTuple):
    """An item that a request writes, as of the moment that decides its shadow attributes."""

    places: ItemPlaces
    keys: Keys
    moment: Moment = NOW
    computed: Mapping[str, Any] = NONE_COMPUTED
    """The values of attributes that were computed from the item, by index; None: no value."""

    def request(self, target: str, parameters: Body) -> Body:
        """Return the parameters of a put, update, delete or check with shadow attributes added."""
        check_no_shadow(parameters.get("Item"))
        changed = parameters
        for index in self.places.indexes.values():
            if not index.tags_at(self.moment):
                continue
            if target == "Item":
                changed = {**changed, "Item": self._item(index, changed["Item"])}
            elif isinstance(changed.get("AttributeUpdates"), dict):
                changed = self._legacy(index, changed)
            elif isinstance(changed.get(UPDATE), str):
                changed = self._update(index, changed)
        return changed

    def _item(self, index: SpreadIndex, item: Body) -> Body:
        if index.attribute not in item:
            return item
        return {**item, index.shadow: self._shadow(index, item[index.attribute])}

    def _shadow(self, index: SpreadIndex, value: Any) -> Any:
        return index.shadow_value(value, self.keys.key, self.keys.sort, self.moment.at_ms)

    def _legacy(self, index: SpreadIndex, parameters: Body) -> Body:
        updates = parameters["AttributeUpdates"]
        given = updates.get(index.attribute)
        if not isinstance(given, dict):
            return parameters
        if given.get("Value") is not None:
            given = {**given, "Value": self._shadow(index, given["Value"])}
        return {**parameters, "AttributeUpdates": {**updates, index.shadow: given}}

    def _update(self, index: SpreadIndex, parameters: Body) -> Body:
        names, values = parameters.get(NAMES) or {}, parameters.get(VALUES) or {}
        text = parameters[UPDATE]
        if not mentions(index.attribute, names, text) or not is_formed(parameters):
            return parameters
        texts = {UPDATE: text, CONDITION: parameters.get(CONDITION)}
        read_expressions(parameters.get(NAMES), parameters.get(VALUES), texts)
        return _Following(self, index, names, values).changed(parameters, parse_update(text).root)


class _Following:
    """Extends an update: what it does to an attribute, it also does to the shadow attribute."""

    def __init__(
        self, written: Tagged, index: SpreadIndex, names: dict[str, str], values: Body
    ) -> None:
        self._written = written
        self._index = index
        self._names = dict(names)
        self._values = dict(values)
        alias = "#hs"
        while alias in self._names:
            alias += "_"
        self._alias = alias

    def changed(self, parameters: Body, update: Update) -> Body:
        shadow = Path((self._alias,))
        sets = [(shadow, self._assigned(op)) for path, op in update.sets if self._is_ours(path)]
        removes = [shadow for path in update.removes if self._is_ours(path)]
        adds = [(shadow, one) for path, one in update.adds if self._is_ours(path)]
        if not sets and not removes and not adds:
            return parameters
        self._names[self._alias] = self._index.shadow
        longer = Update(
            (*update.sets, *sets),
            (*update.removes, *removes),
            (*update.adds, *adds),
            update.deletes,
        )
        text = update_text(longer, self._names, self._values)
        given = {**parameters, UPDATE: text, NAMES: self._names}
        return {**given, VALUES: self._values} if self._values else given

    def _name(self, path: Path) -> str:
        """Return the attribute of a path; empty if the path reaches into one."""
        first = path.parts[0]
        return str(self._names.get(str(first), first)) if len(path.parts) == 1 else ""

    def _is_ours(self, path: Path) -> bool:
        return self._name(path) == self._index.attribute

    def _assigned(self, operand: Operand) -> Operand:
        """Return what the update must assign to the shadow attribute.

        `operand` is what it assigns to the attribute itself.
        """
        if isinstance(operand, Placeholder):
            return self._given(self._values[operand.name])
        if isinstance(operand, Sum | ListAppend):
            return operand  # never text: DynamoDB refuses it
        table, keys = self._written.places.table, self._written.keys
        path = operand.path if isinstance(operand, IfNotExists) else operand
        name = self._name(path) if isinstance(path, Path) else ""
        if name == table.partition_key:
            return self._given({"S": keys.key})
        if name == table.sort_key and isinstance(keys.sort, str):
            return self._given({"S": keys.sort})
        if name == self._index.attribute and self._index.is_filled:
            if isinstance(operand, IfNotExists):
                return IfNotExists(Path((self._alias,)), self._assigned(operand.otherwise))
            return Path((self._alias,))
        if self._index.name not in self._written.computed:
            raise Computed(self._index)
        value = self._written.computed[self._index.name]
        return operand if value is None else self._given(value)

    def _given(self, value: Any) -> Placeholder:
        name = ":hs"
        while name in self._values:
            name += "_"
        self._values[name] = self._written._shadow(self._index, value)
        return Placeholder(name)


def values_in(index: SpreadIndex, given: Body) -> Iterable[str]:
    """Yield the values that a request writes to an index's attribute, without computed values."""
    item = given.get("Item")
    if isinstance(item, dict):
        found = [item.get(index.attribute)]
    elif isinstance(given.get("AttributeUpdates"), dict):
        one = given["AttributeUpdates"].get(index.attribute)
        found = [one.get("Value")] if isinstance(one, dict) else []
    elif isinstance(given.get(UPDATE), str) and isinstance(given.get(VALUES), dict):
        if not mentions(index.attribute, given.get(NAMES), given[UPDATE]):
            return
        found = _assigned_in(index.attribute, given)
    else:
        return
    for value in found:
        text = value.get("S") if isinstance(value, dict) else None
        if isinstance(text, str) and text:
            yield text


def _assigned_in(attribute: str, given: Body) -> list[Any]:
    """Return the values to which an update expression sets an attribute."""
    given_names = given.get(NAMES)
    names = given_names if isinstance(given_names, dict) else {}
    try:
        update = parse_update(given[UPDATE]).root
    except EngineError:
        return []
    found = []
    for path, operand in update.sets:
        last = operand.otherwise if isinstance(operand, IfNotExists) else operand
        if names.get(path.parts[0], path.parts[0]) == attribute and isinstance(last, Placeholder):
            found.append(given[VALUES].get(last.name))
    return found
