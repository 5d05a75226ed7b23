"""Clients of the engine. What is answered is compared with the dictionary as it is then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from tests.emulator.calls import TABLE
from tests.simulation.history import Violation

from .plain import Item, Place, Wanted, by_token, check_page, check_walk, key_of, place_of
from .writes import Write, Writer

LATENCY_S = 0.02
PATIENCE = 6
LIMITS = {"Query": (1, 2, 3, 20), "Scan": (3, 5, 20, 100)}
ACTS = {
    "write": 60,
    "get": 12,
    "query": 8,
    "scan": 2,
    "write_batch": 3,
    "get_batch": 3,
    "write_together": 4,
    "get_together": 2,
    "count": 1,
}


class Client:
    """One of several, each with one request under way. `world` is what they have in common."""

    def __init__(self, world: Any, rng: Random) -> None:
        self._world = world
        self._plain = world.plain
        self._rng = rng
        self._writer: Writer = world.writer

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(self._world.rate_s()))
            acts = self._world.acts
            [act] = self._rng.choices(list(acts), list(acts.values()))
            await getattr(self, f"_{act}")()

    async def _travel(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, LATENCY_S))

    def _place(self) -> Place:
        key = self._world.draw_key(self._rng)
        return key, f"{self._rng.randrange(self._world.sorts):03}"

    def _places(self, most: int) -> list[Place]:
        drawn = [self._place() for _ in range(self._rng.randint(1, most))]
        return list(dict.fromkeys(drawn))

    def _seen(self, consistent: bool) -> dict[Place, Item]:
        rows: dict[Place, Item] = self._plain.seen(consistent, self._world.now_s())
        return rows

    def _store(self, write: Write) -> None:
        new = write.result(self._plain.rows.get(write.place))
        self._plain.write(write.place, new, self._world.now_s())

    async def _write(self) -> None:
        [kind] = self._rng.choices(("Put", "Update", "Delete"), (6, 2, 1))
        write = self._writer.write(kind, self._place())  # type: ignore[arg-type]
        wanted = "ALL_NEW" if kind == "Update" else "ALL_OLD"
        await self._travel()
        old = self._plain.rows.get(write.place)
        request = {**write.request(), "ReturnValues": wanted, "ReturnConsumedCapacity": "INDEXES"}
        answer = self._world.ask(f"{kind}Item", **request)
        if answer is None:
            return
        if answer.get("__type", "").endswith("ConditionalCheckFailedException"):
            self._compare("a condition held of", write.holds(old), False)
            self._compare("an item found", answer.get("Item"), old)
            return
        self._compare("a condition held of", write.holds(old), True)
        self._world.written(write.place[0], answer["ConsumedCapacity"], old, write.result(old))
        self._store(write)
        expected = self._plain.rows.get(write.place) if kind == "Update" else old
        self._compare("an item returned", answer.get("Attributes"), expected)

    async def _write_batch(self) -> None:
        writes = [
            self._writer.write(self._rng.choice(("Put", "Delete")), place, conditions=False)
            for place in self._places(8)
        ]
        await self._travel()
        batch = [write.in_batch() for write in writes]
        answer = self._world.ask("BatchWriteItem", RequestItems={TABLE: batch})
        if answer is not None:
            left = answer["UnprocessedItems"].get(TABLE, [])
            for write in writes:
                if write.in_batch() not in left:
                    self._store(write)

    async def _write_together(self) -> None:
        kinds: tuple[Any, ...] = ("Put", "Update", "Delete", "ConditionCheck")
        writes = [self._writer.write(self._rng.choice(kinds), p) for p in self._places(4)]
        token = {"ClientRequestToken": self._writer.write("Put", ("", "")).value[:30]}
        request = {
            "TransactItems": [{write.kind: write.request()} for write in writes],
            **(token if self._rng.random() < 0.5 else {}),
        }
        await self._travel()
        answer = self._world.ask("TransactWriteItems", **request)
        held = [write.holds(self._plain.rows.get(write.place)) for write in writes]
        if answer is None:
            return
        if "CancellationReasons" in answer:
            codes = [reason["Code"] == "None" for reason in answer["CancellationReasons"]]
            self._compare("conditions held of", codes, held)
            return
        self._compare("conditions held of", all(held), True)
        for write in writes:
            self._store(write)
        if "ClientRequestToken" in request:
            await self._travel()
            self._world.ask("TransactWriteItems", **request)  # a repeat: nothing may change

    async def _get(self) -> None:
        place, consistent = self._place(), self._rng.random() < 0.5
        await self._travel()
        request = {"Key": key_of(place), "ConsistentRead": consistent}
        answer = self._world.ask(
            "GetItem", TableName=TABLE, ReturnConsumedCapacity="TOTAL", **request
        )
        if answer is not None:
            self._compare("an item found", answer.get("Item"), self._seen(consistent).get(place))
            self._world.has_read(place[0], answer["ConsumedCapacity"]["CapacityUnits"])

    async def _get_batch(self) -> None:
        places, consistent = self._places(8), self._rng.random() < 0.5
        await self._travel()
        wanted = {"Keys": [key_of(place) for place in places], "ConsistentRead": consistent}
        answer = self._world.ask("BatchGetItem", RequestItems={TABLE: wanted})
        if answer is None:
            return
        left = answer["UnprocessedKeys"].get(TABLE, {}).get("Keys", [])
        read = [place for place in places if key_of(place) not in left]
        seen = self._seen(consistent)
        expected = [seen[place] for place in read if place in seen]
        self._compare("a batch found", answer["Responses"][TABLE], expected)

    async def _get_together(self) -> None:
        places = self._places(4)
        await self._travel()
        gets = [{"Get": {"TableName": TABLE, "Key": key_of(place)}} for place in places]
        answer = self._world.ask("TransactGetItems", TransactItems=gets)
        if answer is not None:
            found = [response.get("Item") for response in answer["Responses"]]
            rows = self._plain.rows
            self._compare("items found", found, [rows.get(place) for place in places])

    async def _count(self) -> None:
        await self._travel()
        table = self._world.ask("DescribeTable", TableName=TABLE)["Table"]
        self._compare("rows counted", table["ItemCount"], len(self._plain.rows))

    async def _query(self) -> None:
        key, _ = self._place()
        values: Item = {":p": {"S": key}}
        condition, belongs = "pk = :p", _of_key(key)
        if self._rng.random() < 0.3:
            low, high = sorted((self._place()[1], self._place()[1]))
            values |= {":low": {"S": low}, ":high": {"S": high}}
            condition, belongs = (
                f"{condition} AND sk BETWEEN :low AND :high",
                _of_key(key, low, high),
            )
        forward = self._rng.random() < 0.5
        await self._walk(
            "Query",
            Wanted(belongs, backwards=not forward),
            {
                "KeyConditionExpression": condition,
                "ExpressionAttributeValues": values,
                "ScanIndexForward": forward,
                "ReturnConsumedCapacity": "TOTAL",
            },
            lambda units: self._world.has_read(key, units),
        )

    async def _scan(self) -> None:
        """The whole table, or all segments of it side by side."""
        total = self._rng.choice((1, 1, 2, 3, 5))
        if total == 1:
            await self._walk("Scan", Wanted(lambda _: True), {})
            return
        pages = await asyncio.gather(*(self._segment(number, total) for number in range(total)))
        if all(found is not None for found in pages):
            places = [place_of(item) for found in pages for item in found or []]
            self._compare("rows met twice by segments", len(places), len(set(places)))

    async def _segment(self, number: int, total: int) -> list[Item] | None:
        def belongs(place: Place) -> bool:
            return by_token(place)[0] * total >> 64 == number

        return await self._walk(
            "Scan", Wanted(belongs), {"Segment": number, "TotalSegments": total}
        )

    async def _walk(
        self,
        operation: str,
        wanted: Wanted,
        request: Item,
        charged: Callable[[float], None] = lambda _: None,
    ) -> list[Item] | None:
        """Page by page, while others write and rows move; None if it is throttled too often."""
        consistent, limit = self._rng.random() < 0.5, self._rng.choice(LIMITS[operation])
        request = {**request, "TableName": TABLE, "ConsistentRead": consistent, "Limit": limit}
        found: list[Item] = []
        after: Place | None = None
        patience = PATIENCE
        before, version = None, self._world.changes()
        while patience:
            await self._travel()
            answer = self._world.ask(operation, **request)
            rows = self._seen(consistent)
            before = dict(rows) if before is None else before
            if answer is None:
                patience -= 1
                continue
            if "ConsumedCapacity" in answer:
                charged(answer["ConsumedCapacity"]["CapacityUnits"])
            check_page(answer, wanted.page(rows, after, limit), rows, limit)
            found += answer["Items"]
            if "LastEvaluatedKey" not in answer:
                check_walk(before, rows, wanted, found)
                self._world.counts["walks over changes"] += version != self._world.changes()
                return found
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
            after = place_of(answer["LastEvaluatedKey"])
        return None

    def _compare(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise Violation(f"{what}: {found}, not {expected}")


def _of_key(key: str, low: str = "", high: str = "~") -> Callable[[Place], bool]:
    return lambda place: place[0] == key and low <= place[1] <= high
