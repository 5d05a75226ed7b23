"""Bugs that somebody might write into the store on DynamoDB, each planted for one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any
from unittest.mock import patch

from msgspec import structs

from heatsink.registry.decisions import LogEntry, Reading, Snapshot
from heatsink.spread.store import Running
from heatsink.stores.dynamodb import counters, registry, table
from heatsink.stores.dynamodb import log as puts
from heatsink.stores.dynamodb.client import Item
from heatsink.stores.dynamodb.counters import DynamoCounters
from heatsink.stores.dynamodb.log import DynamoLog
from heatsink.stores.dynamodb.registry import DynamoRegistry
from heatsink.stores.dynamodb.table import KEYS, LOG, SHARE, TOKEN, DynamoTable, key, number
from tests.emulator.simulation.bugs import BUGS as ENGINE_BUGS
from tests.planted import Bugs

BUGS = bug = Bugs()
for name in ("a_write_goes_to_the_old_partition_during_a_move", "a_merge_loses_the_right_side"):
    BUGS[name] = ENGINE_BUGS[name]


@bug
def a_put_overwrites_what_is_there() -> Iterator[None]:
    """A put that lands late brings a deleted row back."""
    with patch.object(puts, "CONDITIONS", {"ReturnConsumedCapacity": "TOTAL"}):
        yield


@bug
def rows_are_read_from_replicas() -> Iterator[None]:
    never = property(lambda _: False, lambda *_: None)
    with patch.object(DynamoLog, "_consistent", never, create=True):
        yield


@bug
def a_page_that_is_not_full_is_taken_for_the_last() -> Iterator[None]:
    """Deleted rows count against the limit of a request, and there is more behind them."""

    page = DynamoLog._page

    async def last(self: DynamoLog, *asked: Any) -> tuple[list[Item], None]:
        items, _ = await page(self, *asked)
        return items, None

    with patch.object(DynamoLog, "_page", last):
        yield


@bug
def a_counter_adds_and_then_remembers_the_token() -> Iterator[None]:
    """Two requests in place of a transaction: whoever dies in between counts twice."""

    async def add(
        self: DynamoCounters, partition: str, token: bytes, _time_ms: int, amount: int
    ) -> int | None:
        known = await self._table.get(key(partition, TOKEN + token), consistent=True)
        if known is not None:
            return amount
        update = {
            "Key": key(partition, SHARE),
            "UpdateExpression": "ADD v :a, u :one",
            "ExpressionAttributeValues": {":a": number(amount), ":one": number(1)},
        }
        await self._table.call("UpdateItem", update)
        record = {**key(partition, TOKEN + token), "a": number(amount)}
        await self._table.call("PutItem", {"Item": record})
        return None

    with patch.object(DynamoCounters, "add", add):
        yield


@bug
def running_totals_are_overwritten() -> Iterator[None]:
    """A total that lands late takes the place of a larger one."""

    async def raise_to(
        self: DynamoCounters, partition: str, writer: bytes, time_ms: int, to: Running
    ) -> None:
        totals = [number(to.raised), number(to.lowered), number(0), number(time_ms)]
        request = {
            "Key": key(partition, SHARE),
            "UpdateExpression": "SET #w = :w ADD u :one",
            "ExpressionAttributeNames": {"#w": counters._attribute(writer)},
            "ExpressionAttributeValues": {":w": {"L": totals}, ":one": number(1)},
        }
        await self._table.call("UpdateItem", request)

    with patch.object(DynamoCounters, "raise_to", raise_to):
        yield


@bug
def a_fold_does_not_mind_what_was_added_meanwhile() -> Iterator[None]:
    def replace(_before: Item, after: Item) -> Item:
        return {"Put": {"Item": {**after, "u": number(1)}}}

    with patch.object(counters, "_replace", replace):
        yield


@bug
def the_closed_time_is_set_whatever_it_was() -> Iterator[None]:
    async def advance(self: DynamoRegistry, closed_ms: int) -> Reading:
        return await self._update(
            "SET c = :c", "c > :none", {":c": number(closed_ms), ":none": number(-1)}
        )

    with patch.object(DynamoRegistry, "advance", advance):
        yield


@bug
def a_snapshot_skips_shards() -> Iterator[None]:
    """A process that starts does not know of all keys that were ever spread."""
    with patch.object(registry, "KEYS", KEYS[::2]):
        yield


@bug
def a_snapshot_reads_its_version_last() -> Iterator[None]:
    """Shards that were read before a commit lack its epochs, and its version says otherwise."""
    snapshot = DynamoRegistry.snapshot

    async def late(self: DynamoRegistry) -> Snapshot:
        found = await snapshot(self)
        return structs.replace(found, version=(await self.meta()).meta.version)

    with patch.object(DynamoRegistry, "snapshot", late):
        yield


@bug
def a_copy_is_put_into_another_shard_each_time() -> Iterator[None]:
    """As with Python's own hash, which differs between processes. Old copies stay behind."""
    shards = cycle(KEYS)
    with patch.object(table, "keys_shard", lambda _: next(shards)):
        yield


@bug
def a_read_of_the_log_asks_one_shard() -> Iterator[None]:
    yield from _first_shard_only(lambda shards: isinstance(shards, list) and shards[0] in LOG)


@bug
def only_one_shard_of_the_log_is_trimmed() -> Iterator[None]:
    yield from _first_shard_only(lambda shards: shards == LOG)


def _first_shard_only(applies: Callable[[Sequence[str]], bool]) -> Iterator[None]:
    """Some reads ask the first of their shards alone."""
    everything = DynamoTable.everything

    async def one(self: DynamoTable, shards: Sequence[str], *between: Item) -> list[Item]:
        return await everything(self, shards[:1] if applies(shards) else shards, *between)

    with patch.object(DynamoTable, "everything", one):
        yield


def _without(condition: str) -> Iterator[None]:
    """A commit leaves out one of its conditions on META."""
    raise_version = registry._raise_version

    def careless(entry: LogEntry, term: int | None) -> Item:
        write = raise_version(entry, term)
        held = write["Update"]["ConditionExpression"]
        either = held.replace(condition, f"({condition} OR NOT {condition})")
        write["Update"]["ConditionExpression"] = either
        return write

    with patch.object(registry, "_raise_version", careless):
        yield


@bug
def a_commit_does_not_look_at_the_version() -> Iterator[None]:
    yield from _without("v = :before")


@bug
def a_commit_does_not_look_at_the_closed_time() -> Iterator[None]:
    yield from _without("c BETWEEN :earliest AND :start")
