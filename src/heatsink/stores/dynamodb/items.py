"""The table's items: one partition key `p`, one binary sort key `s` whose first byte is the kind.

    p                 s                  what
    ────────────────  ─────────────────  ─────────────────────────────────────────────────────────
    conv_abc123       0x05 token         a counter's token and what it added (expires by TTL)
    conv_abc123       0x06               a counter's share: value, sealed, running totals of writers
    conv_abc123#3     0x10 id            a row: body, and the epoch that placed it
    conv_abc123       0x20               EPOCHS(key), above every row: a newest-first query of the
                                         bare key brings it along for nothing
    %meta             0x00               META: closed time, version, term, secret
    %log              version            LOG(version)
    %keys, %pins      key                all layouts and pins, for processes that start

A key's name is escaped, so no user's key can begin with a bare `%`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import msgspec

from heatsink.errors import Misconfigured
from heatsink.registry.decision import Decision
from heatsink.registry.layout import COLD, Layout
from heatsink.spread.store import Row

Item = dict[str, Any]
Read = TypeVar("Read")

TOKEN, SHARE, ROW, EPOCHS = b"\x05", b"\x06", b"\x10", b"\x20"
META, LOG, KEYS, PINS = "%meta", "%log", "%keys", "%pins"
NOTHING = b"\x00"
ID_BYTES = (8, 16)

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


def ours(what: str, cure: str) -> Callable[[Callable[[Item], Read]], Callable[[Item], Read]]:
    """For what reads an item: one that somebody else has written or changed is named."""

    def naming(read: Callable[[Item], Read]) -> Callable[[Item], Read]:
        @wraps(read)
        def read_or_name(item: Item) -> Read:
            try:
                return read(item)
            except (LookupError, TypeError, ValueError):
                raise Misconfigured(
                    f"the table holds an item that is no {what} of Heatsink (p={item.get('p')}, "
                    f"s={item.get('s')}): who else writes to it? {cure}"
                ) from None

        return read_or_name

    return naming


@ours("row", "Delete the item")
def row_of(item: Item) -> Row:
    raw = sort_of(item)[1:]
    if len(raw) not in ID_BYTES:
        raise ValueError
    return Row(
        raw,
        b64decode(item["b"]["B"]),
        integer(item, "e"),
        integer(item, "n"),
        integer(item, "x") if "x" in item else None,
        "d" in item,
    )


def epochs_value(layout: Layout) -> Item:
    pairs = [{"L": [number(epoch.start_ms), number(epoch.buckets)]} for epoch in layout.later]
    return {"L": pairs}


def layout_of(item: Item | None) -> Layout:
    return COLD if item is None else _layout_of(item)


@ours("layout", "Delete the item, then run heatsink fsck --rebuild")
def _layout_of(item: Item) -> Layout:
    pairs = [pair["L"] for pair in item["epochs"]["L"]]
    return Layout((int(start["N"]), int(buckets["N"])) for start, buckets in pairs)


def decision_value(decision: Decision) -> Item:
    return {"S": msgspec.json.encode(decision).decode()}


@ours("decision", "Delete the item, then run heatsink fsck --rebuild")
def decision_of(item: Item) -> Decision:
    return _DECISION.decode(item["decision"]["S"])
