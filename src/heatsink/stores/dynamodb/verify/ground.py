"""Where the checks run: temporary tables, raw requests to them, and the cap on the cost.

Every table is named `heatsink-verify-…` and is deleted at the end, also after an error or Ctrl-C.
The `Ground` counts what each answered request consumed. When the sum costs more than the cap,
`Ground` sends no more requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import msgspec

from heatsink.errors import HeatsinkError, Unavailable
from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb.client import DynamoClient, DynamoFailure
from heatsink.stores.dynamodb.connections import WireAnswer

Item = dict[str, Any]
PREFIX = "heatsink-verify-"
WRITE_DOLLARS = 1.5e-6
READ_DOLLARS = 0.3e-6
"""What a unit costs on demand, at most: twice the price in us-east-1, as in expensive regions."""
WRITE_HOUR_DOLLARS, READ_HOUR_DOLLARS = 0.0013, 0.00026
POLL_S = 0.5
ACTIVE_S = 180.0
DELETE_TRIES = 360
READS = {"GetItem", "Query", "Scan", "BatchGetItem", "TransactGetItems"}
WRITES = {"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"}
KEY_SCHEMA = [
    {"AttributeName": "p", "KeyType": "HASH"},
    {"AttributeName": "s", "KeyType": "RANGE"},
]
KEYS = [
    {"AttributeName": "p", "AttributeType": "S"},
    {"AttributeName": "s", "AttributeType": "S"},
]
decode = msgspec.json.Decoder(dict[str, Any]).decode


class OverCap(HeatsinkError):
    """The checks have cost as much as they may."""


class NotAllowed(HeatsinkError):
    """The credentials may not make a request that a check needs."""


class Reply(msgspec.Struct, frozen=True):
    """The answer to a raw request. `code` is the name of an error, and empty for success."""

    status: int
    body: Item
    code: str
    failure: DynamoFailure
    raw: WireAnswer

    @property
    def is_throttled(self) -> bool:
        return self.code in ("ThrottlingException", "ProvisionedThroughputExceededException")

    @property
    def reasons(self) -> list[Item]:
        """The reasons of a throttled request: `reason` and `resource`."""
        return self.failure.ThrottlingReasons + self.failure.throttlingReasons

    @property
    def outcome(self) -> str:
        """The code of the error, or "accepted"."""
        return self.code or "accepted"


def key(partition: str, sort: str = "a") -> Item:
    return {"p": {"S": partition}, "s": {"S": sort}}


class Ground:
    """Temporary tables at one endpoint. `spent` is what the checks have cost so far, in dollars."""

    def __init__(
        self, client: DynamoClient, clock: Clock, rng: Random, most_dollars: float
    ) -> None:
        self.client = client
        self.clock = clock
        self._most_dollars = most_dollars
        self._rng = rng
        self._run = f"{PREFIX}{rng.getrandbits(32):08x}"
        self._tables: list[str] = []
        self._streams: DynamoClient | None = None
        self.spent = 0.0
        self.denied: set[str] = set()
        """The operations that the credentials may not call."""
        self.allowed: set[str] = set()

    def token(self) -> str:
        """Return a new idempotency token. DynamoDB remembers tokens of other runs for minutes."""
        return f"{self._rng.getrandbits(128):032x}"

    async def send(self, operation: str, **payload: Any) -> Reply:
        """Send a request and return its answer, even if it is an error. Counts the cost.

        Raises `OverCap`, `NotAllowed`, or `Unavailable` if there is no answer.
        """
        if self.spent >= self._most_dollars:
            raise OverCap(f"the checks have cost the {self._most_dollars:.2f} $ that they may")
        if operation in READS | WRITES:
            payload.setdefault("ReturnConsumedCapacity", "TOTAL")
        return await self._send(operation, payload)

    async def stream(self, operation: str, **payload: Any) -> Reply:
        """Send a request to DynamoDB Streams, as `send` does to DynamoDB."""
        if self._streams is None:
            self._streams = self.client.of_streams()
        return await self._send(operation, payload, self._streams)

    async def _send(
        self, operation: str, payload: Item, client: DynamoClient | None = None
    ) -> Reply:
        client = client or self.client
        answer = await client.forward(operation, msgspec.json.encode(payload))
        try:
            body = decode(answer.body)
        except ValueError:
            raise client.not_dynamodb() from None
        if answer.status == 200:
            self._count(operation, body)
            self.allowed.add(operation)
            return Reply(answer.status, body, "", DynamoFailure(), answer)
        failure = msgspec.json.decode(answer.body, type=DynamoFailure)
        if failure.code == "AccessDeniedException":
            self.denied.add(operation)
            raise NotAllowed(f"the credentials may not call {operation}: {failure.text}")
        if answer.status >= 500:
            raise Unavailable(f"{operation} failed ({failure.code}: {failure.text}): retry")
        return Reply(answer.status, body, failure.code, failure, answer)

    def _count(self, operation: str, body: Item) -> None:
        consumed = body.get("ConsumedCapacity", [])
        for one in consumed if isinstance(consumed, list) else [consumed]:
            price = READ_DOLLARS if operation in READS else WRITE_DOLLARS
            self.spent += one.get("CapacityUnits", 0.0) * price

    async def table(self, kind: str, units: int | None = None, **more: Any) -> str:
        """Create a table and wait until it is active. Returns its name.

        With `units`, the table is provisioned with this number of read units and of write units a
        second. `more` are fields of CreateTable.
        """
        name = f"{self._run}-{kind}"
        request: Item = {
            "TableName": name,
            "KeySchema": KEY_SCHEMA,
            "AttributeDefinitions": KEYS,
            "BillingMode": "PAY_PER_REQUEST",
            **more,
        }
        if units is not None:
            request["BillingMode"] = "PROVISIONED"
            request["ProvisionedThroughput"] = throughput(units)
            self.spent += units * (WRITE_HOUR_DOLLARS + READ_HOUR_DOLLARS)
        self._tables.append(name)
        reply = await self.send("CreateTable", **request)
        if reply.code:
            raise Unavailable(f"cannot create {name}: {reply.code}: {reply.failure.text}")
        until_s = self.clock.monotonic_s() + ACTIVE_S
        while not is_active(await self.send("DescribeTable", TableName=name)):
            if self.clock.monotonic_s() > until_s:
                raise Unavailable(f"the table {name} was not active after {ACTIVE_S:g} s")
            await self.clock.sleep(POLL_S)
        return name

    async def left(self) -> list[str]:
        """Return the tables that earlier runs left behind because they were killed."""
        found: list[str] = []
        start: str | None = PREFIX.rstrip("-")
        while start is not None:
            body = (await self.send("ListTables", ExclusiveStartTableName=start)).body
            names = body.get("TableNames", [])
            found += [name for name in names if name.startswith(PREFIX)]
            beyond = not names or names[-1] > PREFIX + "g"
            start = None if beyond else body.get("LastEvaluatedTableName")
        return [name for name in found if name not in self._tables]

    async def delete(self, names: list[str]) -> None:
        """Delete tables. Waits for a table that is still being created."""
        for name in names:
            for _ in range(DELETE_TRIES):
                reply = await self._send("DeleteTable", {"TableName": name})
                if reply.code != "ResourceInUseException":
                    break
                await self.clock.sleep(POLL_S)

    async def close(self) -> None:
        """Delete all tables of this run."""
        if self._streams is not None:
            await self._streams.close()
            self._streams = None
        with suppress(NotAllowed):
            await self.delete(self._tables)
        self._tables = []


@asynccontextmanager
async def ground_at(
    client: DynamoClient, clock: Clock, rng: Random, most_dollars: float
) -> AsyncIterator[Ground]:
    """Yield a ground. At the end of the block, delete its tables and close the client."""
    ground = Ground(client, clock, rng, most_dollars)
    try:
        yield ground
    finally:
        try:
            await ground.close()
        finally:
            await client.close()


def throughput(units: int) -> Item:
    return {"ReadCapacityUnits": units, "WriteCapacityUnits": units}


def is_active(reply: Reply) -> bool:
    table = reply.body.get("Table", {})
    indexes = table.get("GlobalSecondaryIndexes", [])
    states = [table.get("TableStatus"), *(one.get("IndexStatus", "ACTIVE") for one in indexes)]
    return all(state == "ACTIVE" for state in states)
