"""Checks of the service itself: headers, clocks, tables and permissions."""

from __future__ import annotations

from zlib import crc32

from heatsink.primitives.clock import now_ms
from heatsink.stores.dynamodb.client import milliseconds_of

from .ground import KEYS, READS, WRITES, Ground, Item, NotAllowed, key
from .observed import Assumption, Observed, all_as

CLOCK_S_MAX = 5.0
ROLES = {
    "app server": ("DescribeTable", "GetItem", "Query", "PutItem", "UpdateItem", "BatchWriteItem"),
    "coordinator": ("DescribeTable", "GetItem", "PutItem", "Query", "UpdateItem", "BatchWriteItem"),
    "operator": ("DescribeTable", "GetItem", "Query", "Scan", "PutItem", "DeleteItem"),
    "table create": ("CreateTable", "DescribeTable", "UpdateTimeToLive"),
    "door and attach": (*sorted(READS | WRITES), "DescribeTable"),
}
"""The operations of each role, as docs/how-to/aws.md lists them."""
MISSING = "heatsink-verify-no-such-table"


async def dates(ground: Ground) -> Observed:
    good = await ground.send("ListTables", Limit=1)
    bad = await ground.send("DescribeTable", TableName=MISSING)
    if not (good.raw.date and bad.raw.date):
        return Observed(False, "an answer without the header Date")
    off_s = (now_ms(ground.clock) - milliseconds_of(bad.raw.date)) / 1000
    text = f"Date on success and error; this clock is {off_s:+.1f} s from it"
    return Observed(abs(off_s) <= CLOCK_S_MAX, text)


async def checksums(ground: Ground) -> Observed:
    replies = [
        await ground.send("ListTables", Limit=1),
        await ground.send("DescribeTable", TableName=MISSING),
    ]
    right = [one.raw.checksum == str(crc32(one.raw.body)).encode() for one in replies]
    text = "the CRC-32 of the body, on success and error" if all(right) else "missing or wrong"
    return Observed(all(right), text)


async def schemas(ground: Ground) -> Observed:
    name = await ground.table("schema")
    described = (await ground.send("DescribeTable", TableName=name)).body["Table"]
    schema = [one["AttributeName"] + ":" + one["KeyType"] for one in described["KeySchema"]]
    kinds = all(kind in described["AttributeDefinitions"] for kind in KEYS)
    return Observed(
        schema == ["p:HASH", "s:RANGE"] and kinds,
        f"KeySchema {', '.join(schema)}; AttributeDefinitions {'complete' if kinds else 'differ'}",
    )


async def names_in_use(ground: Ground) -> Observed:
    name = await ground.table("twice")
    request = {"BillingMode": "PAY_PER_REQUEST", "AttributeDefinitions": KEYS[:1]}
    schema = [{"AttributeName": "p", "KeyType": "HASH"}]
    again = await ground.send("CreateTable", TableName=name, KeySchema=schema, **request)
    missing = await ground.send("GetItem", TableName=MISSING, Key=key("a"))
    wanted = ["ResourceInUseException", "ResourceNotFoundException"]
    return all_as(wanted, [again.outcome, missing.outcome])


async def permissions(ground: Ground) -> Observed:
    """Call every operation of every role once, and name the roles that lack one."""
    name = await ground.table("roles")
    await _call_all(ground, name)
    lacking = {
        role: missing
        for role, operations in ROLES.items()
        if (missing := [one for one in operations if one in ground.denied])
    }
    if not lacking:
        return Observed(True, f"the credentials suffice for: {', '.join(ROLES)}")
    text = "; ".join(f"{role} lacks {', '.join(missing)}" for role, missing in lacking.items())
    return Observed(False, text)


async def _call_all(ground: Ground, name: str) -> None:
    item, request = key("roles"), {"TableName": name, "Key": key("roles")}
    query = {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": {":p": item["p"]}}
    batch = {name: [{"PutRequest": {"Item": item}}]}
    ttl = {"Enabled": True, "AttributeName": "ttl"}
    calls: dict[str, Item] = {
        "PutItem": {"TableName": name, "Item": item},
        "GetItem": request,
        "UpdateItem": request,
        "Query": {"TableName": name, **query},
        "Scan": {"TableName": name},
        "BatchWriteItem": {"RequestItems": batch},
        "BatchGetItem": {"RequestItems": {name: {"Keys": [item]}}},
        "TransactWriteItems": {"TransactItems": [{"Put": {"TableName": name, "Item": item}}]},
        "TransactGetItems": {"TransactItems": [{"Get": request}]},
        "DeleteItem": request,
        "UpdateTimeToLive": {"TableName": name, "TimeToLiveSpecification": ttl},
    }
    for operation, payload in calls.items():
        try:
            await ground.send(operation, **payload)
        except NotAllowed:
            continue


ASSUMPTIONS = (
    Assumption(
        "clock",
        f"every answer has a Date, and this machine's clock is within {CLOCK_S_MAX:g} s of it",
        "the closed time: stores/dynamodb/registry.py",
        dates,
    ),
    Assumption(
        "checksum",
        "x-amz-crc32 is the CRC-32 of the body",
        "SDKs behind heatsink door check it",
        checksums,
    ),
    Assumption(
        "table description",
        "KeySchema as it was sent; all AttributeDefinitions",
        "connect refuses other tables: stores/dynamodb/table.py",
        schemas,
    ),
    Assumption(
        "table names",
        "ResourceInUseException, ResourceNotFoundException",
        "heatsink table create; errors: stores/dynamodb/client.py",
        names_in_use,
    ),
    Assumption(
        "permissions",
        "each role has the operations that docs/how-to/aws.md lists",
        "every process",
        permissions,
        writes=10,
        reads=10,
    ),
)
