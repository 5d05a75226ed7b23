"""Checks of throttling: errors and their reasons, bursts, indexes and batches.

A table with one unit a second is over its limit soon after its burst is used up. On an on-demand
table, a hot key exceeds the limit of its partition. That takes some thousand units.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from .ground import KEY_SCHEMA, KEYS, Ground, Item, Reply, key, throughput
from .observed import Assumption, Observed

BURST_S = 300
PARTITION_UNITS = 1_000
EXCEEDED, SCALING = "ProvisionedThroughputExceededException", "ThrottlingException"
SMALL_KB, SMALL_TRIES = 20, 80
HOT_KB, HOT_TRIES, AT_ONCE = 100, 400, 8
INDEX = "by-tag"
INDEX_UNITS = 50
SPARE_KB = 10


def _large(partition: str, sort: str, kilobytes: int, **more: Item) -> Item:
    spare = 200  # for the keys, so that the item costs as many units as it has kilobytes
    return {**key(partition, sort), "b": {"S": "b" * (kilobytes * 1_024 - spare)}, **more}


async def _until_throttled(
    send: Callable[[int], Awaitable[Reply]], tries: int, at_once: int = 1
) -> tuple[Reply | None, int]:
    """Call `send` until a request is throttled, at most `tries` times.

    Returns the throttled answer, and how many requests were accepted before.
    """
    accepted = 0
    for first in range(0, tries, at_once):
        replies = await asyncio.gather(*(send(first + place) for place in range(at_once)))
        accepted += sum(not reply.code for reply in replies)
        for reply in replies:
            if reply.is_throttled:
                return reply, accepted
            if reply.code:
                return reply, accepted
    return None, accepted


def _judged(reply: Reply | None, code: str, reason: str, resource: str, seen: str) -> Observed:
    if reply is None:
        return Observed(None, f"never throttled: {seen}")
    if not reply.is_throttled:
        return Observed(False, f"{reply.code}: {reply.failure.text}")
    reasons = [str(one.get("reason")) for one in reply.reasons]
    named = [str(one.get("resource", "")) for one in reply.reasons]
    holds = reply.code == code and reason in reasons
    where = "" if any(name.endswith(resource) for name in named) else f", but names {named}"
    text = f"{reply.code}, {', '.join(reasons) or 'no reason'}; {seen}{where}"
    return Observed(holds and not where, text)


async def provisioned_writes(ground: Ground) -> Observed:
    name = await ground.table("slow-writes", 1)

    async def put(number: int) -> Reply:
        item = _large("a", str(number), SMALL_KB)
        return await ground.send("PutItem", TableName=name, Item=item)

    reply, accepted = await _until_throttled(put, SMALL_TRIES)
    seen = f"after {accepted * SMALL_KB} units"
    reason = "TableWriteProvisionedThroughputExceeded"
    judged = _judged(reply, EXCEEDED, reason, f"table/{name}", seen)
    too_many = accepted * SMALL_KB > 2 * BURST_S
    return Observed(False, f"{judged.text}: more than twice the burst") if too_many else judged


async def provisioned_reads(ground: Ground) -> Observed:
    name = await ground.table("slow-reads", 5)
    await ground.send("PutItem", TableName=name, Item=_large("a", "a", 4 * 100))

    async def get(_: int) -> Reply:
        return await ground.send("GetItem", TableName=name, Key=key("a"), ConsistentRead=True)

    reply, accepted = await _until_throttled(get, SMALL_TRIES)
    reason = "TableReadProvisionedThroughputExceeded"
    return _judged(reply, EXCEEDED, reason, f"table/{name}", f"after {accepted * 100} units")


async def cancelled(ground: Ground) -> Observed:
    """A throttled transaction is cancelled with a reason that says so."""
    name = await ground.table("slow-transactions", 1)

    async def write(number: int) -> Reply:
        put = {"Put": {"TableName": name, "Item": _large("a", str(number), SMALL_KB)}}
        return await ground.send("TransactWriteItems", TransactItems=[put])

    reply, _ = await _until_throttled(write, SMALL_TRIES)
    if reply is None:
        return Observed(None, "never throttled")
    codes = [str(reason.get("Code")) for reason in reply.failure.CancellationReasons]
    text = f"{reply.code} {codes}" if codes else f"{reply.code}: {reply.failure.text}"
    return Observed(codes in (["ProvisionedThroughputExceeded"], ["ThrottlingError"]), text)


async def unprocessed(ground: Ground) -> Observed:
    """If a part of a batch is throttled, the batch returns that part. If all of it is, it fails."""
    name = await ground.table("slow-batches", 1)
    partly, whole = False, ""
    for first in range(0, SMALL_TRIES, 5):
        puts = [
            {"PutRequest": {"Item": _large("a", str(first + place), SMALL_KB)}}
            for place in range(5)
        ]
        reply = await ground.send("BatchWriteItem", RequestItems={name: puts})
        partly = partly or bool(reply.body.get("UnprocessedItems"))
        if reply.code:
            whole = reply.code
            break
    text = f"{'UnprocessedItems' if partly else 'no UnprocessedItems'}; then {whole or 'no error'}"
    if not whole and not partly:
        return Observed(None, f"never throttled: {text}")
    return Observed(whole in ("", EXCEEDED), text)


def _indexed(units: int | None) -> dict[str, Any]:
    index: Item = {
        "IndexName": INDEX,
        "KeySchema": [{"AttributeName": "tag", "KeyType": "HASH"}, KEY_SCHEMA[1]],
        "Projection": {"ProjectionType": "ALL"},
    }
    if units is not None:
        index["ProvisionedThroughput"] = throughput(units)
    tag = {"AttributeName": "tag", "AttributeType": "S"}
    return {"AttributeDefinitions": [*KEYS, tag], "GlobalSecondaryIndexes": [index]}


async def _hot_index(
    ground: Ground, name: str, kilobytes: int, tries: int, at_once: int
) -> tuple[Reply | None, int]:
    """Write items of many partition keys, all with one value of the index."""

    async def put(number: int) -> Reply:
        item = _large(f"k{number}", "a", kilobytes, tag={"S": "hot"})
        return await ground.send("PutItem", TableName=name, Item=item)

    return await _until_throttled(put, tries, at_once)


async def provisioned_index(ground: Ground) -> Observed:
    """An index over its limit throttles writes to the table, and the error names the index."""
    name = await ground.table("slow-index", INDEX_UNITS, **_indexed(1))
    reply, accepted = await _hot_index(ground, name, SPARE_KB, 2 * SMALL_TRIES, 1)
    reason = "IndexWriteProvisionedThroughputExceeded"
    seen = f"after {accepted * SPARE_KB} units"
    return _judged(reply, EXCEEDED, reason, f"table/{name}/index/{INDEX}", seen)


async def hot_key(ground: Ground) -> Observed:
    name = await ground.table("hot-key")

    async def put(number: int) -> Reply:
        item = _large("hot", str(number % AT_ONCE), HOT_KB)
        return await ground.send("PutItem", TableName=name, Item=item)

    start_s = ground.clock.monotonic_s()
    reply, accepted = await _until_throttled(put, HOT_TRIES, AT_ONCE)
    seconds = max(ground.clock.monotonic_s() - start_s, 0.001)
    seen = f"after {accepted * HOT_KB:,} units in {seconds:.1f} s"
    return _judged(reply, SCALING, "TableWriteKeyRangeThroughputExceeded", f"table/{name}", seen)


async def hot_value(ground: Ground) -> Observed:
    name = await ground.table("hot-index", **_indexed(None))
    reply, accepted = await _hot_index(ground, name, HOT_KB, HOT_TRIES, AT_ONCE)
    seen = f"after {accepted * HOT_KB:,} units"
    resource = f"table/{name}/index/{INDEX}"
    return _judged(reply, SCALING, "IndexWriteKeyRangeThroughputExceeded", resource, seen)


ASSUMPTIONS = (
    Assumption(
        "throttled writes and bursts",
        f"{EXCEEDED}, TableWriteProvisionedThroughputExceeded, after at most some {BURST_S} s of "
        "unused units",
        "more buckets do not help a whole table: stores/dynamodb/client.py",
        provisioned_writes,
        writes=SMALL_KB * SMALL_TRIES,
        dollars=0.002,
    ),
    Assumption(
        "throttled reads",
        f"{EXCEEDED}, TableReadProvisionedThroughputExceeded",
        "heat of reads",
        provisioned_reads,
        writes=400,
        reads=100 * SMALL_TRIES,
        dollars=0.01,
    ),
    Assumption(
        "throttled transactions",
        "cancelled with ProvisionedThroughputExceeded or ThrottlingError",
        "retries: spread/backoff.py",
        cancelled,
        writes=2 * SMALL_KB * SMALL_TRIES,
        dollars=0.002,
    ),
    Assumption(
        "throttled batches",
        "UnprocessedItems for a part; an error for the whole",
        "BatchWriteItem of the door",
        unprocessed,
        writes=SMALL_KB * SMALL_TRIES,
        dollars=0.002,
    ),
    Assumption(
        "back-pressure of an index",
        f"{EXCEEDED}, IndexWriteProvisionedThroughputExceeded, names the index",
        "hot indexes: docs/how-to/hot-index.md",
        provisioned_index,
        writes=2 * SPARE_KB * 2 * SMALL_TRIES,
        dollars=0.1,
    ),
    Assumption(
        "hot key of an on-demand table",
        f"{SCALING}, TableWriteKeyRangeThroughputExceeded, from {PARTITION_UNITS:,} units/s on",
        "the limit of a bucket: spread/policy.py",
        hot_key,
        writes=HOT_KB * HOT_TRIES,
    ),
    Assumption(
        "hot value of an on-demand index",
        f"{SCALING}, IndexWriteKeyRangeThroughputExceeded, names the index",
        "hot indexes: docs/how-to/hot-index.md",
        hot_value,
        writes=2 * HOT_KB * HOT_TRIES,
    ),
)
