"""Runs the migration of an index (`heatsink adopt --index`): its calls, its records, its waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import msgspec

from heatsink.door.declaration import SpreadTable
from heatsink.door.drivers import of_heatsink
from heatsink.door.migration import (
    IndexMigration,
    MigrationPace,
    Moves,
    Need,
    Pause,
    Record,
    Settle,
    note_for,
)
from heatsink.door.places import ItemPlaces
from heatsink.door.protocol import Body, UpstreamCall, WireError
from heatsink.door.spread_indexes import SUFFIX, shadow_of
from heatsink.errors import HeatsinkError, InvalidSetting
from heatsink.primitives.clock import Clock
from heatsink.registry.registry import Registry
from heatsink.registry.spread_indexes import note_on, notes_on, values_of
from heatsink.stores.dynamodb import open_table
from heatsink.stores.dynamodb.address import DynamoAddress
from heatsink.stores.dynamodb.client import THROTTLING, DynamoClient

from .writers import rows_of

ATTEMPTS = 8
FIRST_PAUSE_S = 0.05
SLACK_MS = 1_000  # a process may use a view for a moment after its horizon has passed
SAMPLE = 1_000
SHOWN = 10
encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(dict[str, Any]).decode
Told = Callable[[str, int], object]


class Common(msgspec.Struct, frozen=True):
    """A frequent value of an index, and how many items of a sample have it."""

    value: str
    items: int


class IndexStanding(msgspec.Struct, frozen=True):
    """How far the spreading of an index is. `step` is None if it has not begun.

    In a dry run, `common` has the most frequent values in a sample of `looked_at` items.
    """

    table: str
    index: str
    step: str | None
    attribute: str
    shadow: str
    new_index: str
    spread_values: list[str]
    common: list[Common] = []
    looked_at: int = 0
    open_buckets: int = 0


async def settle(registry: Registry, clock: Clock, in_flight_s: float) -> None:
    """Wait until every process has renewed its view, and all calls from before that have ended.

    `in_flight_s` is the longest time that a call of a process may take to reach DynamoDB.
    """
    await registry.renew()
    until_ms = registry.meta.closed_ms + SLACK_MS
    await clock.sleep(max(until_ms - registry.now_ms(), 0) / 1000 + in_flight_s)
    await registry.renew()


class Runner:
    """Does what the steps of a migration ask for: calls, records and waits."""

    def __init__(
        self, registry: Registry, client: DynamoClient, clock: Clock, in_flight_s: float
    ) -> None:
        """`in_flight_s` is the longest time that a call of a process may take to reach DynamoDB."""
        self._registry = registry
        self._client = client
        self._clock = clock
        self._in_flight_s = in_flight_s
        self._rng = Random()

    async def run(self, steps: Moves, goes_on: Callable[[], bool] = lambda: True) -> Any:
        """Take all steps of a migration, and return its result.

        Returns None if `goes_on` returns False before a step.
        """
        try:
            needs = next(steps)
            while goes_on():
                needs = steps.send(await asyncio.gather(*map(self._meet, needs)))
        except StopIteration as end:
            return end.value
        steps.close()
        return None

    async def _meet(self, need: Need) -> Any:
        try:
            if isinstance(need, UpstreamCall):
                return await self._send(need)
            if isinstance(need, Record):
                return await self._registry.replace_pin(need.seen, need.note)
            if isinstance(need, Settle):
                return await settle(self._registry, self._clock, self._in_flight_s)
            if isinstance(need, Pause):
                return await self._clock.sleep(need.seconds)
            return await self._registry.renew()
        except HeatsinkError as error:
            return of_heatsink(error)

    async def _send(self, call: UpstreamCall) -> Body:
        """Send a call. If it is throttled or the server fails, send it again."""
        attempt = 0
        while True:
            answer = await self._client.forward(call.operation, encode(call.parameters))
            try:
                body = decode(answer.body)
            except ValueError:
                raise self._client.not_dynamodb() from None
            if answer.status == 200:
                return body
            error, attempt = WireError(answer.status, body), attempt + 1
            if (error.code not in THROTTLING and answer.status < 500) or attempt == ATTEMPTS:
                raise error
            await self._clock.sleep(FIRST_PAUSE_S * 2**attempt * (0.5 + self._rng.random()))


class Indexing:
    """What an operator may do with one index: spread it, sweep it, or bring it back."""

    def __init__(
        self, registry: Registry, table: SpreadTable, name: str, client: DynamoClient
    ) -> None:
        self._registry = registry
        self._client = client
        self._name = name
        self._places = ItemPlaces(table, registry.view, registry.meta.seed)

    def migration(self, per_value_s: float, told: Told) -> IndexMigration:
        pace = MigrationPace(per_value_s=per_value_s)
        return IndexMigration(self._places, self._registry.view, self._name, pace, told)

    async def standing(self, open_buckets: int = 0) -> IndexStanding:
        """Return how far the index is. If nothing has begun, look at some items.

        Raises `InvalidSetting` if the index cannot be spread.
        """
        view, table = self._registry.view, self._places.table
        note, common, looked_at = note_on(view, table.name, self._name), Counter[str](), 0
        if note is None:
            described = await self._client.call("DescribeTable", {"TableName": table.name})
            note, step = note_for(described.body["Table"], self._places, self._name), None
            request = {
                "TableName": table.name,
                "ProjectionExpression": "#a",
                "ExpressionAttributeNames": {"#a": note.attribute},
                "Limit": SAMPLE,
            }
            async for row in rows_of(self._client, "Scan", request):
                looked_at += 1
                common[str(row.get(note.attribute, {}).get("S", ""))] += 1
                if looked_at == SAMPLE:
                    break
            del common[""]
        else:
            step = note.step
        return IndexStanding(
            table.name,
            self._name,
            step,
            note.attribute,
            shadow_of(self._name),
            self._name + SUFFIX,
            values_of(view, table.name, self._name),
            [Common(value, items) for value, items in common.most_common(SHOWN)],
            looked_at,
            open_buckets,
        )


@asynccontextmanager
async def indexing(
    registry: Registry, address: DynamoAddress, table: SpreadTable, name: str, clock: Clock
) -> AsyncIterator[tuple[Indexing, Callable[[float], Runner]]]:
    """Open what commands on an index need.

    Yields its `Indexing`, and a function that makes runners, which carry out the steps.
    """
    client = open_table(address, clock)[1]
    try:
        yield (
            Indexing(registry, table, name, client),
            partial(Runner, registry, client, clock),
        )
    finally:
        await client.close()


def check_no_indexes(registry: Registry, table: str) -> None:
    """Raise `InvalidSetting` if a table still has spread indexes, and so cannot leave."""
    left = sorted(name for name, note in notes_on(registry.view, table) if note.step != "left")
    if left:
        raise InvalidSetting(
            f"table {table} has spread indexes: {', '.join(left)}. First bring each back with "
            f"--index {left[0]} --leave",
            field="index",
        )
