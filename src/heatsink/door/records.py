"""A table's declaration as the registry records it, and the check of its rows before that.

Two declarations that place all items alike have the same record: a rule `unspread` within a prefix
that is not spread changes nothing.
"""

from __future__ import annotations

from typing import Any

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import shown
from heatsink.registry.declarations import BY_TIME, FIXED, UNSPREAD, DeclaredTable
from heatsink.stores.dynamodb.wire.values import native

from .declaration import Rule, SpreadTable, sampling
from .keys import TAG
from .protocol import Need, Steps, UpstreamCall, checked
from .times import name_of

KEYS_LOOKED_AT = 10
ROWS_LOOKED_AT = 25


def record_of(table: SpreadTable) -> DeclaredTable:
    """Return what the registry records of a declaration."""
    rules: dict[str, str] = {}
    for rule in sorted(table.rules, key=lambda rule: len(rule.prefix)):
        words = _words(rule)
        around = [prefix for prefix in rules if rule.prefix.startswith(prefix)]
        same = words == (rules[max(around, key=len)] if around else UNSPREAD)
        if not same or words.startswith(BY_TIME):  # a time follows its own prefix
            rules[rule.prefix] = words
    return DeclaredTable(table.partition_key, table.sort_key, table.sort_type, rules)


def _words(rule: Rule) -> str:
    if rule.time_of is not None:
        return f"{BY_TIME} {name_of(rule.time_of)}"
    return f"{FIXED} {rule.buckets}" if rule.buckets > 1 else UNSPREAD


def look_for_rows(table: SpreadTable) -> Steps:
    """Look for rows under the bare key that have a prefix with fixed buckets, and would be hidden.

    The function takes a sample: it reads some rows of the table, and for some of their keys the
    rows with that prefix. So it cannot prove that there is no such row. Raises `InvalidSetting` if
    it finds one.
    """
    fixed = [rule for rule in table.rules if rule.buckets > 1]
    if not fixed:
        return {}
    [sample] = checked((yield [UpstreamCall("Scan", sampling(table))]))
    rows = list(sample["Items"])
    keys = {str(row[table.partition_key].get("S")) for row in rows}
    bare = sorted(key for key in keys if TAG not in key)[:KEYS_LOOKED_AT]
    needs: list[Need] = [_looking(table, rule, key) for rule in fixed for key in bare]
    if needs:
        for answer in checked((yield needs)):
            rows += answer["Items"]
    for row in rows:
        key, rule = row[table.partition_key].get("S"), table.rule_of(native(row[table.sort_key]))
        if rule.buckets > 1 and TAG not in key:
            raise InvalidSetting(
                f"table {table.name} has rows with the prefix {rule.prefix!r} already, such as "
                f"{shown(native(row[table.sort_key]))} of {shown(key)}: in {rule.buckets} fixed "
                "buckets they would not be found. Use fixed only for a prefix without rows",
                field="rules",
            )
    return {}


def _looking(table: SpreadTable, rule: Rule, key: str) -> UpstreamCall:
    names, values = {"#p": table.partition_key}, {":p": {"S": key}}
    condition = "#p = :p"
    if rule.prefix:
        names["#s"], values[":s"] = table.sort_key, {"S": rule.prefix}
        condition += " AND begins_with(#s, :s)"
    request: dict[str, Any] = {
        "TableName": table.name,
        "KeyConditionExpression": condition,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
        "ConsistentRead": True,
        "Limit": ROWS_LOOKED_AT,
    }
    return UpstreamCall("Query", request)
