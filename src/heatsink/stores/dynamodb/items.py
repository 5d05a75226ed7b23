"""The table's items: one partition key `p`, one binary sort key `s` whose first byte is the kind.

    p                 s                  what
    ────────────────  ─────────────────  ─────────────────────────────────────────────────────────
    conv_abc123       0x05 token         a counter's token and what it added (expires by TTL)
    conv_abc123       0x06               a counter's share: value, sealed, running totals of writers
    conv_abc123#3     0x10 id            a row: body, and the epoch that placed it
    conv_abc123       0x20               EPOCHS(key), above every row: a newest-first query of the
                                         bare key brings it along for nothing
    %meta             0x00               META: closed time, version, term
    %log              version            LOG(version)
    %keys, %pins      key                all layouts and pins, for processes that start

A key's name is escaped, so no user's key can begin with a bare `%`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import msgspec

from heatsink.errors import Misconfigured
from heatsink.registry.decision import Decision
from heatsink.registry.layout import COLD, Layout
from heatsink.spread.store import Row

Item = dict[str, Any]

TOKEN, SHARE, ROW, EPOCHS = b"\x05", b"\x06", b"\x10", b"\x20"
META, LOG, KEYS, PINS = "%meta", "%log", "%keys", "%pins"
NOTHING = b"\x00"

KEY_SCHEMA = [
    {"AttributeName": "p", "KeyType": "HASH"},
    {"AttributeName": "s", "KeyType": "RANGE"},
]
ATTRIBUTES = [
    {"AttributeName": "p", "AttributeType": "S"},
    {"AttributeName": "s", "AttributeType": "B"},
]
TTL_ATTRIBUTE = "ttl"
_DECISION = msgspec.json.Decoder(Decision)


def binary(value: bytes) -> Item:
    return {"B": b64encode(value).decode()}


def number(value: int) -> Item:
    return {"N": str(value)}


def key(partition: str, sort: bytes) -> Item:
    return {"p": {"S": partition}, "s": binary(sort)}


def sort_of(item: Item) -> bytes:
    return b64decode(item["s"]["B"])


def integer(item: Item, name: str) -> int:
    return int(item[name]["N"]) if name in item else 0


def row_item(partition: str, row: Row) -> Item:
    item = {
        **key(partition, ROW + row.raw),
        "b": binary(row.body),
        "e": number(row.epoch_ms),
        "n": number(row.buckets),
    }
    if row.expires_ms is not None:
        item["x"] = number(row.expires_ms)
        item[TTL_ATTRIBUTE] = number(row.expires_ms // 1000 + 1)
    if row.deleted:
        item["d"] = {"BOOL": True}
    return item


def row_of(item: Item) -> Row:
    try:
        return Row(
            sort_of(item)[1:],
            b64decode(item["b"]["B"]),
            integer(item, "e"),
            integer(item, "n"),
            integer(item, "x") if "x" in item else None,
            "d" in item,
        )
    except (LookupError, TypeError, ValueError):
        raise Misconfigured(
            f"the table holds an item that is no row of Heatsink (p={item.get('p')}, "
            f"s={item.get('s')}): who else writes to it? Delete the item"
        ) from None


def epochs_value(layout: Layout) -> Item:
    pairs = [{"L": [number(epoch.start_ms), number(epoch.buckets)]} for epoch in layout.later]
    return {"L": pairs}


def layout_of(item: Item | None) -> Layout:
    if item is None:
        return COLD
    pairs = [pair["L"] for pair in item["epochs"]["L"]]
    return Layout((int(start["N"]), int(buckets["N"])) for start, buckets in pairs)


def decision_value(decision: Decision) -> Item:
    return {"S": msgspec.json.encode(decision).decode()}


def decision_of(item: Item) -> Decision:
    return _DECISION.decode(item["decision"]["S"])
