"""Finds the place of an item of a declared table, from its keys and the registry's view.

An item's place depends only on its keys, and never changes. The time in the sort key picks the
epoch of the partition key's layout, and a hash of the sort key picks the bucket. Items whose sort
key carries no time are under the bare key. So every item has one place, and every process that
knows the layouts up to the item's time computes the same place.

In an append-only table, programs without Heatsink may write every row under the bare key until the
table's adoption is complete. Rows from before that time may be *strays*: rows under the bare key
whose place is a bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from functools import lru_cache
from shlex import quote
from typing import Any, NamedTuple

from heatsink.errors import InvalidKey
from heatsink.primitives.checks import shown_url
from heatsink.primitives.keys import seeded_hash
from heatsink.registry.adoption import completed_ms, is_leaving
from heatsink.registry.decisions import View
from heatsink.registry.declarations import difference, is_final, recorded, refused
from heatsink.registry.layouts import Epoch, Layout
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.values import Native, native, normal_number

from .declaration import Rule, SpreadTable
from .keys import TAG, TAGGED, hashed_bytes, physical, registry_key
from .protocol import Body, Call, Need, Reach, Renew, WireError, checked, refusal
from .recent import RecentPuts
from .records import record_of
from .spread_indexes import EXPRESSIONS, SpreadIndex, check_no_shadow, spread_indexes, stripped

logger = logging.getLogger("heatsink")
LABELS_KEPT = 16_384
BYTES_MAX = 2_048  # of a partition key in DynamoDB
SUFFIX_BYTES = 9  # of a bucket's name
Waits = Generator[list[Need], list[Any], "Spot"]


class Spot(NamedTuple):
    """The place of an item: its partition key in the registry, its bucket and its stored name."""

    label: str
    bucket: int | None
    name: str


class Keys(NamedTuple):
    """The keys of an item: the application's partition key, and the sort key as a Python value."""

    key: str
    sort: Native


class Places:
    """Finds the places of one table's items."""

    def __init__(
        self, table: SpreadTable, view: View, seed: bytes, registry: str = "REGISTRY_URL"
    ) -> None:
        self.table = table
        self._adopting = adopting(registry, table.name)
        self._view = view
        self._hash = seeded_hash(seed)
        self._adopted: tuple[int, float] = (-1, float("inf"))
        self._refused: tuple[int, str] = (-1, "")
        self._record = record_of(table)
        self._has_warned = False
        self.recent = RecentPuts(table)
        self._has_fixed = any(rule.buckets > 1 for rule in table.rules)
        self._indexes: tuple[int, dict[str, SpreadIndex]] = (-1, {})
        self.label = lru_cache(LABELS_KEPT)(self._label)

    @property
    def indexes(self) -> dict[str, SpreadIndex]:
        """The table's spread indexes by name, at the steps that the view knows."""
        version = self._view.version
        if self._indexes[0] != version:
            found = spread_indexes(self.table, self._view, self._hash)
            self._indexes = (version, found)
        return self._indexes[1]

    @property
    def has_shadows(self) -> bool:
        """Whether items may have shadow attributes, which no answer may show."""
        return any(index.note.step != "left" for index in self.indexes.values())

    def _label(self, key: str) -> str:
        """Return the name of a key in the registry; empty if the key can never be spread."""
        if len(key.encode(errors="replace")) > BYTES_MAX - SUFFIX_BYTES:
            return ""
        try:
            return registry_key(self.table.name, key)
        except InvalidKey:
            return ""

    def keys_of(self, item: object, *, exactly: bool) -> Keys | None:
        """Return the keys in an item or a `Key` in wire form.

        Returns None if the keys do not fit the key schema. DynamoDB refuses such a request. Raises
        `WireError` for a key that Heatsink reserves for buckets.
        """
        table = self.table
        if not isinstance(item, dict) or (exactly and len(item) != 2):
            return None
        partition, sort = item.get(table.partition_key), item.get(table.sort_key)
        if not isinstance(partition, dict) or not isinstance(sort, dict):
            return None
        key, content = partition.get("S"), sort.get(table.sort_type)
        if type(key) is not str or not key or type(content) is not str or not content:
            return None
        if len(partition) != 1 or len(sort) != 1:
            return None
        if TAG in key:
            check_not_reserved(key)
        if table.sort_type == "S":
            return Keys(key, content)
        try:
            return Keys(key, native(_normal(sort)))
        except (ValidationFailed, ValueError, TypeError):
            return None

    @property
    def complete_ms(self) -> float:
        """The time after which no row is a stray; infinite while the adoption is not complete."""
        version = self._view.version
        if self._adopted[0] != version:
            self._adopted = (version, completed_ms(self._view, self.table.name))
        return self._adopted[1]

    def check_usable(self) -> None:
        """Raise if the table leaves Heatsink, or if the registry has another declaration of it."""
        version = self._view.version
        if self._refused[0] != version:
            self._refused = (version, self._why_refused())
        if self._refused[1]:
            raise refusal(self._refused[1])

    def _why_refused(self) -> str:
        name = self.table.name
        if is_leaving(self._view, name):
            return (
                f"table {name} leaves Heatsink (heatsink adopt --leave), and its rows are being "
                "moved: use it without Heatsink from now on"
            )
        known = recorded(self._view, name)
        differs = difference(known, self._record) if known is not None else ""
        if differs and is_final(self._view, name):
            return refused(name, differs)
        if differs and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "table %s was declared otherwise by another process: %s. Restart this process with "
                "that declaration; once keys may be spread, it refuses the table",
                name,
                differs,
            )
        return ""

    def note_put(self, keys: Keys) -> None:
        """Notice whether new items carry times by which they can be spread."""
        rule, layout = self.table.rule_of(keys.sort), self._view.layout(self.label(keys.key))
        self.recent.note(rule, keys.sort, layout, self._view.horizon_ms)

    def is_bare(self, keys: Keys) -> bool:
        """Return whether an item is under the bare key for ever, by the present view alone."""
        rule = self.table.rule_of(keys.sort)
        if rule.time_of is None:
            return rule.buckets == 1
        label = self.label(keys.key)
        if not label:
            return True
        time_ms = rule.time_ms(keys.sort)
        if time_ms is None:
            return True
        if time_ms >= self._view.horizon_ms:
            return False
        layout = self._view.layouts.get(label)
        return layout is None or layout.epoch_at(time_ms).buckets == 1

    def is_cold(self, label: str) -> bool:
        """Return whether the view knows no buckets of a key, apart from the bare key."""
        layout = self._view.layouts.get(label)
        return self._has_fixed is False and (layout is None or layout.max_buckets == 1)

    def to_write(self, keys: Keys) -> Waits:
        """Return the place of an item to write. Waits until the view covers the item's time.

        Raises `WireError` for a time that is too far ahead of now.
        """
        rule, label = self.table.rule_of(keys.sort), self.label(keys.key)
        time_ms = rule.time_ms(keys.sort)
        if label and time_ms is not None and time_ms >= self._view.horizon_ms:
            checked((yield [Reach(time_ms, self.table.ahead_ms)]))
        return self.spot(keys, rule, time_ms)

    def to_delete(self, keys: Keys) -> Waits:
        """Return the place of an item to delete.

        In an append-only table, an item with a time that no process can place yet can only be a
        stray. So it is deleted under the bare key, without waiting for its time.
        """
        if self.table.append_only:
            return (yield from self.to_read(keys, consistent=True))
        return (yield from self.to_write(keys))

    def to_read(self, keys: Keys, *, consistent: bool) -> Waits:
        """Return the place of an item to read.

        An eventually consistent read takes the place from the view as it is. If the item's time is
        past the horizon even after a renewal, no process can have placed the item yet.
        """
        if consistent and self.is_past(keys):
            checked((yield [Renew()]))
        return self.spot_to_read(keys) if consistent else self.spot_of(keys)

    def is_past(self, keys: Keys) -> bool:
        """Return whether an item's time is past the horizon: then its place is not known yet."""
        time_ms = self.table.rule_of(keys.sort).time_ms(keys.sort)
        return (
            time_ms is not None and time_ms >= self._view.horizon_ms and self.label(keys.key) != ""
        )

    def spot_to_read(self, keys: Keys) -> Spot:
        """Return the place of an item without a renewal. If it is unknown, return the bare key."""
        if self.is_past(keys):
            return Spot(self.label(keys.key), None, keys.key)
        return self.spot_of(keys)

    def spot(self, keys: Keys, rule: Rule, time_ms: int | None) -> Spot:
        """Return the place of an item from its rule and its time, without a renewal of the view."""
        key, label = keys.key, self.label(keys.key)
        bucket: int | None = None
        if rule.buckets > 1 and label:
            bucket = self._hash(hashed_bytes(keys.sort)) % rule.buckets
        elif time_ms is not None and label:
            layout = self._view.layouts.get(label)
            if layout is not None:
                self.check_adopted(layout)
                bucket = self._bucket(layout.epoch_at(time_ms), keys.sort)
        return Spot(label, bucket, physical(key, bucket))

    def spot_of(self, keys: Keys) -> Spot:
        """Return the place of an item, from the present view of the registry."""
        rule = self.table.rule_of(keys.sort)
        return self.spot(keys, rule, rule.time_ms(keys.sort))

    def spot_by(self, layout: Layout, keys: Keys) -> Spot:
        """Return the place of an item by a given layout of its partition key."""
        rule, label = self.table.rule_of(keys.sort), self.label(keys.key)
        time_ms = rule.time_ms(keys.sort)
        if rule.buckets > 1 or time_ms is None or not label:
            return self.spot(keys, rule, time_ms)
        bucket = self._bucket(layout.epoch_at(time_ms), keys.sort)
        return Spot(label, bucket, physical(keys.key, bucket))

    def _bucket(self, epoch: Epoch, sort: Native) -> int | None:
        return None if epoch.buckets == 1 else self._hash(hashed_bytes(sort)) % epoch.buckets

    def may_stray(self, keys: Keys, spot: Spot) -> bool:
        """Return whether the item may be under the bare key although its place is a bucket."""
        if not self.table.append_only or spot.bucket is None:
            return False
        time_ms = self.table.rule_of(keys.sort).time_ms(keys.sort)
        return time_ms is not None and time_ms < self.complete_ms

    def is_adopted(self, layout: Layout) -> bool:
        """Return whether the adoption was complete before a key got its second bucket."""
        if self.table.append_only or len(layout.epochs) == 1:
            return True
        first_ms = next((e.start_ms for e in layout.epochs if e.buckets > 1), None)
        return first_ms is None or first_ms >= self.complete_ms

    def check_adopted(self, layout: Layout) -> None:
        """Raise if a key was spread before the adoption of its table was complete.

        In such a table an item could be in two places, and conditions and updates would go wrong.
        Also raises as `check_usable` does: the view may be newer than when the operation began.
        """
        self.check_usable()
        if not self.is_adopted(layout):
            raise refusal(
                f"table {self.table.name} has a key with several buckets, but its adoption is not "
                f"complete. Once no other program writes to it, run {self._adopting} --complete, "
                "or declare the table append_only"
            )

    def misplaced(self, keys: Keys) -> WireError:
        """Return the error for a row that is not where its keys place it."""
        return refusal(
            f"the row {keys.sort!r} of {keys.key!r} in table {self.table.name} is not in its "
            "place: a program without Heatsink wrote it after the adoption was complete, or it was "
            f"dated in the future. To move such rows into place, run {self._adopting} "
            "--move-strays"
        )

    def parameters(self, item: Body, spot: Spot) -> Body:
        """Return an item or a `Key` with the stored name of its partition key."""
        return {**item, self.table.partition_key: {"S": spot.name}}

    def call(self, operation: str, parameters: Body, spot: Spot) -> Call:
        return Call(operation, parameters, spot.label, spot.bucket)

    def shown(self, item: Body) -> Body:
        """Return a stored item with the application's partition key, and without shadows."""
        item = shown_item(item, self.table.partition_key)
        return stripped(item) if self.indexes else item

    def with_keys(self, parameters: Body) -> Body:
        """Replace indexed attributes by shadow attributes where DynamoDB should refuse an
        expression.

        DynamoDB refuses an expression that reaches into the key of an index (`state.part`). The key
        of the deleted old index is such a key for the application, but no longer for DynamoDB. The
        key of the new index still is. Raises `WireError` if the request names a shadow attribute.
        """
        check_no_shadow(parameters.get("ExpressionAttributeNames"))
        for index in self.indexes.values():
            if not index.has_old and index.reaches_into(parameters):
                parameters = index.renamed(parameters, EXPRESSIONS)
        return parameters

    def shown_costs(self, answer: Body) -> Body:
        """Return an answer whose consumed capacity names the application's indexes."""
        used = answer.get("ConsumedCapacity")
        if used is None or not self.indexes:
            return answer
        for index in self.indexes.values():
            used = index.capacity(used)
        return {**answer, "ConsumedCapacity": used}

    def error(self, error: WireError) -> WireError:
        """Return an error with the application's key and the application's names of indexes."""
        for index in self.indexes.values():
            error = index.error(error)
        item = error.body.get("Item")
        if not isinstance(item, dict):
            return error
        return WireError(error.status, {**error.body, "Item": self.shown(item)})


def adopting(registry: str, table: str) -> str:
    """Return the beginning of a command line about a table's adoption, without credentials."""
    return f"heatsink adopt {quote(shown_url(registry))} {quote(table)}"


def check_not_reserved(key: str) -> None:
    if TAGGED.search(key):
        raise refusal(
            f"the partition key {key!r} ends in {TAG!r} and digits. Such keys are reserved for "
            "buckets: choose another"
        )


def application_key(name: str) -> str:
    """Return the application's partition key of a stored name."""
    if TAG not in name:
        return name
    found = TAGGED.search(name)
    return name[: found.start()] if found else name


def shown_item(item: Body, partition_key: str) -> Body:
    """Return a stored item, or a part of one, with the application's partition key."""
    value = item.get(partition_key)
    if value is None or TAG not in value.get("S", ""):
        return item
    return {**item, partition_key: {"S": application_key(value["S"])}}


def _normal(value: Mapping[str, str]) -> Body:
    [(kind, content)] = value.items()
    return {kind: normal_number(content)} if kind == "N" else dict(value)
