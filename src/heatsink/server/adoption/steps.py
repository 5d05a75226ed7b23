"""How far a table's adoption is, and the steps that an operator takes.

dry run     heat is counted, and the leader decides, but no key gets a second bucket
complete    no program writes past Heatsink: keys may be spread
append-only keys may be spread at once, since every row is written once
leaving     processes refuse the table; rows are moved back under the bare key
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from heatsink.client.urls import open_stores
from heatsink.door.declaration import SpreadTable, fixed, unspread
from heatsink.door.places import ItemPlaces
from heatsink.door.records import record_of
from heatsink.errors import InvalidSetting, Unavailable
from heatsink.primitives.clock import Clock, now_ms
from heatsink.registry.adoption import (
    append_only,
    completed_ms,
    completion,
    departure,
    is_leaving,
    trials,
)
from heatsink.registry.decisions import View
from heatsink.registry.declarations import FIXED, check, recorded
from heatsink.registry.registry import Registry
from heatsink.stores.dynamodb.address import DynamoAddress
from heatsink.stores.dynamodb.wire.values import native

from .indexing import check_no_indexes, settle
from .leaving import Keys, Moved, Row, RowMover, bucket_rows
from .patient import patient_client
from .writers import Stray, fixed_strays, spread_keys, strays

State = Literal["dry run", "complete", "append-only", "leaving"]
SHOWN_MAX = 100
KEYS_LOOKED_AT = 20
NEWEST = 10
PASSES_MAX = 20
PARALLEL = 16  # rows that are moved at the same time


class Would(msgspec.Struct, frozen=True):
    """A key that would have been spread, in a dry run."""

    partition_key: str
    buckets: int


class FutureItem(msgspec.Struct, frozen=True):
    """An item whose sort key is dated further in the future than the declaration allows."""

    partition_key: str
    sort_key: str
    ahead_s: float


class Standing(msgspec.Struct, frozen=True):
    """How far the adoption of a table is.

    `would` are the keys that a dry run would have spread. `is_declared` is false if the registry
    knows nothing of the table: no program has used it. `ahead` are items of these keys whose time
    is in the future. When this time has come, Heatsink would look for these items in other places.
    """

    table: str
    state: State
    complete_from_ms: int | None
    spread_keys: int
    would: list[Would]
    ahead: list[FutureItem] = []
    is_declared: bool = True


class Departure(msgspec.Struct, frozen=True):
    """What became of the rows when a table left Heatsink: all were moved back under the bare key.

    `conflicts` are rows that another program also wrote there.
    """

    moved: int
    merged: int
    conflicts: list[Moved]


class Repair(msgspec.Struct, frozen=True):
    """What became of strays, that is, of rows that were written without Heatsink.

    Rows in `saved` were appended to a file and deleted.
    """

    moved: int
    merged: int
    saved: int
    conflicts: list[Moved]


class Sweep(msgspec.Struct, frozen=True):
    """How `leave` looks for rows in buckets.

    With `everything`, it scans the whole table. It always does so if the registry's declaration of
    the table has prefixes with fixed buckets. `in_flight_s` is the longest time that a call of a
    process may take to reach DynamoDB.
    """

    everything: bool = False
    in_flight_s: float = 60.0


@asynccontextmanager
async def registry_at(url: str, clock: Clock) -> AsyncIterator[Registry]:
    """Yield the registry of a store that exists."""
    stores = open_stores(url, clock, must_exist=True)
    try:
        await stores.open()
        registry = Registry(stores.registry, clock)
        await registry.open((await stores.registry.meta()).meta)
        yield registry
    finally:
        await stores.close()


def standing_of(view: View, table: str) -> Standing:
    since_ms = completed_ms(view, table)
    state: State = "dry run"
    if is_leaving(view, table):
        state = "leaving"
    elif since_ms < float("inf"):
        state = "complete"
    elif append_only(table).key in view.pins:
        state = "append-only"
    would = [
        Would(key, max(epoch.buckets for epoch in layout.epochs))
        for key, layout in trials(view, table).items()
    ]
    would.sort(key=lambda one: (-one.buckets, one.partition_key))
    complete = None if since_ms == float("inf") else int(since_ms)
    is_declared = recorded(view, table) is not None or bool(would)
    spread = len(spread_keys(view, table))
    return Standing(table, state, complete, spread, would, is_declared=is_declared)


async def dated_ahead(
    standing: Standing, address: DynamoAddress, table: SpreadTable, clock: Clock
) -> list[FutureItem]:
    """Return items dated in the future, of the keys that a dry run would have spread.

    Only the newest items of each prefix are read: within a prefix, times grow with the sort keys.
    """
    found, latest_ms = list[FutureItem](), now_ms(clock) + table.ahead_ms
    timed = [rule for rule in table.rules if rule.time_of is not None]
    async with patient_client(address, clock) as client:
        for key in (would.partition_key for would in standing.would[:KEYS_LOOKED_AT]):
            for rule in timed:
                query = _newest(table, rule.prefix, key)
                for item in (await client.call("Query", query)).body["Items"]:
                    sort = native(item[table.sort_key])
                    time_ms = rule.time_ms(sort) if table.rule_of(sort) is rule else None
                    if time_ms is not None and time_ms > latest_ms:
                        ahead_s = (time_ms - now_ms(clock)) / 1_000
                        found.append(FutureItem(key, str(sort), ahead_s))
    return found


def _newest(table: SpreadTable, prefix: str, key: str) -> dict[str, Any]:
    """Return the Query for the newest items of a key. Their sort keys begin with `prefix`."""
    names, values = {"#p": table.partition_key}, {":p": {"S": key}}
    condition = "#p = :p"
    if prefix:
        names["#s"], values[":s"] = table.sort_key, {"S": prefix}
        condition += " AND begins_with(#s, :s)"
    return {
        "TableName": table.name,
        "KeyConditionExpression": condition,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
        "ScanIndexForward": False,
        "Limit": NEWEST,
    }


async def complete(registry: Registry, table: str) -> None:
    """Record that all programs write through Heatsink from now on. Raises `InvalidSetting`."""
    if is_leaving(registry.view, table):
        raise InvalidSetting(
            f"table {table!r} has left this registry, which still has its old layouts: adopt it "
            "with another registry",
            field="table",
        )
    if completed_ms(registry.view, table) == float("inf"):
        await registry.keep_ahead(leads=False)
        await registry.publish([completion(table, registry.view.horizon_ms)], term=None)


async def check_fixed(registry: Registry, address: DynamoAddress, clock: Clock) -> None:
    """Raise `InvalidSetting` if a row under a bare key has a prefix with fixed buckets.

    Once the adoption is complete, Heatsink would look for such a row in a bucket.
    """
    known = recorded(registry.view, address.table)
    if known is None or not known.has_fixed:
        return
    rules = []
    for prefix, words in known.rules.items():
        kind, _, buckets = words.partition(" ")
        rules.append(
            fixed(prefix, buckets=int(buckets)) if kind == FIXED else unspread(prefix)
        )  # where other rules place rows makes no difference here
    table = SpreadTable(
        address.table, known.partition_key, known.sort_key, rules, sort_type=known.sort_type or "S"
    )
    places = ItemPlaces(table, registry.view, registry.meta.seed)
    async with patient_client(address, clock) as client:
        async for stray in fixed_strays(client, places):
            raise InvalidSetting(
                f"the row {native(stray.sort_key)!r} of {stray.partition_key!r} has a prefix with "
                "fixed buckets, but is not in a bucket: a program wrote it without Heatsink. Stop "
                "that program and run --move-strays, then complete the adoption",
                field="table",
            )


async def written_past(
    registry: Registry, address: DynamoAddress, declared: SpreadTable, clock: Clock
) -> list[Stray]:
    """Return at most 100 rows under bare keys that belong in buckets.

    Raises `InvalidSetting` if the registry has another declaration of the table.
    """
    check(registry.view, declared.name, record_of(declared))
    places = ItemPlaces(declared, registry.view, registry.meta.seed)
    found: list[Stray] = []
    async with patient_client(address, clock) as client:
        async for stray in strays(client, places, registry.view):
            found.append(stray)
            if len(found) == SHOWN_MAX:
                break
    return found


async def move_strays(
    registry: Registry,
    address: DynamoAddress,
    declared: SpreadTable,
    clock: Clock,
    save: Callable[[dict[str, Any]], object] | None,
) -> Repair:
    """Move rows that were written without Heatsink into their places.

    If a row's place holds another row with the same keys, the row in the place stays. The stray is
    given to `save` and then deleted. Without `save`, the stray stays too, and is reported as a
    conflict. May be repeated at any time.
    """
    check(registry.view, declared.name, record_of(declared))
    places = ItemPlaces(declared, registry.view, registry.meta.seed)
    keys = Keys(declared.name, declared.partition_key, declared.sort_key)
    counts = {"moved": 0, "merged": 0, "saved": 0}
    conflicts = []
    async with patient_client(address, clock) as client:
        mover = RowMover(client, keys)
        async for stray in strays(client, places, registry.view):
            key = {keys.partition: {"S": stray.partition_key}, keys.sort: stray.sort_key}
            row, found = await mover.read(key), places.keys_of(key, exactly=True)
            if row is None or found is None:
                continue
            moved = await mover.move(row, places.spot_of(found).name)
            if moved.outcome != "conflict":
                counts[moved.outcome] += 1
                continue
            if save is not None:
                save(row)
                if await mover.drop(row):
                    counts["saved"] += 1
                    continue
            conflicts.append(moved)
    return Repair(**counts, conflicts=conflicts)


async def leave(
    registry: Registry,
    address: DynamoAddress,
    clock: Clock,
    sweep: Sweep,
    tick: Callable[[], object] = lambda: None,
) -> Departure:
    """Record that a table leaves, and move all its rows back under the bare key.

    A process that does not know of the departure yet may still write into a bucket. So this
    function first waits until all processes know of the departure and their older calls have ended.
    Then it moves rows until a pass finds none. May be repeated at any time. Raises `Unavailable` if
    rows keep appearing.
    """
    check_no_indexes(registry, address.table)
    if not is_leaving(registry.view, address.table):
        await registry.publish([departure(address.table)], term=None)
    await settle(registry, clock, sweep.in_flight_s)
    known = recorded(registry.view, address.table)
    everything = sweep.everything or (known is not None and known.has_fixed)
    counts = Counter(moved=0, merged=0)
    async with patient_client(address, clock) as client:
        described = (await client.call("DescribeTable", {"TableName": address.table})).body
        keys = keys_in(described["Table"])
        mover = RowMover(client, keys)
        for _ in range(PASSES_MAX):
            conflicts, before = [], counts.total()
            rows = bucket_rows(client, keys, registry.view, everything)
            async for moved in _moves(mover, rows):
                tick()
                if moved.outcome == "conflict":
                    conflicts.append(moved)
                else:
                    counts[moved.outcome] += 1
            if counts.total() == before:
                return Departure(counts["moved"], counts["merged"], conflicts)
    raise Unavailable(
        f"rows keep appearing in buckets of table {address.table}: a program that does not follow "
        "the registry writes them. Stop it, and run this again"
    )


async def _moves(mover: RowMover, rows: AsyncIterator[Row]) -> AsyncIterator[Moved]:
    """Move rows under the bare key, several at a time, and yield what became of each."""
    group: list[Row] = []
    async for row in rows:
        group.append(row)
        if len(group) == PARALLEL:
            for moved in await _together(mover, group):
                yield moved
            group.clear()
    for moved in await _together(mover, group):
        yield moved


async def _together(mover: RowMover, group: list[Row]) -> list[Moved]:
    """Move some rows at the same time. If a move fails, raise its error when all have ended."""
    ended = await asyncio.gather(*map(mover.move, group), return_exceptions=True)
    moves = [one for one in ended if isinstance(one, Moved)]
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return moves


def keys_in(described: dict[str, Any]) -> Keys:
    names = {one["KeyType"]: one["AttributeName"] for one in described["KeySchema"]}
    if "RANGE" not in names:
        raise InvalidSetting(
            f"table {described['TableName']!r} has no sort key, so it was never spread",
            field="table",
        )
    return Keys(described["TableName"], names["HASH"], names["RANGE"])
