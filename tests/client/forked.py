"""A program that opens a client, forks, and tells what the client says in the child.

`python -m tests.client.forked KIND STORE [QUEUE]`, where KIND is how the child calls: `same-loop`,
`new-loop`, `sync` or `boto`. Each line of the output is a call, and what it raised or returned. The
last one is of the parent, whose client goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from random import Random
from time import time
from typing import Any

import heatsink
from heatsink.primitives.ids import Minter, Uuid7

HANG_S = 5


async def forty_two() -> int:
    return 42


def calls_of(hs: Any, counts: Any, load: Any = forty_two) -> dict[str, Callable[[], Any]]:
    """Every way into a client, through parts that were taken from it before."""
    log, counters, reads, bulk, timelines = hs.log, hs.counters, hs.reads, hs.bulk, hs.timelines
    raw, _ = Minter(Uuid7(), Random(1)).mint(int(time() * 1000), 2**47)
    id = Uuid7().value(raw)
    return {
        "append": lambda: log.append("k", b"child"),
        "append again": lambda: log.append("k", b"child", id=id),
        "page": lambda: log.page("k"),
        "page that is kept": lambda: log.page("k", fresh_for=600),
        "get": lambda: log.get("k", id),
        "delete": lambda: log.delete("k", id),
        "erase": lambda: log.erase("k"),
        "add": lambda: counters.add("c"),
        "value": lambda: counters.value("c"),
        "fold": lambda: counters.fold("c"),
        "buffered add": lambda: counts.add("b"),
        "read": lambda: reads.get("cold", load),
        "read that is kept": lambda: reads.get("kept", load, fresh_for=600, stale_for=600),
        "forget": lambda: reads.forget("kept"),
        "pin": lambda: hs.pin("k", buckets=2, reason="child"),
        "unpin": lambda: hs.unpin("k"),
        "explain": lambda: hs.explain("k"),
        "hottest": lambda: hs.hottest(),
        "decisions": lambda: hs.decisions(),
        "partitions": lambda: hs.queue_partitions(),
        "submit": lambda: bulk.submit("touch", [1]),
        "list": lambda: bulk.list(),
        "plan": lambda: bulk.plan(),
        "follow": lambda: timelines.follow("u", "a"),
        "post": lambda: timelines.post("a", b"child"),
        "home": lambda: timelines.home("u"),
    }


async def awaited(call: Callable[[], Any]) -> Any:
    result = call()
    return await asyncio.wait_for(result, HANG_S) if asyncio.iscoroutine(result) else result


def outcome(call: Callable[[], Any]) -> str:
    try:
        return f"returned {call()!r}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def tell(name: str, outcome: str) -> None:
    sys.stdout.write(f"{name}: {outcome}\n")
    sys.stdout.flush()


def told_by_child(calls: dict[str, Callable[[], Any]]) -> None:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        for name, call in calls.items():
            signal.alarm(HANG_S + 2)
            tell(name, outcome(call))
        os._exit(0)
    os.waitpid(child, 0)


def hang(*_: object) -> None:
    raise TimeoutError("it hangs")


async def opened(url: str, options: dict[str, Any]) -> tuple[heatsink.Heatsink, Any]:
    hs = await heatsink.connect(url, **options).__aenter__()
    counts = await hs.counters.buffered().__aenter__()
    await warm(hs)
    return hs, counts


async def warm(hs: heatsink.Heatsink) -> None:
    await hs.log.append("k", b"parent")
    await hs.log.page("k", fresh_for=600)
    await hs.reads.get("kept", forty_two, fresh_for=600, stale_for=600)
    await hs.bulk.plan()


def asynchronous(kind: str, url: str, options: dict[str, Any]) -> None:
    loop = asyncio.new_event_loop()
    hs, counts = loop.run_until_complete(opened(url, options))
    run = loop.run_until_complete if kind == "same-loop" else asyncio.run

    def on_loop(call: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: run(awaited(call))

    calls = {name: on_loop(call) for name, call in calls_of(hs, counts).items()}
    told_by_child({**calls, "close": on_loop(hs.close)})
    tell("parent", outcome(lambda: len(loop.run_until_complete(hs.log.page("k")).entries)))
    loop.run_until_complete(counts.__aexit__())
    loop.run_until_complete(hs.close())


def blocking(url: str, options: dict[str, Any]) -> None:
    with heatsink.connect_sync(url, **options) as hs, hs.counters.buffered() as counts:
        hs.log.append("k", b"parent")
        hs.log.page("k", fresh_for=600)
        hs.reads.get("kept", lambda: 42, fresh_for=600, stale_for=600)
        hs.bulk.plan()
        told_by_child({**calls_of(hs, counts, lambda: 42), "close": hs.close})
        tell("parent", outcome(lambda: len(hs.log.page("k").entries)))


def boto(registry: str) -> None:
    # boto3 takes half a second, which the other kinds need not spend
    from boto3.dynamodb.conditions import Key

    from heatsink.boto import Table
    from heatsink.testing.dynamodb import LocalDynamoDB

    names: dict[str, Any] = {"partition_key": "room", "sort_key": "sent"}
    item = {"room": "k", "sent": 1}
    with (
        LocalDynamoDB() as dynamodb,
        Table(
            chat_in(dynamodb.resource()), **names, time_of=lambda sent: sent, registry=registry
        ) as it,
    ):
        calls = {
            "put": lambda: it.put_item(Item=item),
            "get": lambda: it.get_item(Key=item),
            "delete": lambda: it.delete_item(Key=item),
            "query": lambda: it.query(KeyConditionExpression=Key("room").eq("k")),
            "explain": lambda: it.explain("k"),
            "pin": lambda: it.pin("k", buckets=2, reason="child"),
            "close": it.close,
        }
        told_by_child(calls)
        tell("parent", outcome(lambda: it.explain("k").layout.buckets))


def chat_in(resource: Any) -> Any:
    return resource.create_table(
        TableName="chat",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": "room", "KeyType": "HASH"},
            {"AttributeName": "sent", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "room", "AttributeType": "S"},
            {"AttributeName": "sent", "AttributeType": "N"},
        ],
    )


def main(kind: str, url: str, queue: str = "") -> None:
    signal.signal(signal.SIGALRM, hang)
    options = {"queue": queue} if queue else {}
    if kind == "sync":
        blocking(url, options)
    elif kind == "boto":
        boto(url)
    else:
        asynchronous(kind, url, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
