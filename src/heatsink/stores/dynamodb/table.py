"""One DynamoDB table: its items, requests to it, and its creation.

An item has a partition key `p` and a binary sort key `s`. The first byte of `s` is the item's kind.

    p                 s                  what
    ────────────────  ─────────────────  ─────────────────────────────────────────────────────────
    conv_abc123       0x05 token         a counter's token and its amount (expires by TTL)
    conv_abc123       0x06               a counter's share: value, sealed time, running totals of
                                         writers
    conv_abc123#3     0x10 id            a row: body, and the epoch that placed it
    conv_abc123       0x20               EPOCHS(key), above every row: a newest-first query of the
                                         bare key returns it at no extra cost
    %meta             0x00               META: closed time, version, term, secret
    %log#0 … %log#7   version            LOG(version), in the shard `version` modulo 8
    %keys#0 … #15     key                all layouts, in 16 shards by a hash of the key
    %pins             key                all pins; read with all layouts when a process starts

In the key of an application, `%` is stored as `%25`. So no such key can collide with %meta, %log,
%keys or %pins.

A physical partition takes 1,000 write units a second, and a key that is spread costs two units in
%keys and about half a unit in %log. Without shards, DynamoDB would spread 500 keys a second.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import wraps
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from heatsink.errors import InvalidSetting, Misconfigured, Throttled, Unavailable
from heatsink.primitives.clock import Clock
from heatsink.registry.decisions import Decision
from heatsink.registry.layouts import COLD, EpochMaker, Layout, text_of
from heatsink.spread.store import Row

from .client import DynamoClient, Item, Result, Turns, decode

Read = TypeVar("Read")

TOKEN, SHARE, ROW, EPOCHS = b"\x05", b"\x06", b"\x10", b"\x20"
META, PINS = "%meta", "%pins"
LOG = tuple(f"%log#{shard}" for shard in range(8))
KEYS = tuple(f"%keys#{shard}" for shard in range(16))
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
Decode = Callable[[bytes], Any]
_DECISION = msgspec.json.Decoder(Decision)
DELETE_AT_ONCE = 25
INSIST_S = 1.0  # shorter than a lease, so that a leader keeps its lease while it retries
INSIST_PAUSE_S = 0.02
REGISTRY_CONNECTIONS_MAX = 16
PAGES_AT_ONCE = 4  # more would arrive in one turn of the event loop, and hold it


def binary(value: bytes) -> Item:
    return {"B": b64encode(value).decode()}


def number(value: int) -> Item:
    return {"N": str(value)}


def key(partition: str, sort: bytes) -> Item:
    return {"p": {"S": partition}, "s": binary(sort)}


def log_shard(version: int) -> str:
    """Return the partition key that holds this version of the log."""
    return LOG[version % len(LOG)]


def keys_shard(name: str) -> str:
    """Return the partition key that holds the copy of this key's layout."""
    return KEYS[crc32(name.encode()) % len(KEYS)]


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
    """Return a decorator for functions that decode items which Heatsink wrote.

    If an item is malformed, the decorated function raises `Misconfigured`. `what` is the kind of
    item, and `cure` says what an operator should do.
    """

    def naming(read: Callable[[Item], Read]) -> Callable[[Item], Read]:
        @wraps(read)
        def read_or_name(item: Item) -> Read:
            try:
                return read(item)
            except (LookupError, TypeError, ValueError):
                raise Misconfigured(
                    f"the item with p={item.get('p')}, s={item.get('s')} is not a valid {what} of "
                    f"Heatsink: check whether another program writes to the table. {cure}"
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
    return Layout.of((int(start["N"]), int(buckets["N"])) for start, buckets in pairs)


def copy_item(name: str, layout: Layout, decision: Decision) -> Item:
    """Return the item of a `%keys` shard that copies the layout of the key."""
    return {
        **key(keys_shard(name), name.encode()),
        "copy": {"S": text_of(layout)},
        "decision": decision_value(decision),
    }


def decision_value(decision: Decision) -> Item:
    return {"S": msgspec.json.encode(decision).decode()}


@ours("decision", "Delete the item, then run heatsink fsck --rebuild")
def decision_of(item: Item) -> Decision:
    return _DECISION.decode(item["decision"]["S"])


class _Text(msgspec.Struct, gc=False):
    S: str


class _Bytes(msgspec.Struct, gc=False):
    B: bytes


class LayoutCopy(msgspec.Struct, gc=False):
    """An item of a `%keys` shard: the layout of the key `s`, and the decision behind it.

    The layout is compact text (`registry.layouts.text_of`), since a process that starts may read
    200,000 of them.
    """

    s: _Bytes
    copy: _Text
    decision: _Text

    @property
    def name(self) -> str:
        return self.s.B.decode()

    def layout(self, maker: EpochMaker) -> Layout:
        try:
            return maker.of_text(self.copy.S)
        except InvalidSetting:
            raise Misconfigured(
                f"the copy of the layout of {self.name!r} is not valid: check whether another "
                f"program writes to the table. Delete the copy (the item with s={self.name} and p "
                "from %keys#0 to %keys#15), then run heatsink fsck --rebuild"
            ) from None


@ours("copy of a layout", "Delete the item, then run heatsink fsck --rebuild")
def copy_of(item: Item) -> LayoutCopy:
    """Convert an item that the general decoder decoded."""
    decision_of(item)
    text, decision = item["copy"]["S"], item["decision"]["S"]
    return LayoutCopy(_Bytes(sort_of(item)), _Text(text), _Text(decision))


class _LayoutPage(msgspec.Struct, gc=False):
    Items: list[LayoutCopy]
    LastEvaluatedKey: Item | None = None


_LAYOUT_PAGE = msgspec.json.Decoder(_LayoutPage)


def decode_layouts(body: bytes) -> Item:
    """Decode a page of layouts, which a process reads by the thousand when it starts.

    This takes less than a fifth of the time of the general decoder. A page with a malformed item is
    decoded again by the general decoder, so that the error can name the item.
    """
    try:
        page = _LAYOUT_PAGE.decode(body)
    except msgspec.ValidationError:
        found: Item = decode(body)
        return found
    return {"Items": page.Items, "LastEvaluatedKey": page.LastEvaluatedKey}


def decision_from(text: str) -> Decision:
    try:
        return _DECISION.decode(text)
    except msgspec.MsgspecError:
        raise Misconfigured(
            f"{text[:80]!r} is not a valid decision of Heatsink: check whether another program "
            "writes to the table, then run heatsink fsck --rebuild"
        ) from None


class DynamoTable:
    def __init__(self, client: DynamoClient, name: str) -> None:
        self.name = name
        self.client = client

    async def call(self, operation: str, request: Item, decode: Decode = decode) -> Result:
        return await self._send(operation, {"TableName": self.name, **request}, decode)

    async def _send(self, operation: str, request: Item, decode: Decode = decode) -> Result:
        return await self.client.call(operation, request, None, decode)

    async def get(self, key: Item, consistent: bool) -> Item | None:
        answer = await self.call("GetItem", {"Key": key, "ConsistentRead": consistent})
        return answer.body.get("Item")

    async def page(
        self, operation: str, request: Item, start: Item | None, decode: Decode = decode
    ) -> tuple[list[Any], Item | None]:
        """Return one page of a Query or Scan, and the start key of the next page.

        The start key is None after the last page.
        """
        if start is not None:
            request = {**request, "ExclusiveStartKey": start}
        body = (await self.call(operation, request, decode)).body
        return body["Items"], body.get("LastEvaluatedKey")

    async def everything(self, partitions: Sequence[str], low: Item, high: Item) -> list[Item]:
        """Return all items of these partition keys with sort keys from `low` to `high`.

        The reads are strongly consistent.
        """
        return [item async for page in self.pages(partitions, low, high) for item in page]

    async def pages(
        self, partitions: Sequence[str], low: Item, high: Item, decode: Decode = decode
    ) -> AsyncIterator[list[Any]]:
        """Yield the items of `everything` page by page, decoded by `decode`.

        While the caller works on a page, the next pages are already requested. The pages of
        different partition keys may come in any order.
        """

        def ask(partition: str, start: Item | None) -> asyncio.Future[Any]:
            values = {":p": {"S": partition}, ":low": low, ":high": high}
            request = {
                "KeyConditionExpression": "p = :p AND s BETWEEN :low AND :high",
                "ExpressionAttributeValues": values,
                "ConsistentRead": True,
            }
            return asyncio.ensure_future(self.page("Query", request, start, decode))

        waiting = deque(partitions)
        asked: deque[tuple[str, asyncio.Future[Any]]] = deque()
        try:
            while waiting or asked:
                while waiting and len(asked) < PAGES_AT_ONCE:
                    partition = waiting.popleft()
                    asked.append((partition, ask(partition, None)))
                partition, answer = asked[0]
                found, start = await answer
                asked.popleft()
                if start is not None:
                    asked.append((partition, ask(partition, start)))
                yield found
        finally:
            for _, answer in asked:
                answer.cancel()
            await asyncio.gather(*(answer for _, answer in asked), return_exceptions=True)

    async def write_together(self, writes: list[Item]) -> tuple[float, int | None]:
        """Write in one transaction. A write is `{"Put" | "Update" | "Delete" | …: request}`.

        Returns the consumed write units and the physical partition. They are 0 and None if the
        response does not contain them.
        """
        items = []
        for write in writes:
            ((action, request),) = write.items()
            items.append({action: {"TableName": self.name, **request}})
        request = {"TransactItems": items, "ReturnConsumedCapacity": "TOTAL"}
        answer = await self._send("TransactWriteItems", request)
        for cost in answer.body.get("ConsumedCapacity", []):  # one entry: there is one table
            return float(cost["CapacityUnits"]), cost.get("Partition")
        return 0.0, None

    async def read_together(self, keys: list[Item]) -> list[Item | None]:
        """Read items in one transaction, so that all are from the same moment.

        The result is in the order of `keys`, with None for a missing item.
        """
        gets = [{"Get": {"TableName": self.name, "Key": key}} for key in keys]
        answer = await self._send("TransactGetItems", {"TransactItems": gets})
        return [response.get("Item") for response in answer.body["Responses"]]

    async def delete_all(self, keys: list[Item]) -> None:
        for first in range(0, len(keys), DELETE_AT_ONCE):
            deletes: Any = [
                {"DeleteRequest": {"Key": {"p": key["p"], "s": key["s"]}}}
                for key in keys[first : first + DELETE_AT_ONCE]
            ]
            await self._write_batch(deletes)

    async def _write_batch(self, requests: Any) -> None:
        request = {"RequestItems": {self.name: requests}}
        answer = await self._send("BatchWriteItem", request)
        if answer.body.get("UnprocessedItems"):
            raise Unavailable("DynamoDB did not process some deletes: retry")

    async def create(self, write_units: int | None = None, read_units: int | None = None) -> None:
        """Create the table: provisioned with `write_units`, on demand without."""
        request: Item = {
            "KeySchema": KEY_SCHEMA,
            "AttributeDefinitions": ATTRIBUTES,
            "BillingMode": "PAY_PER_REQUEST",
        }
        if write_units is not None:
            request["BillingMode"] = "PROVISIONED"
            request["ProvisionedThroughput"] = {
                "WriteCapacityUnits": write_units,
                "ReadCapacityUnits": read_units or write_units,
            }
        await self.call("CreateTable", request)

    async def expire_rows(self) -> None:
        specification = {"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
        await self.call("UpdateTimeToLive", {"TimeToLiveSpecification": specification})

    async def check_schema(self) -> None:
        """Raise `Misconfigured` if the table has other keys or replicates to other regions."""
        described = (await self.call("DescribeTable", {})).body.get("Table", {})
        schema, types = described.get("KeySchema", []), described.get("AttributeDefinitions", [])
        if schema != KEY_SCHEMA or any(kind not in types for kind in ATTRIBUTES):
            raise Misconfigured(
                f"table {self.name!r} has other keys than Heatsink's (p: string, s: binary): "
                "name another table, or create one with heatsink table create",
                field="table",
            )
        if described.get("Replicas"):
            raise Misconfigured(
                f"table {self.name!r} replicates to other regions: use a table in one region. "
                "With eventual consistency, readers in another region would miss acknowledged "
                "rows. With strong consistency, DynamoDB has no transactions, and the registry "
                "needs them",
                field="table",
            )

    async def is_active(self) -> bool:
        described = (await self.call("DescribeTable", {})).body["Table"]
        return bool(described.get("TableStatus", "ACTIVE") == "ACTIVE")


class RegistryTable(DynamoTable):
    """The table as the registry uses it: retries throttled requests, on its own connections.

    The registry may share a physical partition with the hot key that it is about to spread. A turn
    of the coordinator takes several requests. Without retries, hardly any turn would complete while
    writers keep the partition busy. The pause between retries stays short, unlike in
    `primitives/retry.py`. With longer pauses, the writers would use up all throughput.

    Writes of rows wait for the closed time, which the registry advances. So the registry has its
    own connections, and never waits behind these writes.
    """

    def __init__(self, client: DynamoClient, name: str, clock: Clock) -> None:
        super().__init__(client, name)
        self._clock = clock
        self._turns = Turns(REGISTRY_CONNECTIONS_MAX)

    async def _send(self, operation: str, request: Item, decode: Decode = decode) -> Result:
        until_s = self._clock.monotonic_s() + INSIST_S
        while True:
            try:
                return await self.client.call(operation, request, self._turns, decode)
            except Throttled:
                if self._clock.monotonic_s() + INSIST_PAUSE_S > until_s:
                    raise
                await self._clock.sleep(INSIST_PAUSE_S)
