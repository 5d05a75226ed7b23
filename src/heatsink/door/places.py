"""Finds the place of an item of a declared table, from its keys and the registry's view.

An item's place depends only on its keys, and never changes. The time in the sort key picks the
epoch of the partition key's layout, and a hash of the sort key picks the bucket. Items whose sort
key carries no time are under the bare key. So every item has one place, and every process that
knows the layouts up to the item's time computes the same place.

In an append-only table, programs without Heatsink may write every row under the bare key until the
table's adoption is complete. Rows from before that time may be *strays*: rows under the bare key
whose place is a bucket. Rows with a prefix of fixed buckets have no time, so they may always be
strays there. In any other table, such rows are written only after the adoption is complete.
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
from .keys import TAG, TAGGED, hashed_bytes, number_in, physical, registry_key
from .protocol import Body, Need, Reach, Renew, UpstreamCall, WireError, checked, refusal
from .recent import RecentPuts
from .records import record_of
from .spread_indexes import EXPRESSIONS, SpreadIndex, check_no_shadow, spread_indexes, stripped
from .times import first_text

logger = logging.getLogger("heatsink")
LABELS_KEPT = 16_384
BYTES_MAX = 2_048  # of a partition key in DynamoDB
SUFFIX_BYTES = 9  # of a bucket's name
Waits = Generator[list[Need], list[Any], "Spot"]


class Spot(NamedTuple):
    """The place of an item.

    `label` is the name of its partition key in the registry; empty if the key can never be spread.
    `bucket` is its bucket, None for the bare key. `name` is the partition key with which DynamoDB
    stores it, such as `room#3`.
    """

    label: str
    bucket: int | None
    name: str


class Keys(NamedTuple):
    """The application's keys of an item. The sort key is a Python value, to be compared."""

    key: str
    sort: Native


class Known(NamedTuple):
    """What the places of a table need from the view, computed once for each version of the view.

    `refused` says why Heatsink refuses the table; it is empty if it does not. `indexes` are the
    table's spread indexes.
    """

    version: int
    refused: str
    indexes: dict[str, SpreadIndex]
    has_shadows: bool
    """Whether items may have shadow attributes, which no answer may show."""


class Horizon(NamedTuple):
    """A horizon of the view: for each prefix, a text below which no sort key has a later time."""

    time_ms: int
    texts: dict[str, str]


class ItemPlaces:
    """Finds the places of one table's items."""

    def __init__(
        self, table: SpreadTable, view: View, seed: bytes, registry: str = "REGISTRY_URL"
    ) -> None:
        self.table = table
        self._adopting = adopting(registry, table.name)
        self._view = view
        self._hash = seeded_hash(seed)
        self._adopted: tuple[int, float] = (-1, float("inf"))
        self._record = record_of(table)
        self._has_warned = False
        self.recent = RecentPuts(table)
        self._has_fixed = any(rule.buckets > 1 for rule in table.rules)
        self._known = Known(-1, "", {}, False)
        self._horizon = Horizon(-1, {})
        self.label = lru_cache(LABELS_KEPT)(self._label)

    def known(self) -> Known:
        """Return what the view says of the table.

        Computes it anew if the view has another version.
        """
        version = self._view.version
        if self._known.version != version:
            indexes = spread_indexes(self.table, self._view, self._hash)
            shadows = any(index.note.step != "left" for index in indexes.values())
            self._known = Known(version, self._why_refused(), indexes, shadows)
        return self._known

    @property
    def indexes(self) -> dict[str, SpreadIndex]:
        """The table's spread indexes by name, each at the migration step that the view knows."""
        return self.known().indexes

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
            return tuple.__new__(Keys, (key, content))  # cheaper than Keys(…)
        try:
            return Keys(key, native(_normal(sort)))
        except (ValidationFailed, ValueError, TypeError):
            return None

    @property
    def complete_ms(self) -> float:
        """No row of this time or later is a stray (under the bare key instead of in its bucket).

        The value is infinite while the table's adoption is not complete.
        """
        version = self._view.version
        if self._adopted[0] != version:
            self._adopted = (version, completed_ms(self._view, self.table.name))
        return self._adopted[1]

    def check_usable(self) -> None:
        """Raise if the table leaves Heatsink, or if the registry has another declaration of it."""
        if refused := self.known().refused:
            raise refusal(refused)

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
        """Look at some new items: if their sort keys carry no usable time, log a warning."""
        rule, view = self.table.rule_of(keys.sort), self._view
        if self.recent.is_due(rule):
            self.recent.note(rule, keys.sort, view.layout(self.label(keys.key)), view.horizon_ms)

    def may_pass(self, keys: Keys) -> bool:
        """Return whether a request for an item can go upstream unchanged. Does not renew the view.

        The request can if the item is under the bare key for ever, and has no shadow attributes.
        """
        if self.known().has_shadows:
            return False
        rule = self.table.rule_of(keys.sort)
        if rule.time_of is None:
            return rule.buckets == 1
        label = self.label(keys.key)
        if not label:
            return True
        is_past = self._is_surely_past(keys.sort, rule)  # before the layout is looked up
        if is_past and label not in self._view.layouts:
            return True
        time_ms = rule.time_ms(keys.sort)
        if time_ms is None:
            return True
        if time_ms >= self._view.horizon_ms:
            return False
        layout = self._view.layouts.get(label)
        return layout is None or layout.epoch_at(time_ms).buckets == 1

    def _is_surely_past(self, sort: Native, rule: Rule) -> bool:
        """Return whether a comparison of texts shows that a sort key has no time past the horizon.

        This is cheaper than reading the time. If it returns False, the time must be read.
        """
        horizon = self._horizon
        if horizon.time_ms != self._view.horizon_ms:
            horizon = self._horizon = self._horizon_at(self._view.horizon_ms)
        return type(sort) is str and sort < horizon.texts[rule.prefix]

    def _horizon_at(self, time_ms: int) -> Horizon:
        timed = ((rule.prefix, rule.time_of) for rule in self.table.rules if rule.time_of)
        texts = ((prefix, first_text(time_of, time_ms)) for prefix, time_of in timed)
        return Horizon(time_ms, {prefix: prefix + text if text else "" for prefix, text in texts})

    def is_cold(self, label: str) -> bool:
        """Return whether, by the view, requests for all items of a key can go upstream unchanged.

        They can if all items are under the bare key, and have no shadow attributes.
        """
        if self.known().has_shadows:
            return False
        layout = self._view.layouts.get(label)
        return self._has_fixed is False and (layout is None or layout.max_buckets == 1)

    def to_write(self, keys: Keys) -> Waits:
        """Return the place of an item to write. Waits until the view covers the item's time.

        Raises `WireError` for a time that is too far ahead of now, and for a prefix with fixed
        buckets if the table's adoption is not complete.
        """
        rule, label = self.table.rule_of(keys.sort), self.label(keys.key)
        time_ms = rule.time_ms(keys.sort)
        if rule.buckets > 1 and label and not self.table.append_only:
            yield from self._check_complete(rule)
        if label and time_ms is not None and time_ms >= self._view.horizon_ms:
            checked((yield [Reach(time_ms, self.table.ahead_ms)]))
        return self.spot(keys, rule, time_ms)

    def _check_complete(self, rule: Rule) -> Generator[list[Need], list[Any], None]:
        """Raise if the table's adoption is not complete, even after a renewal of the view.

        Before the adoption is complete, other programs may write the same item under the bare key,
        and it would be in two places.
        """
        if self.complete_ms == float("inf"):
            checked((yield [Renew()]))
        if self.complete_ms == float("inf"):
            raise refusal(
                f"the prefix {rule.prefix!r} of table {self.table.name} has {rule.buckets} fixed "
                "buckets, but the adoption of the table is not complete. Once every program that "
                f"writes to the table does so through Heatsink, run {self._adopting} --complete; "
                "until then, items with this prefix can only be read"
            )

    def to_delete(self, keys: Keys) -> Waits:
        """Return the place of an item to delete.

        The item's time may be past the horizon. In an append-only table, such an item can only be
        under the bare key, since no process can have placed it yet. So the delete goes there
        without waiting.
        """
        if self.table.append_only:
            return (yield from self.to_read(keys, consistent=True))
        return (yield from self.to_write(keys))

    def to_read(self, keys: Keys, *, consistent: bool) -> Waits:
        """Return the place of an item to read.

        For a consistent read of an item whose time is past the horizon, renews the view. If the
        item's time is still past the horizon, no process can have placed the item in a bucket: then
        the place is the bare key.
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
        """Return the place of an item by the present view.

        If its time is past the horizon: the bare key.
        """
        if self.is_past(keys):
            return Spot(self.label(keys.key), None, keys.key)
        return self.spot_of(keys)

    def spot(self, keys: Keys, rule: Rule, time_ms: int | None) -> Spot:
        """Return the place of an item by the present view.

        `rule` is the rule of its sort key, and `time_ms` the time in it.
        """
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

    def bucket_to_name(self, stored: Body) -> int | None:
        """Return the bucket that a page token must name if the page ends at this stored row.

        Returns None if the row's keys tell its bucket. They do not tell it if the row is a stray,
        or if its time is past the horizon: then its place is not decided yet, or not known here.
        """
        item = self.shown(stored)
        keys = self.keys_of(item, exactly=False)
        name = stored[self.table.partition_key]["S"]
        if keys is None or (not self.is_past(keys) and self.spot_of(keys).name == name):
            return None
        return number_in(name, keys.key)

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
        """Return whether the item may be under the bare key although it belongs into a bucket.

        In an append-only table, programs without Heatsink may have written it there.
        """
        if not self.table.append_only or spot.bucket is None:
            return False
        time_ms = self.table.rule_of(keys.sort).time_ms(keys.sort)
        return time_ms is None or time_ms < self.complete_ms

    def is_adopted(self, layout: Layout) -> bool:
        """Return whether the table's adoption was complete before a key got this layout.

        A layout with only one bucket needs no adoption.
        """
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
                "complete. Once every program that writes to the table does so through Heatsink, "
                f"run {self._adopting} --complete, or declare the table append_only"
            )

    def misplaced(self, keys: Keys) -> WireError:
        """Return the error for a row that is not in the bucket to which it belongs."""
        return refusal(
            f"the row {keys.sort!r} of {keys.key!r} in table {self.table.name} is not in its "
            "place: a program without Heatsink wrote it, after the adoption was complete or with "
            "a time in the future, or it is older than its prefix's fixed buckets. To move such "
            f"rows into place, run {self._adopting} --move-strays"
        )

    def parameters(self, item: Body, spot: Spot) -> Body:
        """Return an item or a `Key` with the stored name of its partition key, as in `spot`."""
        return {**item, self.table.partition_key: {"S": spot.name}}

    def call(self, operation: str, parameters: Body, spot: Spot) -> UpstreamCall:
        return UpstreamCall(operation, parameters, spot.label, spot.bucket)

    def shown(self, item: Body) -> Body:
        """Return a stored item with the application's partition key, and without shadows."""
        item = shown_item(item, self.table.partition_key)
        return stripped(item) if self.indexes else item

    def with_keys(self, parameters: Body) -> Body:
        """Return a request with shadow attributes in expressions that DynamoDB should refuse.

        DynamoDB refuses an expression that reaches into the key of an index (`state.part`). After
        the old index is deleted, DynamoDB no longer knows its key as the key of an index, but the
        application still expects the error. The shadow attribute is the key of the new index.
        Raises `WireError` if the request names a shadow attribute itself.
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
    """Return the start of a command about a table's adoption, for messages, without credentials."""
    return f"heatsink adopt {quote(shown_url(registry))} {quote(table)}"


def check_not_reserved(key: str) -> None:
    if TAGGED.search(key):
        raise refusal(
            f"the partition key {key!r} ends in {TAG!r} and digits. Such keys are reserved for "
            "buckets: choose another"
        )


def application_key(name: str) -> str:
    """Return the application's partition key: `room` for the stored name `room#3`."""
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
