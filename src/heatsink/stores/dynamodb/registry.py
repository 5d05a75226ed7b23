"""The registry in DynamoDB. Every commit is one transaction with a condition on META."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from heatsink.errors import Deposed, NoRegistry, Outdated
from heatsink.primitives.clock import breathe
from heatsink.primitives.keys import key_of, partition_of
from heatsink.registry.closed_time import AHEAD_MS_MAX, check_append
from heatsink.registry.decisions import Decision, LogEntry, Meta, Reading, Reasons, Snapshot
from heatsink.registry.layouts import EpochMaker, Layout

from .client import ConditionFailed, Item
from .table import (
    EPOCHS,
    KEYS,
    LOG,
    META,
    NOTHING,
    PINS,
    DynamoTable,
    LayoutCopy,
    binary,
    copy_item,
    copy_of,
    decision_from,
    decision_of,
    decision_value,
    decode_layouts,
    epochs_value,
    integer,
    key,
    layout_of,
    log_shard,
    number,
    ours,
    sort_of,
)

META_KEY = key(META, NOTHING)
FIRST, LAST = binary(b"\x00"), binary(b"\xff" * 4)
LAYOUTS_AT_ONCE = 2_000  # that are decoded before other tasks run
_ENTRY = msgspec.json.Decoder(LogEntry)


def _version_key(version: int) -> bytes:
    return version.to_bytes(8, "big")


def _meta_item(meta: Meta) -> Item:
    return {
        **META_KEY,
        "c": number(meta.closed_ms),
        "v": number(meta.version),
        "term": number(meta.term),
        "beat": number(meta.beat),
        "servers": number(meta.servers),
        "lease": number(meta.lease_ms),
        "leader": {"S": meta.leader},
        "incarnation": {"S": meta.incarnation},
        "seed": binary(meta.seed),
        "ids": {"S": meta.id_scheme},
        "format": number(meta.format),
        "min_reader": number(meta.min_reader),
        "secret": binary(meta.secret),
    }


@ours("registry", "Restore a backup")
def _meta_of(item: Item) -> Meta:
    return Meta(
        closed_ms=integer(item, "c"),
        version=integer(item, "v"),
        term=integer(item, "term"),
        beat=integer(item, "beat"),
        leader=item["leader"]["S"],
        incarnation=item["incarnation"]["S"],
        seed=sort_of({"s": item["seed"]}),
        id_scheme=item["ids"]["S"],
        servers=integer(item, "servers"),
        lease_ms=integer(item, "lease"),
        format=integer(item, "format"),
        min_reader=integer(item, "min_reader"),
        secret=sort_of({"s": item["secret"]}) if "secret" in item else b"",
    )


class DynamoRegistry:
    """The registry's items in one table.

    `table` retries throttled requests and has its own connections. `rows` is the same table with
    the connections that reads and writes of rows use, and without such retries. Callers that read
    rows get layouts through `rows`.
    """

    def __init__(self, table: DynamoTable, rows: DynamoTable) -> None:
        self._table = table
        self._rows = rows

    async def found(self, meta: Meta) -> Reading:
        """Write META if the table has none. Returns the META that the table holds afterwards.

        If META exists, it is not written. So only the first process needs the permission to put it.
        """
        with suppress(NoRegistry):
            return await self.meta()
        put = {"Item": _meta_item(meta), "ConditionExpression": "attribute_not_exists(p)"}
        with suppress(ConditionFailed):
            await self._table.call("PutItem", put)
        return await self.meta()

    async def meta(self) -> Reading:
        answer = await self._table.call("GetItem", {"Key": META_KEY, "ConsistentRead": True})
        if "Item" not in answer.body:
            raise NoRegistry
        return Reading(_meta_of(answer.body["Item"]), answer.store_ms)

    async def _update(self, change: str, condition: str, values: Item) -> Reading:
        """Change META and return it. `change` is the update expression, `condition` the condition.

        Raises `ConditionFailed` if the condition does not hold.
        """
        answer = await self._table.call(
            "UpdateItem",
            {
                "Key": META_KEY,
                "UpdateExpression": change,
                "ConditionExpression": f"attribute_exists(p) AND {condition}",
                "ExpressionAttributeValues": values,
                "ReturnValues": "ALL_NEW",
            },
        )
        return Reading(_meta_of(answer.body["Attributes"]), answer.store_ms)

    async def advance(self, closed_ms: int) -> Reading:
        try:
            return await self._update("SET c = :c", "c < :c", {":c": number(closed_ms)})
        except ConditionFailed:
            return await self.meta()

    async def append(self, entry: LogEntry, term: int | None) -> None:
        writes = [_raise_version(entry, term), _put_log(entry)]
        decisions = entry.bucket_decisions
        layouts = await asyncio.gather(*(self._layout(each.key) for each in decisions))
        for decision, layout in zip(decisions, layouts, strict=True):
            writes += _append_epoch(layout, decision, entry.start_ms)
        writes += [_put_pin(decision) for decision in entry.pin_decisions]
        try:
            await self._table.write_together(writes)
        except ConditionFailed:
            await self._explain_refusal(entry, term)

    async def _explain_refusal(self, entry: LogEntry, term: int | None) -> None:
        """Raise the error that explains why `entry` could not be appended.

        If the entry breaks none of the rules, raises `Outdated`: another commit came first.
        """
        meta = (await self.meta()).meta
        layouts = {d.key: await self._layout(d.key) for d in entry.bucket_decisions}
        check_append(entry, term, meta, layouts)
        raise Outdated("another commit came first: retry")

    async def log(self, after: int, upto: int) -> list[LogEntry]:
        """Read the log entries after version `after`, up to version `upto`.

        If an entry in this range is missing, all older entries are left out. `upto` is committed,
        so strong reads find all entries, unless `trim` has deleted them. While a trim runs, it has
        deleted entries in some shards of the log and not yet in others.
        """
        low, high = binary(_version_key(after + 1)), binary(_version_key(upto))
        shards = [log_shard(version) for version in range(after + 1, upto + 1)[: len(LOG)]]
        items = await self._table.everything(shards, low, high)
        entries = [_ENTRY.decode(item["entry"]["S"]) for item in items]
        return _without_gaps(sorted(entries, key=lambda entry: entry.version))

    async def layout(self, name: str) -> Layout:
        return layout_of(await self._rows.get(_epochs_key(name), consistent=True))

    async def _layout(self, name: str) -> Layout:
        return layout_of(await self._table.get(_epochs_key(name), consistent=True))

    async def snapshot(self) -> Snapshot:
        """Read the version in META first, and then all layouts and pins.

        So the layouts and pins include every commit up to this version. They may also include later
        commits. Later commits do no harm, since a process skips an epoch that its copy already has.
        """
        version = (await self.meta()).meta.version
        pins = await self._table.everything([PINS], FIRST, LAST)
        layouts: dict[str, Layout] = {}
        reasons: dict[str, str] = {}
        epochs = EpochMaker()
        async for page in self._table.pages(KEYS, FIRST, LAST, decode_layouts):
            for nth, item in enumerate(page, start=1):
                kept = item if isinstance(item, LayoutCopy) else copy_of(item)
                name = kept.name
                layouts[name] = kept.layout(epochs)
                reasons[name] = kept.decision.S
                if nth % LAYOUTS_AT_ONCE == 0:
                    await breathe()
        pinned = {_name_of(pin): decision_of(pin) for pin in pins}
        return Snapshot(version, layouts, pinned, Reasons(reasons, decision_from))

    async def trim(self, below: int) -> None:
        items = await self._table.everything(LOG, FIRST, binary(_version_key(max(below - 1, 0))))
        await self._table.delete_all(items)

    async def restore(self, meta: Meta, snapshot: Snapshot) -> None:
        """Replace the registry by a snapshot.

        META is written last, so processes see the old incarnation until all else is in place.
        Attributes of META that this release does not know stay unchanged.
        """
        items = await self._table.everything([*KEYS, PINS, *LOG], FIRST, LAST)
        await self._table.delete_all(items)
        for name, layout in snapshot.layouts.items():
            for item in _layout_items(name, layout, snapshot.reasons[name]):
                await self._table.call("PutItem", {"Item": item})
        for decision in snapshot.pins.values():
            await self._table.call("PutItem", _put_pin(decision)["Put"])
        known = await self._table.get(META_KEY, consistent=True) or {}
        await self._table.call("PutItem", {"Item": {**known, **_meta_item(meta)}})

    async def layouts(self) -> AsyncIterator[tuple[str, Layout]]:
        """Yield each key with its layout, as stored in EPOCHS(key).

        This scans the whole table, and does not use the copies of the layouts in %keys.
        """
        request = {"FilterExpression": "attribute_exists(epochs)", "ConsistentRead": True}
        start: Item | None = None
        while True:
            items, start = await self._table.page("Scan", request, start)
            for item in items:
                yield key_of(item["p"]["S"])[0], layout_of(item)
            if start is None:
                return

    async def lead(self, seen: Meta, leader: str, lease_ms: int) -> Meta:
        values = {
            ":seen": number(seen.term),
            ":beat": number(seen.beat),
            ":term": number(seen.term + 1),
            ":zero": number(0),
            ":leader": {"S": leader},
            ":lease": number(lease_ms),
        }
        change = "SET term = :term, beat = :zero, leader = :leader, lease = :lease"
        try:
            return (await self._update(change, "term = :seen AND beat = :beat", values)).meta
        except ConditionFailed:
            raise Outdated("a coordinator renewed or took the lease meanwhile") from None

    async def beat(self, term: int, servers: int, lease_ms: int) -> None:
        values = {":term": number(term), ":one": number(1), ":servers": number(servers)}
        values[":lease"] = number(lease_ms)
        change = "SET beat = beat + :one, servers = :servers, lease = :lease"
        try:
            await self._update(change, "term = :term", values)
        except ConditionFailed:
            raise Deposed(f"term {term} is over") from None


def _epochs_key(name: str) -> Item:
    return key(partition_of(name, None), EPOCHS)


def _name_of(item: Item) -> str:
    return sort_of(item).decode()


def _without_gaps(entries: list[LogEntry]) -> list[LogEntry]:
    """Return the newest entries, down to the first version that is missing."""
    for n in range(len(entries) - 1, 0, -1):
        if entries[n].version != entries[n - 1].version + 1:
            return entries[n:]
    return entries


def _raise_version(entry: LogEntry, term: int | None) -> Item:
    conditions = ["v = :before"]
    values = {":before": number(entry.version - 1), ":v": number(entry.version)}
    if term is not None or entry.bucket_decisions:
        conditions.append("term = :term")
        values[":term"] = number(-1 if term is None else term)
    if entry.bucket_decisions:
        conditions.append("c BETWEEN :earliest AND :start")
        values[":start"] = number(entry.start_ms)
        values[":earliest"] = number(entry.start_ms - AHEAD_MS_MAX)
    return {
        "Update": {
            "Key": META_KEY,
            "UpdateExpression": "SET v = :v",
            "ConditionExpression": " AND ".join(conditions),
            "ExpressionAttributeValues": values,
        }
    }


def _put_log(entry: LogEntry) -> Item:
    item = {
        **key(log_shard(entry.version), _version_key(entry.version)),
        "entry": {"S": msgspec.json.encode(entry).decode()},
    }
    return {"Put": {"Item": item, "ConditionExpression": "attribute_not_exists(p)"}}


def _layout_items(name: str, layout: Layout, decision: Decision) -> list[Item]:
    """Return the two items of a key's layout: EPOCHS(key) and its copy in a shard of %keys.

    EPOCHS(key) is stored with the key's rows. From %keys, a process reads the layouts of all keys
    when it starts.
    """
    made = {
        **_epochs_key(name),
        "epochs": epochs_value(layout),
        "last": number(layout.epochs[-1].start_ms),
        "decision": decision_value(decision),
    }
    return [made, copy_item(name, layout, decision)]


def _append_epoch(layout: Layout, decision: Decision, start_ms: int) -> list[Item]:
    if start_ms <= layout.epochs[-1].start_ms:
        last_ms = layout.epochs[-1].start_ms
        raise Outdated(f"the key's next epoch must start after {last_ms}, not at {start_ms}")
    longer = layout.then(start_ms, decision.value or 1)
    epochs, copy = _layout_items(decision.key, longer, decision)
    unchanged: Item = {"ConditionExpression": "attribute_not_exists(p)"}
    if layout.later:
        unchanged = {
            "ConditionExpression": "#last = :last",
            "ExpressionAttributeNames": {"#last": "last"},
            "ExpressionAttributeValues": {":last": number(layout.epochs[-1].start_ms)},
        }
    return [{"Put": {"Item": epochs, **unchanged}}, {"Put": {"Item": copy}}]


def _put_pin(decision: Decision) -> Item:
    place = key(PINS, decision.key.encode())
    if decision.value is None:
        return {"Delete": {"Key": place}}
    return {"Put": {"Item": {**place, "decision": decision_value(decision)}}}
