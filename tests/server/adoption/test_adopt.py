"""`heatsink adopt`: the dry run, writers who go past Heatsink, and the way back."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import heatsink
from heatsink.cli import main
from heatsink.door.core import Core
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.keys import TAG, physical, subject_in
from heatsink.door.places import ItemPlaces
from heatsink.door.protocol import WireError
from heatsink.door.records import record_of
from heatsink.door.times import millis_text
from heatsink.emulator.settings import EngineSettings
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.adoption import Adoptions, completion, departure, trials
from heatsink.registry.decisions import BUCKETS, Decision, LogEntry, View
from heatsink.registry.declarations import declare
from heatsink.server.adoption import leaving, steps
from heatsink.server.adoption.steps import Sweep, registry_at
from heatsink.server.door.tables import read_tables
from heatsink.spread.policy import BucketRules
from heatsink.stores.dynamodb.address import parse
from heatsink.testing.dynamodb import LocalDynamoDB
from tests.door.world import NoHeat
from tests.server.door.conftest import CHAT, make_table
from tests.waiting import soon, until

pytestmark = pytest.mark.server("the emulator listens")

OURS = "arn:aws:iam::111122223333:role/shop"
ROOM, BUCKET_COUNT = "r1", 4
LEAVING = ("--leave", "--in-flight", "0")
FIXED = """
[[table.rule]]
prefix = "T#"
buckets = 3
"""


class Place:
    """A table of a user, and a registry that has spread one of its keys."""

    def __init__(self, dynamodb: LocalDynamoDB, folder: Path) -> None:
        self.client: Any = dynamodb.client()
        self.url = dynamodb.url
        self.registry = f"sqlite:///{folder}/registry.db"
        self.table = f"dynamodb://chat?endpoint={dynamodb.url}"
        make_table(self.client, "chat")
        with heatsink.connect_sync(self.registry, coordinate=False):
            pass

    def run(self, *flags: str) -> Result:
        return CliRunner().invoke(main, ["adopt", self.registry, self.table, *flags])

    def leave(self, *flags: str) -> Result:
        return self.run(*LEAVING, *flags)

    def spread(self) -> int:
        """Complete the adoption, spread the room, and return since when it is spread, in ms."""
        assert self.run("--complete").exit_code == 0
        with heatsink.connect_sync(self.registry) as hs:
            subject = subject_in("chat", ROOM)
            hs.pin(subject, buckets=BUCKET_COUNT, reason="test")
            until(lambda: hs.explain(subject).buckets == BUCKET_COUNT)
            return int(hs.explain(subject).epochs[-1].start_ms)

    def put(self, room: str, number: int, **more: Any) -> dict[str, Any]:
        item = {"room": {"S": room}, "at": {"S": f"MSG#{number:013}"}, "n": {"N": "1"}, **more}
        self.client.put_item(TableName="chat", Item=item)
        return item

    def rows(self) -> list[dict[str, Any]]:
        return list(self.client.scan(TableName="chat")["Items"])

    def in_buckets(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if TAG in row["room"]["S"]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with LocalDynamoDB() as dynamodb:
        yield Place(dynamodb, tmp_path)


async def test_before_the_adoption_everything_is_decided_and_nothing_is_spread(
    place: Place, tmp_path: Path
) -> None:
    rules = BucketRules(bucket_units_s=10)
    subject = subject_in("chat", "hot")
    async with heatsink.connect(place.registry, rules=rules) as hs:
        view = hs.parts.registry.view

        def decided() -> bool:
            hs.parts.tracker.record(subject.text, 100)
            return bool(trials(view, "chat"))

        await soon(decided)
        assert view.layout(subject.text).buckets == 1
        assert "a dry run: it would have had" in (await hs.explain(subject)).reason
    (tmp_path / "tables.toml").write_text(CHAT)
    tables = ("--tables", str(tmp_path / "tables.toml"))
    result = json.loads((await asyncio.to_thread(place.run, "--json", *tables)).stdout)
    assert result["state"] == "dry run"
    assert result["ahead"] == []
    assert result["would"][0]["partition_key"] == "hot"
    assert result["would"][0]["buckets"] > 1
    assert "would have had" in (await asyncio.to_thread(place.run)).stdout
    future = f"MSG#{(int(time.time()) + 86_400) * 1_000}"
    item = {"room": {"S": "hot"}, "at": {"S": future}}
    await asyncio.to_thread(place.client.put_item, TableName="chat", Item=item)
    said = (await asyncio.to_thread(place.run, *tables)).stdout
    assert f"in the future: hot {future} is dated 86," in said


def test_a_trial_keeps_the_highest_number_of_buckets() -> None:
    view = View()
    adoptions = Adoptions(view)
    key = Subject(Kind.TABLE, "chat/r1")

    def decide(buckets: int) -> list[Decision]:
        found = adoptions.allowed([Decision(key, BUCKETS, buckets, "hot")])
        version = view.version + 1
        start_ms = 1_000 * version
        view.apply(LogEntry(version, start_ms, start_ms, tuple(found)))
        return found

    assert [one.subject.kind for one in decide(4)] == [Kind.TRIAL]
    assert decide(3) == []
    assert [one.value for one in decide(6)] == [6]
    view.apply(LogEntry(view.version + 1, 0, 90_000, (completion("chat", 5),)))
    assert [one.subject.kind for one in decide(4)] == [Kind.TABLE]
    view.apply(LogEntry(view.version + 1, 0, 99_000, (departure("chat"),)))
    assert decide(5) == []


def test_the_trail_names_writers_that_go_past_heatsink(tmp_path: Path, place: Place) -> None:
    def event(name: str, arn: str, table: str = "chat", **more: Any) -> dict[str, Any]:
        issuer = {"sessionContext": {"sessionIssuer": {"arn": arn}}, "arn": f"{arn}/session"}
        return {
            "eventSource": "dynamodb.amazonaws.com",
            "eventName": name,
            "eventTime": "2026-11-17T06:00:00Z",
            "userAgent": "aws-sdk-go-v2",
            "userIdentity": issuer,
            "requestParameters": {"tableName": table},
            **more,
        }

    batch: dict[str, Any] = {
        "requestParameters": {},
        "resources": [{"ARN": "arn:aws:dynamodb:x:1:table/chat"}],
    }
    records = [
        event("PutItem", OURS),
        event("PutItem", "arn:cron"),
        event("BatchWriteItem", "arn:cron", **batch),
        event("GetItem", "arn:reader"),
        event("PutItem", "arn:other", table="orders"),
        event("PutItem", "arn:denied", errorCode="AccessDenied"),
    ]
    file = tmp_path / "trail.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"Records": records}).encode()))
    result = place.run("--check", "--trail", str(file), "--role", OURS, "--json")
    assert result.exit_code == 1
    (writer,) = json.loads(result.stdout)["writers"]
    assert (writer["who"], writer["writes"]) == ("arn:cron", 2)
    assert writer["operations"] == ["PutItem", "BatchWriteItem"]
    (tmp_path / "no.json").write_text("[]")
    wrong = place.run("--check", "--trail", str(tmp_path / "no.json"))
    assert "is no log file of CloudTrail" in wrong.stderr


def test_the_policy_lets_only_the_role_write(place: Place) -> None:
    policy = json.loads(place.run("--policy", "--role", OURS).stdout)
    (statement,) = policy["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"ArnNotEquals": {"aws:PrincipalArn": [OURS]}}
    assert statement["Resource"].endswith(":table/chat")
    assert "dynamodb:PartiQLInsert" in statement["Action"]
    assert "--role" in place.run("--policy").stderr


def test_rows_that_were_written_past_heatsink_are_found(place: Place, tmp_path: Path) -> None:
    since_ms = place.spread()
    (tmp_path / "tables.toml").write_text(CHAT)
    flags = ("--check", "--tables", str(tmp_path / "tables.toml"), "--json")
    place.put(ROOM, since_ms - 3_600_000)
    place.put("cold", since_ms + 5)
    assert place.run(*flags).exit_code == 0
    stray = place.put(ROOM, since_ms + 7)
    result = place.run(*flags)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["rows"] == [{"partition_key": ROOM, "sort_key": stray["at"]}]


def test_strays_are_moved_into_place_and_nothing_is_lost(place: Place, tmp_path: Path) -> None:
    since_ms = place.spread()
    declared = read_tables_of(tmp_path)
    room = {"room": {"S": ROOM}}

    async def count() -> int:
        """Query the room through Heatsink."""
        async with registry_at(place.registry, SystemClock()) as registry:
            given = {"KeyConditionExpression": "room = :r", "ConsistentRead": False}
            asked = {"TableName": "chat", "ExpressionAttributeValues": {":r": room["room"]}}
            core = Core([declared], registry.view, registry.meta.seed, NoHeat(), place.registry)
            steps = core.begin("Query", {**asked, **given})
            assert steps is not None
            answers = None
            try:
                while True:
                    needs = next(steps) if answers is None else steps.send(answers)
                    answers = [place.client.query(**one.parameters) for one in needs]  # type: ignore[union-attr]
            except StopIteration as end:
                return len(end.value["Items"])

    lone, twice, same = (place.put(ROOM, since_ms + number) for number in (7, 8, 9))
    taken = {**twice, "n": {"N": "2"}}
    for row in (taken, same):
        name = place_of(place, declared, row)
        place.client.put_item(TableName="chat", Item={**row, "room": {"S": name}})
    with pytest.raises(WireError, match=r"run heatsink adopt \S+ chat --move-strays"):
        asyncio.run(count())
    tables = ("--tables", str(tmp_path / "tables.toml"))
    result = place.run("--move-strays", *tables)
    assert result.exit_code == 1
    assert "1 stray row moved into place, 1 were there already" in result.stdout
    assert "conflict" in result.stdout
    result = place.run("--move-strays", *tables, "--strays-to", str(tmp_path / "none" / "s"))
    assert result.exit_code == 2
    assert re.fullmatch(r"heatsink: --strays-to '\S+' cannot be written: .*\n", result.stderr)
    strays = tmp_path / "strays.jsonl"
    result = place.run("--move-strays", *tables, "--strays-to", str(strays))
    assert result.exit_code == 0, result.output
    assert json.loads(strays.read_text()) == twice
    assert asyncio.run(count()) == 3
    stored = {row["at"]["S"]: {**row, **room} for row in place.in_buckets()}
    assert stored == {row["at"]["S"]: row for row in (lone, taken, same)}
    assert len(place.rows()) == 3


def read_tables_of(folder: Path) -> SpreadTable:
    (folder / "tables.toml").write_text(CHAT)
    [table] = read_tables(folder / "tables.toml")
    return table


def place_of(place: Place, table: SpreadTable, row: dict[str, Any]) -> str:
    async def found() -> str:
        async with registry_at(place.registry, SystemClock()) as registry:
            places = ItemPlaces(table, registry.view, registry.meta.seed)
            keys = places.keys_of(row, exactly=False)
            assert keys is not None
            return places.spot_of(keys).name

    return asyncio.run(found())


def fill(place: Place, count: int) -> None:
    since_ms = place.spread()
    for number in range(count):
        place.put(physical(ROOM, number % BUCKET_COUNT), since_ms + number)


def test_leaving_brings_all_rows_back_under_the_bare_key(place: Place) -> None:
    fill(place, 25)
    place.put("cold", 7)
    before = len(place.rows())
    result = place.leave()
    assert result.exit_code == 0, result.output
    assert "25 rows moved" in result.stdout
    assert not place.in_buckets()
    assert len(place.rows()) == before
    assert "leaves Heatsink" in place.run().stdout
    assert "another registry" in place.run("--complete").stderr


def test_leaving_with_a_scan_finds_buckets_that_no_layout_names(place: Place) -> None:
    fill(place, 3)
    place.put(physical("fixed", 5), 1)
    place.leave()
    assert len(place.in_buckets()) == 1
    place.leave("--scan")
    assert not place.in_buckets()


def test_leaving_waits_while_the_table_throttles(tmp_path: Path) -> None:
    """A read that is throttled is sent again: else each run would end at the same place."""
    settings = EngineSettings(port=0, write_limit=1e9, read_limit=25, burst_s=1, partitions=1)
    with LocalDynamoDB(settings) as dynamodb:
        place = Place(dynamodb, tmp_path)
        since_ms = place.spread()
        for number in range(24):
            name = physical(ROOM, number % BUCKET_COUNT)
            place.put(name, since_ms + number, body={"S": "x" * 20_000})
        result = place.leave()
        assert result.exit_code == 0, result.output
        assert "24 rows moved" in result.stdout


def test_a_row_with_very_many_attributes_is_moved_too(place: Place) -> None:
    fill(place, 3)
    wide = {f"a{number}": {"N": str(number)} for number in range(600)}
    put = place.put(physical(ROOM, 1), 1, **wide)
    assert "4 rows moved" in place.leave().stdout
    [found] = [row for row in place.rows() if row["at"] == put["at"]]
    assert found == {**put, "room": {"S": ROOM}}


def test_a_row_in_both_places_is_kept_and_reported(place: Place) -> None:
    fill(place, 2)
    row = place.in_buckets()[0]
    place.put(ROOM, int(row["at"]["S"].removeprefix("MSG#")), n={"N": "9"})
    result = place.leave()
    assert result.exit_code == 1
    assert "conflict" in result.stdout
    assert len(place.rows()) == 3
    place.client.delete_item(TableName="chat", Key={"room": {"S": ROOM}, "at": row["at"]})
    assert place.leave().exit_code == 0
    assert not place.in_buckets()


def test_a_row_that_is_written_into_a_bucket_already_read_is_moved_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(place, 5)
    passes, read = [0], leaving.bucket_rows

    async def late(*given: Any) -> AsyncIterator[dict[str, Any]]:
        async for row in read(*given):
            yield row
        passes[0] += 1
        if passes[0] < 3:  # a process with an older view
            place.put(physical(ROOM, 0), passes[0])

    monkeypatch.setattr(steps, "bucket_rows", late)
    result = place.leave()
    assert result.exit_code == 0, result.output
    assert "7 rows moved" in result.stdout
    assert passes == [4]
    assert not place.in_buckets()


def test_rows_that_keep_appearing_in_buckets_are_no_success(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(place, 1)
    numbers, read = iter(range(1_000)), leaving.bucket_rows

    async def stubborn(*given: Any) -> AsyncIterator[dict[str, Any]]:
        async for row in read(*given):
            yield row
        place.put(physical(ROOM, 0), next(numbers))

    monkeypatch.setattr(steps, "bucket_rows", stubborn)
    result = place.leave()
    assert result.exit_code == 1
    assert "rows keep appearing in buckets of table chat" in result.stderr


class Waits(SystemClock):
    """A clock that notes waits instead of waiting."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)


async def test_leaving_first_waits_for_the_calls_of_processes_that_do_not_know_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, address = Waits(), parse("chat", {"endpoint": place.url})
    async with registry_at(place.registry, SystemClock()) as registry:
        closed_ms, begun = registry.meta.closed_ms, registry.now_ms()
        waited: list[float] = []
        read = leaving.bucket_rows

        def reading(*given: Any) -> AsyncIterator[dict[str, Any]]:
            waited.extend(clock.waited)
            return read(*given)

        monkeypatch.setattr(steps, "bucket_rows", reading)
        await steps.leave(registry, address, clock, Sweep(in_flight_s=30.0))
    known_s = (closed_ms - begun) / 1_000  # until all processes know of it
    assert len(waited) == 1
    assert waited[0] >= 30 + max(known_s, 0) - 1


def declare_fixed(place: Place, folder: Path) -> Path:
    """Let the registry know a declaration with a prefix of fixed buckets."""
    path = folder / "fixed.toml"
    path.write_text(CHAT + FIXED)
    [table] = read_tables(path)

    async def record() -> None:
        async with registry_at(place.registry, SystemClock()) as registry:
            await declare(registry, "chat", record_of(table), SystemClock())

    asyncio.run(record())
    return path


def test_rows_under_the_bare_key_whose_prefix_has_fixed_buckets_are_strays(
    place: Place, tmp_path: Path
) -> None:
    path = declare_fixed(place, tmp_path)
    row = {"room": {"S": ROOM}, "at": {"S": "T#7"}, "n": {"N": "1"}}
    place.client.put_item(TableName="chat", Item=row)
    refused = place.run("--complete")
    assert refused.exit_code == 2
    assert "the row 'T#7' of 'r1' has a prefix with fixed buckets" in refused.stderr
    result = place.run("--check", "--tables", str(path), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["rows"] == [{"partition_key": ROOM, "sort_key": row["at"]}]
    assert "1 stray row moved into place" in place.run("--move-strays").stdout
    [moved] = place.in_buckets()
    assert {**moved, "room": row["room"]} == row
    assert place.run("--complete").exit_code == 0
    assert place.run("--check", "--tables", str(path)).exit_code == 0


def test_leaving_moves_rows_out_of_fixed_buckets_that_the_registry_knows(
    place: Place, tmp_path: Path
) -> None:
    declare_fixed(place, tmp_path)
    place.client.put_item(
        TableName="chat", Item={"room": {"S": physical("any", 2)}, "at": {"S": "T#7"}}
    )
    assert "1 row moved" in place.leave().stdout
    assert not place.in_buckets()


def test_leaving_is_continued_after_kill_9(tmp_path: Path) -> None:
    settings = EngineSettings(port=0, write_limit=1e9, read_limit=1e9, latency_s=0.01)
    with LocalDynamoDB(settings) as dynamodb:
        place = Place(dynamodb, tmp_path)
        fill(place, 40)
        command = [sys.executable, "-m", "heatsink", "adopt", place.registry, place.table]
        with subprocess.Popen([*command, *LEAVING], stdout=subprocess.DEVNULL) as process:
            until(lambda: len(place.in_buckets()) < 35)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert place.in_buckets()
        assert len(place.rows()) == 40
        assert place.leave().exit_code == 0
        assert not place.in_buckets()
        assert len(place.rows()) == 40


def test_updates_during_the_move_are_not_lost(place: Place) -> None:
    """Processes that have not heard of the move go on to update rows in their buckets."""
    fill(place, 12)
    keys = [{name: row[name] for name in ("room", "at")} for row in place.in_buckets()]
    done, ending = [0], threading.Event()

    def update() -> None:
        while not ending.is_set():
            for key in keys:
                place.client.update_item(
                    TableName="chat",
                    Key=key,
                    UpdateExpression="ADD n :one",
                    ExpressionAttributeValues={":one": {"N": "1"}},
                )
                done[0] += 1

    writer = threading.Thread(target=update)
    writer.start()
    until(lambda: done[0] > 5)
    place.leave()
    ending.set()
    writer.join()
    assert sum(int(row["n"]["N"]) for row in place.rows()) == len(keys) + done[0]


async def test_processes_refuse_a_table_that_leaves(place: Place) -> None:
    await asyncio.to_thread(place.leave)
    rules = [by_time("MSG#", millis_text)]
    declared = SpreadTable("chat", partition_key="room", sort_key="at", rules=rules)

    async with registry_at(place.registry, SystemClock()) as registry:
        core = Core([declared], registry.view, registry.meta.seed, NoHeat())
        key = {"room": {"S": "r"}, "at": {"S": "a"}}
        with pytest.raises(WireError, match="leaves Heatsink"):
            core.begin("GetItem", {"TableName": "chat", "Key": key})
        with pytest.raises(WireError, match="leaves Heatsink"):
            core.begin("BatchGetItem", {"RequestItems": {"chat": {"Keys": [key]}}})
        assert core.begin("DescribeTable", {"TableName": "chat"}) is None


def test_a_complete_adoption_says_since_when_as_people_read_it(place: Place) -> None:
    assert place.run("--complete").exit_code == 0
    said = place.run().stdout
    found = re.search(r"complete for rows from (\S+\+00:00) \((\d+) ms since 1970\) on", said)
    assert found is not None, said
    assert datetime.fromisoformat(found[1]).timestamp() * 1_000 == pytest.approx(
        int(found[2]), abs=1
    )
