"""Checks of transactions: atomicity, cancellation reasons, tokens and limits."""

from __future__ import annotations

import asyncio

from .ground import Ground, Item, Reply, key
from .observed import Assumption, Observed, all_as

ITEMS_MAX = 100
AT_ONCE = 20
INVALID = "ValidationException"
ADD = {"UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}


def _add(name: str, sort: str) -> Item:
    return {"Update": {"TableName": name, "Key": key("a", sort), **ADD}}


def _put(name: str, sort: str, **more: str) -> Item:
    return {"Put": {"TableName": name, "Item": key("a", sort), **more}}


async def _write(ground: Ground, actions: list[Item], **more: str) -> Reply:
    return await ground.send("TransactWriteItems", TransactItems=actions, **more)


async def _number(ground: Ground, name: str, sort: str) -> str:
    reply = await ground.send("GetItem", TableName=name, Key=key("a", sort), ConsistentRead=True)
    return str(reply.body.get("Item", {}).get("n", {}).get("N", "none"))


async def cancellations(ground: Ground) -> Observed:
    name = await ground.table("cancelled")
    await ground.send("PutItem", TableName=name, Item=key("a", "taken"))
    absent = {"ConditionExpression": "attribute_not_exists(p)"}
    old = {**absent, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    actions = [_add(name, "n"), _put(name, "taken", **old), _put(name, "free", **absent)]
    reply = await _write(ground, actions)
    reasons = reply.failure.CancellationReasons
    seen = [
        reply.outcome,
        *(str(reason.get("Code")) for reason in reasons),
        "with Item" if reasons and reasons[1].get("Item") == key("a", "taken") else "without Item",
        "nothing written" if await _number(ground, name, "n") == "none" else "partly written",
    ]
    wanted = ["TransactionCanceledException", "None", "ConditionalCheckFailed", "None"]
    return all_as([*wanted, "with Item", "nothing written"], seen)


async def tokens(ground: Ground) -> Observed:
    name = await ground.table("tokens")
    token = {"ClientRequestToken": ground.token()}
    first = await _write(ground, [_add(name, "n")], **token)
    again = await _write(ground, [_add(name, "n")], **token)
    other = await _write(ground, [_add(name, "m")], **token)
    count = await _number(ground, name, "n")
    wanted = ["accepted", "accepted", "IdempotentParameterMismatchException", "applied 1 times"]
    seen = [first.outcome, again.outcome, other.outcome, f"applied {count} times"]
    return all_as(wanted, seen)


async def sizes(ground: Ground) -> Observed:
    name = await ground.table("hundred")
    actions = [_put(name, f"{number:03}") for number in range(ITEMS_MAX + 1)]
    twice = [_put(name, "x"), _add(name, "x")]
    replies = [await _write(ground, some) for some in (actions[:ITEMS_MAX], actions, twice)]
    return all_as(["accepted", INVALID, INVALID], [reply.outcome for reply in replies])


async def reads(ground: Ground) -> Observed:
    name = await ground.table("reads")
    await _write(ground, [_put(name, "here")])
    gets = [{"Get": {"TableName": name, "Key": key("a", sort)}} for sort in ("gone", "here")]
    reply = await ground.send("TransactGetItems", TransactItems=gets)
    seen = ["with Item" if "Item" in one else "empty" for one in reply.body["Responses"]]
    return all_as(["empty", "with Item"], seen)


async def conflicts(ground: Ground) -> Observed:
    """Concurrent transactions on one item: each is applied once or cancelled as a conflict."""
    name = await ground.table("conflicts")
    replies = await asyncio.gather(
        *(_write(ground, [_add(name, "n"), _add(name, "m")]) for _ in range(AT_ONCE))
    )
    done = sum(not reply.code for reply in replies)
    codes = {
        str(reason.get("Code"))
        for reply in replies
        for reason in reply.failure.CancellationReasons
        if reason.get("Code") != "None"
    }
    others = {reply.code for reply in replies} - {"", "TransactionCanceledException"}
    applied = await _number(ground, name, "n")
    text = f"{done} of {AT_ONCE} done, {applied} applied, reasons: {sorted(codes) or 'none'}"
    known = {"TransactionInProgressException", "ThrottlingException"}
    holds = applied == str(done) and codes <= {"TransactionConflict"} and others <= known
    return Observed(holds, text)


ASSUMPTIONS = (
    Assumption(
        "cancellation reasons",
        "one reason per action in order, `None` where nothing was wrong, the item with ALL_OLD, "
        "nothing written",
        "the registry: stores/dynamodb/client.py; TransactWriteItems of the door",
        cancellations,
        writes=10,
        reads=1,
    ),
    Assumption(
        "idempotency tokens",
        "a repeated request is not applied again; other parameters are refused",
        "the door rewrites a transaction the same way for the same token",
        tokens,
        writes=6,
        reads=3,
    ),
    Assumption(
        "limits of transactions",
        "100 actions; one more or one item twice is refused",
        "checks that the door adds count; entries of the registry's log",
        sizes,
        writes=210,
    ),
    Assumption(
        "transactional reads",
        "responses in the order of the request, empty for a missing item",
        "values of counters: stores/dynamodb/counters.py",
        reads,
        writes=2,
        reads=4,
    ),
    Assumption(
        "conflicts",
        "a conflicting transaction is cancelled with TransactionConflict, or applied once",
        "retries: spread/backoff.py",
        conflicts,
        writes=200,
        reads=1,
    ),
)
