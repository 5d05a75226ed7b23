"""Finds programs that write to a table without Heatsink, and keeps them out.

DynamoDB does not say who wrote an item. There are two other sources. CloudTrail names the role of
every write, if it records data events. And a row under the bare key that belongs in a bucket was
written without Heatsink. Such a row has a key that is spread, or a prefix with fixed buckets.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from heatsink.door.places import ItemPlaces, application_key
from heatsink.errors import InvalidSetting
from heatsink.primitives.subjects import Kind, subject_of
from heatsink.registry.decisions import View

from .patient import Caller

WRITES = (
    *("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"),
    *("ExecuteStatement", "BatchExecuteStatement", "ExecuteTransaction", "ImportTable"),
)
ACTIONS = (
    *("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"),
    *("PartiQLInsert", "PartiQLUpdate", "PartiQLDelete"),
)
SERVICE = "dynamodb.amazonaws.com"
GZIP = b"\x1f\x8b"


class ForeignWriter(msgspec.Struct):
    """A role or user that wrote to the table without Heatsink, according to CloudTrail."""

    who: str
    writes: int
    operations: list[str]
    last: str
    agent: str


class _Trail(msgspec.Struct):
    Records: list[dict[str, Any]]


def writers_in(files: Iterable[Path], table: str, roles: Iterable[str]) -> list[ForeignWriter]:
    """Return who wrote to a table without Heatsink, according to log files of CloudTrail.

    `files` are log files as CloudTrail stores them, gzipped or not. `roles` are the ARNs of roles
    that write through Heatsink. Raises `InvalidSetting` for a file that is not from CloudTrail.
    """
    ours, found = set(roles), dict[str, ForeignWriter]()
    for event in (event for file in files for event in _events(file)):
        if event.get("eventSource") != SERVICE or event.get("eventName") not in WRITES:
            continue
        who = _role_of(event.get("userIdentity") or {})
        if event.get("errorCode") or who in ours or not _concerns(event, table):
            continue
        writer = found.setdefault(who, ForeignWriter(who, 0, [], "", ""))
        writer.writes += 1
        if event["eventName"] not in writer.operations:
            writer.operations.append(event["eventName"])
        if str(event.get("eventTime")) >= writer.last:
            writer.last, writer.agent = str(event.get("eventTime")), str(event.get("userAgent"))
    return sorted(found.values(), key=lambda writer: -writer.writes)


def _events(file: Path) -> Iterator[dict[str, Any]]:
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if content.startswith(GZIP) else content
        yield from msgspec.json.decode(content, type=_Trail).Records
    except (OSError, EOFError, msgspec.MsgspecError, ValueError) as error:
        raise InvalidSetting(
            f"{file} is no log file of CloudTrail: {error}", field="trail"
        ) from None


def _role_of(identity: dict[str, Any]) -> str:
    """Return the ARN of the role or user behind a call. Sessions of a role count as this role."""
    issuer = (identity.get("sessionContext") or {}).get("sessionIssuer") or {}
    return str(issuer.get("arn") or identity.get("arn") or identity.get("invokedBy") or "unknown")


def _concerns(event: dict[str, Any], table: str) -> bool:
    parameters = event.get("requestParameters") or {}
    if parameters.get("tableName") in (table, f"table/{table}"):
        return True
    ends = f":table/{table}"
    return any(str(one.get("ARN", "")).endswith(ends) for one in event.get("resources") or ())


def only_writers(table_arn: str, roles: list[str]) -> dict[str, Any]:
    """Return a policy of the table that lets only these roles write to it.

    This is a resource-based policy, which `aws dynamodb put-resource-policy` sets. It only denies:
    it grants no permission.
    """
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "OnlyHeatsinkWrites",
                "Effect": "Deny",
                "Principal": "*",
                "Action": [f"dynamodb:{action}" for action in ACTIONS],
                "Resource": table_arn,
                "Condition": {"ArnNotEquals": {"aws:PrincipalArn": roles}},
            }
        ],
    }


class Stray(msgspec.Struct):
    """A row under the bare key that belongs in a bucket: it was written without Heatsink."""

    partition_key: str
    sort_key: Any


def spread_keys(view: View, table: str) -> list[str]:
    """Return the partition keys of a table that have, or had, several buckets."""
    start = f"{table}/"
    subjects = (subject_of(label) for label, layout in view.layouts.items() if layout.later)
    names = (one.name for one in subjects if one.kind is Kind.TABLE and one.name.startswith(start))
    return sorted(name.removeprefix(start) for name in names)


async def strays(client: Caller, places: ItemPlaces, view: View) -> AsyncIterator[Stray]:
    """Yield the rows under bare keys that belong in buckets.

    These are rows of spread keys that were written without Heatsink after the adoption, and rows
    with a prefix of fixed buckets. Only if there is such a prefix, this reads the whole table.
    """
    table = places.table
    for key in spread_keys(view, table.name):
        request: dict[str, Any] = {
            "TableName": table.name,
            "KeyConditionExpression": "#p = :p",
            "ProjectionExpression": "#p, #s",
            "ExpressionAttributeNames": {"#p": table.partition_key, "#s": table.sort_key},
            "ExpressionAttributeValues": {":p": {"S": key}},
            "ConsistentRead": True,
        }
        async for row in rows_of(client, "Query", request):
            keys = places.keys_of(row, exactly=False)
            if keys is None:
                continue
            rule = table.rule_of(keys.sort)
            time_ms = rule.time_ms(keys.sort)
            if time_ms is None or not places.complete_ms <= time_ms < view.horizon_ms:
                continue  # the place of a row past the horizon is not known yet
            if places.spot(keys, rule, time_ms).bucket is not None:
                yield Stray(key, row[table.sort_key])
    async for stray in fixed_strays(client, places):
        yield stray


async def fixed_strays(client: Caller, places: ItemPlaces) -> AsyncIterator[Stray]:
    """Yield the rows under bare keys whose prefix has fixed buckets."""
    table = places.table
    if all(rule.buckets == 1 for rule in table.rules):
        return
    request: dict[str, Any] = {
        "TableName": table.name,
        "ProjectionExpression": "#p, #s",
        "ExpressionAttributeNames": {"#p": table.partition_key, "#s": table.sort_key},
        "ConsistentRead": True,
    }
    async for row in rows_of(client, "Scan", request):
        name = row[table.partition_key]["S"]
        if application_key(name) != name:
            continue  # it is in a bucket
        keys = places.keys_of(row, exactly=False)
        is_fixed = keys is not None and table.rule_of(keys.sort).buckets > 1
        if keys is not None and is_fixed and places.spot_of(keys).bucket is not None:
            yield Stray(name, row[table.sort_key])


async def rows_of(
    client: Caller, operation: str, request: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Yield all rows of a Query or Scan."""
    start: dict[str, Any] = {}
    while True:
        body = (await client.call(operation, {**request, **start})).body
        for row in body["Items"]:
            yield row
        if "LastEvaluatedKey" not in body:
            return
        start = {"ExclusiveStartKey": body["LastEvaluatedKey"]}
