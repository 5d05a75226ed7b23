"""A world whose table has indexes and a stream: both show the dictionary, late but in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any
from unittest.mock import patch

from heatsink.emulator import table as tables
from heatsink.emulator.capacity.limits import LEAST_WRITE
from heatsink.emulator.indexes import GlobalIndex
from heatsink.emulator.rows import token_of
from tests.emulator.calls import TABLE
from tests.emulator.forced import ForcedChanges
from tests.emulator.reading import Consumer
from tests.simulation.history import Violation

from .clients import ACTS, Client
from .followers import (
    GLOBAL,
    LOCAL,
    Changes,
    Lagging,
    entries,
    group_of,
    local_entries,
    order_of,
    shown,
)
from .plain import Allowances, Item, Place, Plain
from .world import LOOK_S, SETTLE_S, Ran, World, _edges, simulate
from .writes import Writer

GROUPS = ("red", "blue", "green", None)
LIMITS = (1, 2, 5, 100)
FOLLOWED_ACTS = {**ACTS, "query_index": 12, "scan_index": 3, "query_local": 5}


class FollowedPlain(Plain):
    """The dictionary, and what follows it."""

    def __init__(self, lag_s: float, index_lag_s: float) -> None:
        super().__init__(lag_s)
        self.lagging = Lagging(index_lag_s)
        self.changes = Changes()

    def write(self, place: Place, item: Item | None, now_s: float) -> None:
        self.changes.write(place, self.rows.get(place), item)
        self.lagging.write(place, item, now_s)
        super().write(place, item, now_s)


class FollowedClient(Client):
    async def _query_index(self) -> None:
        """Page by page; each page is that of one recent version."""
        group, forward = self._rng.choice(GROUPS[:3]), self._rng.random() < 0.7
        request: Item = {
            "KeyConditionExpression": "g = :g",
            "ExpressionAttributeValues": {":g": {"S": group}},
            "ScanIndexForward": forward,
        }
        await self._index_pages("Query", group, forward, request)

    async def _scan_index(self) -> None:
        await self._index_pages("Scan", None, True, {})

    async def _index_pages(
        self, operation: str, group: str | None, forward: bool, request: Item
    ) -> None:
        world, limit, after = self._world, self._rng.choice(LIMITS), None
        request |= {"TableName": TABLE, "IndexName": GLOBAL, "Limit": limit}
        for _ in range(3):
            await self._travel()
            if not world.is_index_active():
                return
            answer = world.ask(operation, **request)
            if answer is None:
                return
            if not any(
                answer["Items"] == self._page(rows, group, forward, after, limit)
                for rows in self._plain.lagging.versions(world.now_s())
            ):
                raise Violation(f"no recent version of the index has the page {answer['Items']}")
            world.counts["index pages"] += 1
            after = answer.get("LastEvaluatedKey")
            if after is None:
                return
            request["ExclusiveStartKey"] = after

    def _page(
        self, rows: Any, group: str | None, forward: bool, after: Item | None, limit: int
    ) -> list[Item]:
        found = entries(rows, group)
        if not forward:
            found.reverse()
        if after is not None:
            last = order_of(after)
            is_next = last.__lt__ if forward else last.__gt__
            found = [one for one in found if is_next(order_of(one))]
        return [shown(one, self._world.projection) for one in found[:limit]]

    async def _query_local(self) -> None:
        (key, _), consistent = self._place(), self._rng.random() < 0.5
        await self._travel()
        answer = self._world.ask(
            "Query",
            TableName=TABLE,
            IndexName=LOCAL,
            KeyConditionExpression="pk = :p",
            ExpressionAttributeValues={":p": {"S": key}},
            ConsistentRead=consistent,
            Select="ALL_ATTRIBUTES",
        )
        if answer is not None and (consistent or not self._world.settings.replica_lag_s):
            self._compare("a local index", answer["Items"], local_entries(self._plain.rows, key))


class FollowedWorld(World):
    acts = FOLLOWED_ACTS
    client = FollowedClient

    def __init__(self, seed: int) -> None:
        self._extra = Random(f"{seed} followers")
        self.projection = self._extra.choice(("ALL", "KEYS_ONLY", "INCLUDE"))
        self._late_index = self._extra.random() < 0.5
        self._has_index = False
        super().__init__(seed)
        self.plain = FollowedPlain(self.settings.replica_lag_s, self.settings.index_lag_s)
        self.writer = Writer(self.rng, GROUPS)
        self._groups = Allowances(self.settings.write_limit, LEAST_WRITE)
        self._consumer = Consumer(self.calls, limit=self._extra.choice((1, 3, 100)))

    def _create(self, capacity: Item) -> None:
        self._capacity = capacity
        index = {} if self._late_index else {"GlobalSecondaryIndexes": [self._index()]}
        self._has_index = not self._late_index
        names = {"pk": "S", "sk": "S", "g": "S", **({"n": "N"} if index else {})}
        key = [{"AttributeName": "pk", "KeyType": "HASH"}]
        made = self.calls(
            "CreateTable",
            TableName=TABLE,
            AttributeDefinitions=_definitions(names),
            KeySchema=[*key, {"AttributeName": "sk", "KeyType": "RANGE"}],
            LocalSecondaryIndexes=[
                {
                    "IndexName": LOCAL,
                    "KeySchema": [*key, {"AttributeName": "g", "KeyType": "RANGE"}],
                    "Projection": {"ProjectionType": self._extra.choice(("ALL", "KEYS_ONLY"))},
                }
            ],
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
            **index,
            **(capacity or {"BillingMode": "PAY_PER_REQUEST"}),
        )
        assert self.calls.status == 200, made

    def _index(self) -> Item:
        extra = {"NonKeyAttributes": ["x"]} if self.projection == "INCLUDE" else {}
        return {
            "IndexName": GLOBAL,
            "KeySchema": [
                {"AttributeName": "g", "KeyType": "HASH"},
                {"AttributeName": "n", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": self.projection, **extra},
            **self._capacity,
        }

    def index(self) -> GlobalIndex | None:
        found = self.table.indexes.get(GLOBAL)
        return found if isinstance(found, GlobalIndex) else None

    def is_index_active(self) -> bool:
        index = self.index()
        return index is not None and index.status == "ACTIVE"

    def written(self, key: str, used: Item, old: Item | None, new: Item | None) -> None:
        super().written(key, used, old, new)
        before, after = (None if one is None else group_of(one) for one in (old, new))
        if not self._has_index or (before, after) == (None, None):
            return
        entry, then = (None if one is None else shown(one, self.projection) for one in (old, new))
        if entry == then:
            return  # nothing that the index holds has changed: this costs nothing there
        for group in {before, after} - {None}:
            self._groups.take(group or "", 1.0, self.now_s())

    def _others(self) -> list[Coroutine[Any, Any, None]]:
        return [*super()._others(), self._consume(), self._change_index()]

    async def _consume(self) -> None:
        while True:
            await asyncio.sleep(self._extra.expovariate(4.0))
            self._read()

    def _read(self) -> None:
        try:
            records = self._consumer.read()
        except AssertionError as error:
            raise Violation(f"a stream cannot be read: {error}") from error
        self.counts["records"] += len(records)
        self.plain.changes.read(records)

    async def _change_index(self) -> None:
        """Create the index if it is not there, then split and merge its partitions."""
        if self._late_index:
            await asyncio.sleep(self._extra.uniform(0.5, 4.0))
            wanted = {"GlobalSecondaryIndexUpdates": [{"Create": self._index()}]}
            names = _definitions({"g": "S", "n": "N"})
            made = self.calls("UpdateTable", TableName=TABLE, AttributeDefinitions=names, **wanted)
            if self.calls.status != 200:
                raise Violation(f"an index cannot be created: {made}")
            self._has_index = True
            self.counts["backfills"] += 1
        index = self.index()
        assert index is not None
        forced = ForcedChanges(index)
        places = [*(token_of(group) for group in GROUPS[:3]), self._extra.getrandbits(64)]
        while True:
            await asyncio.sleep(self._extra.expovariate(2.0))
            change = self._extra.choice((forced.split, forced.isolate, forced.merge))
            self.counts["forced in the index"] += change(self._extra.choice(places))

    def _look(self) -> None:
        super()._look()
        index = self.index()
        if index is not None:
            _edges(index.throughput.adaptive.map)
            _edges(index.rows.map)

    async def _settle(self, engine: asyncio.Future[None]) -> None:
        """Table and index are at rest at the same moment: one goes on while the other ends."""
        await super()._settle(engine)
        until_s = self.now_s() + SETTLE_S
        await asyncio.sleep(self.settings.index_lag_s + LOOK_S)
        while not self._is_at_rest():
            await asyncio.wait([engine], timeout=LOOK_S)
            if engine.done():
                engine.result()
            if self.now_s() > until_s:
                raise Violation("an index is never complete, or its partitions never rest")

    def _is_at_rest(self) -> bool:
        index = self.index()
        followed = [self.table.throughput.adaptive.map]
        if index is not None:
            followed.append(index.throughput.adaptive.map)
        is_complete = index is None or index.status == "ACTIVE"
        return is_complete and not any(one.changing for map_ in followed for one in map_)

    def _final_checks(self) -> None:
        super()._final_checks()
        self._read()
        self.plain.changes.check_all_read()
        again = self.plain.changes.again()
        again.read(Consumer(self.calls).read())
        again.check_all_read()
        index = self.index()
        if index is None:
            return
        found = [row.item for row in index.read_from(False).scan()]
        expected = [shown(item, self.projection) for item in entries(self.plain.rows)]
        if found != expected:
            raise Violation(f"at the end the index holds {len(found)}, not {len(expected)} entries")


def _definitions(names: dict[str, str]) -> list[Item]:
    return [{"AttributeName": name, "AttributeType": kind} for name, kind in names.items()]


def simulate_followed(seed: int) -> Ran:
    """Run one seed with indexes and a stream."""
    lag_s = Random(f"{seed} lag").choice((0.0, 0.05, 0.5))
    at_once = Random(f"{seed} backfill").choice((1, 3, 10))
    with (
        patch.object(tables, "BACKFILLED_AT_ONCE", at_once),
        patch.object(FollowedWorld, "index_lag_s", lag_s),
    ):
        return simulate(seed, FollowedWorld)
