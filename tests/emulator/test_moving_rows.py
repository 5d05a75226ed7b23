"""Rows move between partitions while requests go on: no answer differs from a plain dictionary's.

Limits are out of reach and partitions are split, isolated and merged at times that are drawn, with
the moves stopped at any row in between.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heatsink.emulator import adaptation
from heatsink.emulator.capacity.table import SPACE
from heatsink.emulator.rows import token_of
from heatsink.emulator.settings import EngineSettings
from heatsink.testing import ManualClock

from .calls import TABLE, Calls
from .forced import ForcedChanges

FREE = EngineSettings(write_limit=1e9, read_limit=1e9, partitions=2)
HASHES = [f"key{number}" for number in range(12)]
SORTS = [f"{number:02}" for number in range(6)]
WORKLOADS = 120

writes = st.tuples(
    st.sampled_from(["put", "put", "put", "delete", "update"]),
    st.sampled_from(HASHES),
    st.sampled_from(SORTS),
)
reads = st.tuples(
    st.sampled_from(["get", "query", "back", "scan"]),
    st.sampled_from(HASHES),
    st.sampled_from(SORTS),
)
changes = st.tuples(
    st.sampled_from(["split", "isolate", "merge", "tend", "tend"]),
    st.sampled_from([*map(token_of, HASHES), SPACE // 3, SPACE // 2, SPACE - 9]),
    st.just(""),
)
steps = st.lists(st.one_of(writes, writes, reads, changes), min_size=10, max_size=60)


class World:
    """The engine and the dictionary, side by side."""

    def __init__(self) -> None:
        self.calls = Calls(ManualClock(), FREE)
        self.calls.create()
        self.plain: dict[tuple[str, str], str] = {}
        table = self.calls.engine.table(TABLE)
        self._adaptive = table.throughput.adaptive
        self._forced = ForcedChanges(table)
        self._written = 0

    def do(self, what: str, where: Any, sort: str) -> None:
        getattr(self, what)(where, sort)

    def put(self, hash_: str, sort: str) -> None:
        self._written += 1
        item = {"pk": {"S": hash_}, "sk": {"S": sort}, "x": {"S": str(self._written)}}
        self.calls("PutItem", TableName=TABLE, Item=item)
        self.plain[hash_, sort] = str(self._written)

    def update(self, hash_: str, sort: str) -> None:
        self._written += 1
        self.calls(
            "UpdateItem",
            TableName=TABLE,
            Key={"pk": {"S": hash_}, "sk": {"S": sort}},
            UpdateExpression="SET x = :x",
            ExpressionAttributeValues={":x": {"S": str(self._written)}},
        )
        self.plain[hash_, sort] = str(self._written)

    def delete(self, hash_: str, sort: str) -> None:
        self.calls("DeleteItem", TableName=TABLE, Key={"pk": {"S": hash_}, "sk": {"S": sort}})
        self.plain.pop((hash_, sort), None)

    def get(self, hash_: str, sort: str) -> None:
        found = self.calls.get(hash_, sort).get("Item")
        assert (found and found["x"]["S"]) == self.plain.get((hash_, sort))

    def query(self, hash_: str, _: str, forward: bool = True) -> None:
        """Page by page, with rows that move between the pages."""
        found = self.pages(
            "Query",
            KeyConditionExpression="pk = :p",
            ExpressionAttributeValues={":p": {"S": hash_}},
            ScanIndexForward=forward,
        )
        wanted = [(key, value) for key, value in sorted(self.plain.items()) if key[0] == hash_]
        assert found == (wanted if forward else wanted[::-1])

    def back(self, hash_: str, sort: str) -> None:
        self.query(hash_, sort, forward=False)

    def scan(self, _: str, __: str) -> None:
        found = self.pages("Scan")
        in_order = sorted(self.plain.items(), key=lambda one: (token_of(one[0][0]), one[0]))
        assert found == in_order
        assert self.calls("DescribeTable", TableName=TABLE)["Table"]["ItemCount"] == len(found)

    def pages(self, operation: str, **request: Any) -> list[tuple[tuple[str, str], str]]:
        found: list[tuple[tuple[str, str], str]] = []
        while True:
            page = self.calls(operation, TableName=TABLE, Limit=2, **request)
            assert self.calls.status == 200
            found += [((i["pk"]["S"], i["sk"]["S"]), i["x"]["S"]) for i in page["Items"]]
            if "LastEvaluatedKey" not in page:
                return found
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]
            self.tend()

    def split(self, at: int, _: str) -> None:
        self._forced.split(at)

    def isolate(self, key: int, _: str) -> None:
        self._forced.isolate(key)

    def merge(self, at: int, _: str) -> None:
        self._forced.merge(at)

    def tend(self, *_: Any) -> None:
        self.calls.engine.tend()

    def partitions(self) -> int:
        """Every row is in the partition that its token belongs to."""
        [report] = self.calls.engine.partitions()
        for one in report.partitions:
            mine = [
                key for key in self.plain if one.state.start <= token_of(key[0]) < one.state.end
            ]
            if one.moved is None and not self._adaptive.partition(one.state.number).changing:
                assert one.rows == len(mine)
        return len(report.partitions)


@pytest.fixture(autouse=True)
def one_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation, "MOVED_AT_ONCE", 1)


@settings(
    max_examples=WORKLOADS,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps)
def test_every_answer_is_that_of_a_dictionary_whatever_moves_when(drawn: list[Any]) -> None:
    world = World()
    for what, where, sort in drawn:
        world.do(what, where, sort)
    for hash_ in HASHES:
        world.query(hash_, "")
        world.back(hash_, "")
    world.scan("", "")
    world.partitions()


def test_a_long_walk_splits_and_merges_dozens_of_times() -> None:
    rng, world, most = Random(5), World(), 0
    tokens = [*map(token_of, HASHES), *(rng.getrandbits(64) for _ in range(20))]
    for number in range(3_000):
        rng.choice([world.put, world.delete, world.update])(rng.choice(HASHES), rng.choice(SORTS))
        world.tend()
        if number % 20 == 0:
            rng.choice([world.split, world.isolate, world.merge])(rng.choice(tokens), "")
            most = max(most, world.partitions())
        if number % 50 == 0:
            world.scan("", "")
            world.query(rng.choice(HASHES), "")
    assert most > 10


def test_a_scan_meets_what_stays_once_while_other_rows_come_and_go_and_all_move() -> None:
    rng, world = Random(6), World()
    stays, comes = HASHES[:6], HASHES[6:]
    for hash_ in stays:
        for sort in SORTS:
            world.put(hash_, sort)
    for _ in range(30):
        seen: list[tuple[str, str]] = []
        request: dict[str, Any] = {}
        while True:
            page = world.calls("Scan", TableName=TABLE, Limit=3, **request)
            seen += [(i["pk"]["S"], i["sk"]["S"]) for i in page["Items"]]
            if "LastEvaluatedKey" not in page:
                break
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]
            rng.choice([world.put, world.delete])(rng.choice(comes), rng.choice(SORTS))
            rng.choice([world.split, world.isolate, world.merge])(token_of(rng.choice(HASHES)), "")
            world.tend()
        kept = [key for key in seen if key[0] in stays]
        assert sorted(kept) == [(hash_, sort) for hash_ in stays for sort in SORTS]
        assert len(set(seen)) == len(seen)
