"""A global index that is spread: its shadow attribute, its buckets, and what applications see.

The shadow attribute of an item holds the item's value of the index and a bucket, as the partition
key of a spread item does. A new index on the shadow attribute takes the place of the application's
index. The newest known epoch below the closed time gives the number of buckets, and a hash of the
item's keys picks one of them. So, unlike an item of the table, an entry of the index has no fixed
place, and a query asks every bucket that may hold entries.

Applications never see the shadow attribute, nor the name of the new index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from heatsink.errors import InvalidKey
from heatsink.primitives.keys import check_key
from heatsink.registry.decisions import View
from heatsink.registry.spread_indexes import (
    READING,
    TAGGING,
    WITHOUT_OLD,
    SpreadNote,
    notes_on,
    swept_on,
    value_subject,
)
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.values import Native

from .declaration import Index, SpreadTable
from .keys import TAG, TAGGED, hashed_bytes, physical
from .protocol import Body, WireError, refusal

NAMES = "ExpressionAttributeNames"
EXPRESSIONS = (
    *("UpdateExpression", "ConditionExpression", "ProjectionExpression"),
    *("FilterExpression", "KeyConditionExpression"),
)
ALIAS = "#heatsink"
RESERVED = "heatsink:"
"""Begins the names of shadow attributes."""
OPAQUE = "heatsink"
"""The attribute of a page token that says where the buckets continue."""
SUFFIX = ".heatsink"
VALUE_BYTES_MAX = 2_048 - 9  # of a partition key in DynamoDB, less a bucket's name
LABELS_KEPT = 16_384


class Moment(NamedTuple):
    """The moment as of which a request writes shadow attributes.

    `at_ms` picks the epochs; None picks the newest final epochs. `toggled` has (table, index)
    pairs. If one of these indexes uses shadow attributes now, it is treated as if it did not, and
    the other way round.
    """

    at_ms: int | None = None
    toggled: frozenset[tuple[str, str]] = frozenset()


NOW = Moment()


class SpreadIndex:
    """One spread index of a table, at one step of its migration."""

    def __init__(
        self,
        table: SpreadTable,
        name: str,
        note: SpreadNote,
        view: View,
        hash_: Callable[[bytes], int],
    ) -> None:
        self.table = table
        self.name = name
        self.note = note
        self.attribute = note.attribute
        self.shadow, self.stored_name = shadow_of(name), name + SUFFIX
        self.index = Index(
            name,
            (note.attribute,),
            tuple(note.sort_keys),
            True,
            _projected(table, note),
            note.kinds,
        )
        self._view = view
        self._hash = hash_
        self._word = re.compile(rf"(?<![\w#:.]){re.escape(self.attribute)}(?!\w)")
        self.label = lru_cache(LABELS_KEPT)(self._label)

    @property
    def tags(self) -> bool:
        return self.note.step in TAGGING

    @property
    def reads_new(self) -> bool:
        return self.note.step in READING

    @property
    def has_old(self) -> bool:
        return self.note.step not in WITHOUT_OLD

    @property
    def is_filled(self) -> bool:
        """Whether every item with the attribute has the shadow attribute, too."""
        return self.note.step != "tagging"

    def tags_at(self, moment: Moment) -> bool:
        """Return whether a request as of this moment writes the index's shadow attribute."""
        return self.tags != ((self.table.name, self.name) in moment.toggled)

    @property
    def horizon_ms(self) -> int:
        return self._view.horizon_ms

    def _label(self, value: str) -> str:
        """Return the name of a value in the registry; empty if the value can never be spread."""
        if len(value.encode(errors="replace")) > VALUE_BYTES_MAX:
            return ""
        try:
            return check_key(value_subject(self.table.name, self.name, value))
        except InvalidKey:
            return ""

    def shadow_value(self, value: Any, key: str, sort: Native, at_ms: int | None) -> Any:
        """Return what the shadow attribute holds for an attribute's `value`, in wire form.

        A value that cannot be a key of an index is returned unchanged. DynamoDB refuses such a
        value for the new index, as it does for the old one.
        """
        text = value.get("S") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(text, str) or not text:
            return value
        return {"S": self.tag(text, key, sort, at_ms)}

    def tag(self, value: str, key: str, sort: Native, at_ms: int | None = None) -> str:
        """Return the text in an item's shadow attribute: the value, with the bucket of the item.

        `key` and `sort` are the item's keys; `at_ms` picks the epoch, and None means now. Raises
        `WireError` for a value that Heatsink reserves for buckets.
        """
        if TAG in value and TAGGED.search(value):
            raise refusal(
                f"the value {value!r} of {self.attribute} ends in {TAG!r} and digits. Such values "
                "are reserved for buckets: choose another"
            )
        layout = self._view.layouts.get(self.label(value))
        if layout is None or not self.label(value):
            return value
        time_ms = self._view.horizon_ms - 1 if at_ms is None else at_ms
        buckets = layout.epoch_at(time_ms).buckets
        if buckets == 1:
            return value
        placed = self._hash(hashed_bytes(key) + b"\0" + hashed_bytes(sort)) % buckets
        return physical(value, placed)

    def buckets(self, value: str) -> list[int | None]:
        """Return the buckets that may hold entries of a value.

        None is the value without a bucket.
        """
        layout = self._view.layouts.get(self.label(value))
        if layout is None or not self.label(value):
            return [None]
        swept = swept_on(self._view, self.table.name, self.name, value)
        epochs = layout.epochs
        if swept is not None and swept.is_forgotten:
            epochs = tuple(one for one in epochs if one.start_ms >= swept.epoch_ms)
        most = max((one.buckets for one in epochs), default=1)
        return [None, *range(most)] if most > 1 else [None]

    def epochs_since(self, value: str, from_ms: int) -> Iterator[int]:
        """Yield the times since `from_ms` at which a value got another number of buckets."""
        layout = self._view.layouts.get(self.label(value))
        for epoch in layout.later if layout is not None else ():
            if epoch.start_ms >= from_ms:
                yield epoch.start_ms

    def error(self, error: WireError) -> WireError:
        """Return an error with the application's names for the index and its attribute."""
        named = self._named(error.body)
        return error if named == error.body else WireError(error.status, named)

    def _named(self, value: Any) -> Any:
        if isinstance(value, str):
            text = value.replace(self.stored_name, self.name)
            return text.replace(self.shadow, self.attribute)
        if isinstance(value, list):
            return [self._named(one) for one in value]
        if isinstance(value, dict):
            return {name: self._named(one) for name, one in value.items() if name != "Item"} | {
                name: one for name, one in value.items() if name == "Item"
            }
        return value

    def capacity(self, used: Any) -> Any:
        """Return consumed capacity in which the new index has the application's name."""
        if isinstance(used, list):
            return [self.capacity(one) for one in used]
        if not isinstance(used, dict) or not isinstance(used.get("GlobalSecondaryIndexes"), dict):
            return used
        of_indexes = dict(used["GlobalSecondaryIndexes"])
        ours = of_indexes.pop(self.stored_name, None)
        if ours is None:
            return used
        of_indexes[self.name] = _sum(ours, of_indexes.get(self.name))
        return {**used, "GlobalSecondaryIndexes": of_indexes}

    def renamed(self, parameters: Body, fields: Iterable[str]) -> Body:
        """Return a request whose expressions name the shadow attribute in place of the attribute.

        DynamoDB then finds the mistakes that concern the key of an index.
        """
        changed, names = dict(parameters), parameters.get(NAMES)
        texts = [field for field in fields if isinstance(parameters.get(field), str)]
        for field in texts:
            changed[field] = self._word.sub(ALIAS, parameters[field])
        if isinstance(names, dict):
            own = {one: self.shadow if n == self.attribute else n for one, n in names.items()}
            changed[NAMES] = own
        is_used = any(ALIAS in changed[field] for field in texts)
        if is_used and (names is None or isinstance(names, dict)):
            changed[NAMES] = {**(changed.get(NAMES) or {}), ALIAS: self.shadow}
        return changed

    def reaches_into(self, parameters: Body) -> bool:
        """Return whether an expression has a path into the index's attribute, such as `a.b`.

        DynamoDB refuses such a path, since the value of a key attribute has no parts.
        """
        names = parameters.get(NAMES)
        aliases = [self._word.pattern]
        if isinstance(names, dict):
            aliases += [re.escape(one) for one, n in names.items() if n == self.attribute]
        inside = re.compile(rf"(?:{'|'.join(aliases)})\s*[.\[]")
        texts = (parameters.get(field) for field in EXPRESSIONS)
        return any(isinstance(text, str) and inside.search(text) for text in texts)

    def check_scalar(self, nested: Any) -> None:
        """Raise DynamoDB's error if an expression reaches into the indexed attribute (`a.b`).

        `nested` are the attributes into which the expression reaches.
        """
        if self.attribute in nested:
            raise ValidationFailed(
                "Key attributes must be scalars; list random access '[]' and map lookup '.' are "
                f"not allowed: IndexKey: {self.attribute}"
            )


def _sum(one: Any, other: Any) -> Any:
    if other is None:
        return one
    names = dict.fromkeys((*one, *other))
    return {name: one.get(name, 0) + other.get(name, 0) for name in names}


def _projected(table: SpreadTable, note: SpreadNote) -> frozenset[str] | None:
    if note.projection.get("ProjectionType") == "ALL":
        return None
    extra = note.projection.get("NonKeyAttributes") or ()
    own = (table.partition_key, table.sort_key, note.attribute, *note.sort_keys)
    return frozenset((*own, *extra))


def shadow_of(index: str) -> str:
    """Return the name of an index's shadow attribute."""
    return RESERVED + index


def spread_indexes(
    table: SpreadTable, view: View, hash_: Callable[[bytes], int]
) -> dict[str, SpreadIndex]:
    """Return the spread indexes of a table by their names, as the view knows them."""
    return {
        name: SpreadIndex(table, name, note, view, hash_)
        for name, note in notes_on(view, table.name)
    }


def stripped(item: Body) -> Body:
    """Return an item without shadow attributes."""
    if any(name.startswith(RESERVED) for name in item):
        return {name: one for name, one in item.items() if not name.startswith(RESERVED)}
    return item


def check_no_shadow(given: object) -> None:
    """Raise if a request names a shadow attribute, in an item or in ExpressionAttributeNames."""
    names = (*given, *given.values()) if isinstance(given, dict) else ()
    if any(isinstance(name, str) and name.startswith(RESERVED) for name in names):
        raise refusal(
            f"attributes whose names begin with {RESERVED!r} are reserved for spread indexes: "
            "choose another name"
        )
