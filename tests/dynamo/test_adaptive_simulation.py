"""A hundred skewed workloads, each with limits and lags of its own: the policy splits and merges.

Nothing is forced here: partitions get hot by the load alone, requests are throttled, and every
answer that is given is a plain dictionary's.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from heatsink.dynamo import adaptation
from heatsink.dynamo.rows.tokens import token_of
from heatsink.dynamo.settings import EngineSettings

from .calls import TABLE, Calls

SEEDS = 100
STEPS = 500
KEYS = [f"room{number}" for number in range(30)]
done: Counter[str] = Counter()


class TurnedClock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def monotonic_s(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


class Workload:
    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed)
        self.clock = TurnedClock()
        settings = EngineSettings(
            write_limit=chance.choice([10, 20, 40]),
            read_limit=chance.choice([30, 1e6]),
            partitions=chance.randint(1, 3),
            split_after_s=chance.uniform(0.5, 2),
            cool_down_s=chance.uniform(0, 1),
            merge_after_s=chance.choice([None, 2.0, 4.0]),
        )
        self.calls = Calls(self.clock, settings)
        provisioned: Any = {"ReadCapacityUnits": 1_000, "WriteCapacityUnits": 200}
        self.calls.create(**chance.choice([{}, {"ProvisionedThroughput": provisioned}]))
        self.plain: dict[tuple[str, str], str] = {}
        self.skew = chance.uniform(0.3, 4)

    def run(self) -> None:
        for number in range(STEPS):
            busy = number < STEPS * 0.7
            self.clock.time_s += self.chance.expovariate(80 if busy else 4)
            if self.chance.random() < 0.5:
                self.calls.engine.tend()
            self.step(number)
        self.check_everything()

    def step(self, number: int) -> None:
        key = KEYS[int(len(KEYS) * self.chance.random() ** self.skew)]
        sort = f"{self.chance.randrange(8):03}"
        kind = self.chance.random()
        if kind < 0.7:
            self.put(key, sort, str(number))
        elif kind < 0.8:
            self.delete(key, sort)
        elif kind < 0.9:
            self.get(key, sort)
        elif kind < 0.98:
            self.query(key, self.chance.random() < 0.5)
        else:
            self.scan()

    def put(self, key: str, sort: str, value: str) -> None:
        item = {"pk": {"S": key}, "sk": {"S": sort}, "x": {"S": value}}
        self.calls("PutItem", TableName=TABLE, Item=item)
        if self.accepted():
            self.plain[key, sort] = value

    def delete(self, key: str, sort: str) -> None:
        self.calls("DeleteItem", TableName=TABLE, Key={"pk": {"S": key}, "sk": {"S": sort}})
        if self.accepted():
            self.plain.pop((key, sort), None)

    def get(self, key: str, sort: str) -> None:
        found = self.calls.get(key, sort).get("Item")
        if self.accepted():
            assert (found and found["x"]["S"]) == self.plain.get((key, sort))

    def query(self, key: str, forward: bool) -> None:
        page = self.calls(
            "Query",
            TableName=TABLE,
            KeyConditionExpression="pk = :p",
            ExpressionAttributeValues={":p": {"S": key}},
            ScanIndexForward=forward,
        )
        if self.accepted():
            wanted = sorted(one for one in self.plain.items() if one[0][0] == key)
            assert rows_of(page) == (wanted if forward else wanted[::-1])

    def scan(self) -> None:
        page = self.calls("Scan", TableName=TABLE)
        if self.accepted():
            ordered = sorted(self.plain.items(), key=lambda one: (token_of(one[0][0]), one[0]))
            assert rows_of(page) == ordered

    def accepted(self) -> bool:
        done["accepted" if self.calls.status == 200 else "throttled"] += 1
        return self.calls.status == 200

    def check_everything(self) -> None:
        rows = self.calls.engine.table(TABLE).rows
        ordered = sorted(self.plain.items(), key=lambda one: (token_of(one[0][0]), one[0]))
        assert rows_of({"Items": [row.item for row in rows.scan()]}) == ordered
        assert rows.size()[0] == len(ordered)
        [report] = self.calls.engine.partitions()
        done.update(event.what for event in report.events if event.done)
        done.update(event.what for event in report.events if event.what == "CannotHelp")


def rows_of(page: Any) -> list[tuple[tuple[str, str], str]]:
    return [((i["pk"]["S"], i["sk"]["S"]), i["x"]["S"]) for i in page["Items"]]


def test_a_hundred_workloads_each_agree_with_a_dictionary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adaptation, "MOVED_AT_ONCE", 3)
    done.clear()
    for seed in range(SEEDS):
        Workload(seed).run()
    assert done["Split"] > 20
    assert done["Isolate"] > 20
    assert done["Merge"] > 20
    assert done["CannotHelp"] > 5
    assert done["throttled"] > 1_000
