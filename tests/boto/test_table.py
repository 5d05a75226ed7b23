"""Unmodified boto3 on a table with old rows, before, while and after its keys are spread."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from time import time
from typing import Any
from uuid import uuid4

import boto3
import pytest
from boto3.dynamodb.conditions import Attr, Key
from boto3.dynamodb.types import Binary
from botocore.exceptions import ClientError

from heatsink.boto import Table, times
from heatsink.door.keys import registry_key
from heatsink.errors import Closed, InvalidId, InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.registry.adoption import completed_ms
from heatsink.server.commands.fsck import run_fsck
from tests.planted import usually
from tests.waiting import until

from .conftest import HEATSINK, KEYS, Engine

OLD_MS = 1_700_000_000_000


def millis_key(time_ms: int, tail: object = "x") -> str:
    return f"{time_ms}#{tail}"


def now_ms() -> int:
    return int(time() * 1000)


def complete_ms_of(shop: Shop) -> float:
    return completed_ms(shop.table._attachment._background.view, shop.plain.name)


class Shop:
    """A user's table, its plain boto3 resource, and Heatsink over it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.plain = engine.make_table(f"chat-{uuid4().hex}")
        self.table = self.over()
        self.model: dict[str, dict[str, Any]] = {}

    def over(self, **settings: Any) -> Table:
        return Table(
            self.plain,
            partition_key=KEYS[0],
            sort_key=KEYS[1],
            time_of=times.millis_text,
            registry=self.engine.registry,
            **settings,
        )

    def item(self, sent: str, text: str) -> dict[str, Any]:
        return {"conversation": "c1", "sent": sent, "text": text}

    def write(self, put: Any, sent: str, text: str) -> None:
        item = self.item(sent, text)
        put(Item=item)
        self.model[sent] = item

    def spread(self, buckets: int) -> None:
        """Pin, wait for the epoch, and for a time inside it."""
        self.table.pin("c1", buckets=buckets, reason="test")
        until(lambda: self.table.explain("c1").layout.buckets == buckets)
        start_ms = self.table.explain("c1").layout.epochs[-1].start_ms
        until(lambda: now_ms() > start_ms)

    def everything(self, table: Any, limit: int | None, forward: bool, **more: Any) -> list[Any]:
        items: list[Any] = []
        parameters: dict[str, Any] = {
            "KeyConditionExpression": Key("conversation").eq("c1"),
            "ScanIndexForward": forward,
            "ConsistentRead": True,
            **({} if limit is None else {"Limit": limit}),
            **more,
        }
        while True:
            answer = table.query(**parameters)
            assert answer["Count"] == len(answer["Items"]) == answer["ScannedCount"]
            assert limit is None or answer["Count"] <= limit
            items += answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return items
            parameters["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def expected(self, forward: bool = True) -> list[Any]:
        return [self.model[sent] for sent in sorted(self.model, reverse=not forward)]

    def physical_keys(self) -> set[str]:
        items: list[Any] = self.plain.scan()["Items"]
        return {item["conversation"] for item in items}


@pytest.fixture
def shop(engine: Engine) -> Iterator[Shop]:
    shop = Shop(engine)
    yield shop
    shop.table.close()


def test_what_is_no_table_is_refused(shop: Shop) -> None:
    for other in ("chat", shop.plain.meta.client, boto3.resource("dynamodb", "eu-west-1")):
        with pytest.raises(InvalidSetting, match="boto_table must be boto3"):
            Table(
                other,
                partition_key="conversation",
                sort_key="sent",
                time_of=times.millis,
                registry="memory://",
            )


def test_a_closed_table_says_so(shop: Shop) -> None:
    shop.spread(4)
    sent = millis_key(now_ms())
    shop.write(shop.table.put_item, sent, "hello")
    shop.table.close()
    with pytest.raises(ClientError, match="is closed"):
        shop.table.get_item(Key={"conversation": "c1", "sent": sent})
    with pytest.raises(ClientError, match="is closed"):
        shop.table.query(KeyConditionExpression=Key("conversation").eq("c1"))
    with pytest.raises(ClientError, match="is closed"):
        shop.write(shop.table.put_item, millis_key(now_ms()), "again")
    with pytest.raises(Closed, match="this attachment is closed"):
        shop.table.pin("c1", buckets=2, reason="launch")
    with pytest.raises(Closed, match="this attachment is closed"):
        shop.table.explain("c1")


def test_the_clients_own_calls_stay_as_they_are(shop: Shop) -> None:
    shop.spread(4)
    sent = millis_key(now_ms())
    shop.write(shop.table.put_item, sent, "placed")
    assert "Item" not in shop.plain.get_item(Key={"conversation": "c1", "sent": sent})
    assert len(shop.plain.scan()["Items"]) == 1


def test_old_rows_and_new_ones_read_as_one_through_1_4_2(shop: Shop) -> None:
    for n in range(30):
        shop.write(shop.plain.put_item, millis_key(OLD_MS + n), f"old {n}")
    for buckets in (4, 2):
        shop.spread(buckets)
        for n in range(40):
            shop.write(shop.table.put_item, millis_key(now_ms(), n), f"at {buckets}")
    assert len(shop.physical_keys()) == 5
    for forward in (True, False):
        for limit in (None, 1, 7, 100, 1_000):
            assert shop.everything(shop.table, limit, forward) == shop.expected(forward)
    for sent, item in shop.model.items():
        answer = shop.table.get_item(Key={"conversation": "c1", "sent": sent})
        assert answer["Item"] == item


@pytest.mark.parametrize("seed", range(usually(1, full=3)))
def test_random_traffic_equals_a_dict(shop: Shop, seed: int) -> None:
    """With strays: rows under the bare key of times at which the key had buckets."""
    rng = Random(seed)
    moments = [OLD_MS + n for n in range(20)]
    for buckets in (1, 3, 5, 2):
        if buckets > 1:
            shop.spread(buckets)
            moments += [now_ms()] * 8
        for step in range(25):
            sent = millis_key(rng.choice(moments), rng.randrange(3))
            _random_step(shop, rng, sent, step)
        _compare_ranges(shop, rng)


def _random_step(shop: Shop, rng: Random, sent: str, step: int) -> None:
    choice = rng.random()
    if choice < 0.2:
        shop.table.delete_item(Key={"conversation": "c1", "sent": sent})
        shop.model.pop(sent, None)
    elif choice < 0.4 and sent not in shop.model:
        shop.write(shop.plain.put_item, sent, f"plain {step}")
    else:
        shop.write(shop.table.put_item, sent, f"ours {step}")


def _compare_ranges(shop: Shop, rng: Random) -> None:
    sent = sorted(shop.model)
    low, high = sorted((rng.choice(sent), rng.choice(sent)))
    key = Key("sent")
    cases: list[tuple[Any, Callable[[str], bool]]] = [
        (key.between(low, high), lambda s: low <= s <= high),
        (key.gt(low), lambda s: s > low),
        (key.gte(low), lambda s: s >= low),
        (key.lt(high), lambda s: s < high),
        (key.lte(high), lambda s: s <= high),
        (key.eq(low), lambda s: s == low),
        (key.begins_with("17"), lambda s: s.startswith("17")),
        (key.begins_with(low[:13]), lambda s: s.startswith(low[:13])),
    ]
    for condition, holds in cases:
        where = Key("conversation").eq("c1") & condition
        for forward in (True, False):
            found = shop.everything(
                shop.table, rng.choice((None, 1, 2, 9)), forward, KeyConditionExpression=where
            )
            assert found == [item for item in shop.expected(forward) if holds(item["sent"])]


def test_put_replaces(shop: Shop) -> None:
    shop.write(shop.plain.put_item, millis_key(OLD_MS), "first")
    shop.spread(4)
    fresh = millis_key(now_ms())
    for text in ("second", "third"):
        for sent in (millis_key(OLD_MS), fresh):
            shop.write(shop.table.put_item, sent, text)
    assert shop.everything(shop.table, None, True) == shop.expected()
    assert len(shop.plain.scan()["Items"]) == 2


def test_writers_without_heatsink_are_seen_until_adoption_is_complete(shop: Shop) -> None:
    shop.spread(4)
    stray = millis_key(now_ms(), "stray")
    shop.write(shop.plain.put_item, stray, "by an old program")
    assert shop.everything(shop.table, 1, True) == shop.expected()
    assert "Item" in shop.table.get_item(Key={"conversation": "c1", "sent": stray})
    command = [*HEATSINK, "adopt", shop.engine.registry, shop.plain.name]
    assert b"append-only" in subprocess.run(command, capture_output=True, check=True).stdout
    said = subprocess.run([*command, "--complete"], capture_output=True, check=True).stdout
    assert b"is complete" in said
    since = said.partition(b"rows from ")[2].split()[0].decode()
    complete_ms = datetime.fromisoformat(since).timestamp() * 1000
    again = subprocess.run([*command, "--complete"], capture_output=True, check=True).stdout
    assert again == said
    assert shop.everything(shop.table, 1, True) == shop.expected(), "old strays stay readable"
    until(lambda: now_ms() > complete_ms and complete_ms_of(shop) < now_ms())
    late = millis_key(now_ms(), "late")
    shop.plain.put_item(Item=shop.item(late, "against the promise"))
    shop.write(shop.table.put_item, millis_key(now_ms(), "ours"), "ours")
    for limit in (1, None):
        for forward in (True, False):
            assert shop.everything(shop.table, limit, forward) == shop.expected(forward)
    assert "Item" not in shop.table.get_item(Key={"conversation": "c1", "sent": late})


def test_the_buckets_row_is_preferred_and_delete_removes_both(shop: Shop) -> None:
    shop.spread(4)
    sent = millis_key(now_ms())
    shop.plain.put_item(Item=shop.item(sent, "bare"))
    shop.write(shop.table.put_item, sent, "placed")
    for limit in (None, 1):
        for forward in (True, False):
            assert shop.everything(shop.table, limit, forward) == shop.expected()
    shop.table.delete_item(Key={"conversation": "c1", "sent": sent})
    assert shop.everything(shop.table, None, True) == []
    assert shop.plain.scan()["Items"] == []


def test_an_item_from_the_future_can_be_deleted(shop: Shop) -> None:
    """A program without Heatsink may have put it; to delete it takes no layout of its time."""
    shop.spread(4)
    sent = [millis_key(now_ms() + ahead_ms) for ahead_ms in (1_500, 60_000, 10**9)]
    for one in sent:
        shop.plain.put_item(Item=shop.item(one, "early"))
    shop.table.delete_item(Key={"conversation": "c1", "sent": sent[0]})
    shop.table.delete_item(Key={"conversation": "c1", "sent": sent[1]})
    with shop.table.batch_writer() as batch:
        batch.delete_item(Key={"conversation": "c1", "sent": sent[2]})
    assert shop.plain.scan()["Items"] == []


def test_a_page_token_survives_a_change_of_layout(shop: Shop) -> None:
    for n in range(20):
        shop.write(shop.table.put_item, millis_key(now_ms(), n), "before")
    where = Key("conversation").eq("c1")
    first = shop.table.query(KeyConditionExpression=where, Limit=7)
    token = first["LastEvaluatedKey"]
    assert token == {key: first["Items"][-1][key] for key in KEYS}
    shop.spread(4)
    for n in range(20):
        shop.write(shop.table.put_item, millis_key(now_ms(), n), "after")
    rest = shop.everything(shop.table, 7, True, ExclusiveStartKey=token)
    assert first["Items"] + rest == shop.expected()


def test_a_batch_writes_everything_once(shop: Shop) -> None:
    shop.spread(3)
    moment = now_ms()
    with shop.table.batch_writer() as batch:
        for n in [*range(90), *range(10)]:
            shop.write(batch.put_item, millis_key(moment, n), f"{n}")
        batch.delete_item(Key={"conversation": "c1", "sent": millis_key(moment, 5)})
    del shop.model[millis_key(moment, 5)]
    assert shop.everything(shop.table, None, True) == shop.expected()


def test_another_process_with_an_old_view_sees_what_was_acknowledged(shop: Shop) -> None:
    with shop.over() as other:
        for buckets in (4, 1, 3):
            shop.spread(buckets)
            for n in range(10):
                shop.write(shop.table.put_item, millis_key(now_ms(), n), f"{buckets}")
                assert shop.everything(other, 5, False) == shop.expected(False)


def test_a_process_whose_view_stands_still_misses_nothing_and_misplaces_nothing(shop: Shop) -> None:
    """It must renew before it writes, and ask for the layout itself when it reads."""
    with shop.over(coordinate=False) as frozen:
        background = frozen._attachment._background
        following = background._inner.parts.tasks[0]
        background._loop.run(following.cancel)
        shop.spread(4)
        for n in range(10):
            shop.write(shop.table.put_item, millis_key(now_ms(), n), "acknowledged")
        assert shop.table.explain("c1").layout.buckets == 4
        assert background.view.layout(registry_key(shop.plain.name, "c1")).buckets == 1
        assert shop.everything(frozen, 4, False) == shop.expected(False)
        for sent in shop.model:
            assert "Item" in frozen.get_item(Key={"conversation": "c1", "sent": sent})
        for n in range(10):
            shop.write(frozen.put_item, millis_key(now_ms(), n), "by the frozen")
        assert shop.physical_keys() <= {f"c1\u241fhs{n}" for n in range(4)}
        assert shop.everything(shop.table, 4, False) == shop.expected(False)


def test_large_items_come_in_pages_of_about_a_megabyte(shop: Shop) -> None:
    shop.spread(3)
    for n in range(30):
        shop.write(shop.table.put_item, millis_key(now_ms(), n), "x" * 100_000)
    page = shop.table.query(KeyConditionExpression=Key("conversation").eq("c1"))
    assert page["Count"] == 10
    assert shop.everything(shop.table, None, False) == shop.expected(False)


def test_what_is_reserved_or_not_possible_is_refused_by_name(shop: Shop) -> None:
    sent = millis_key(OLD_MS)
    where = Key("conversation").eq("c1")
    reserved = {"conversation": "c1\u241fhs3", "sent": sent}
    with pytest.raises(ClientError, match="reserved for buckets"):
        shop.table.put_item(Item=reserved)
    with pytest.raises(ClientError, match="reserved for buckets"):
        shop.table.query(KeyConditionExpression=Key("conversation").eq("c1\u241fhs3"))
    shop.table.put_item(Item={"conversation": "c1\u241fhs", "sent": sent})
    with pytest.raises(ClientError, match="append_only, so a write cannot have ConditionExpress"):
        shop.table.put_item(Item=shop.item(sent, ""), ConditionExpression=Attr("text").exists())
    with pytest.raises(ClientError, match="ahead of now"):
        shop.table.put_item(Item=shop.item(millis_key(now_ms() + 60_000), ""))
    with pytest.raises(InvalidSetting, match="boto_table"):
        Table(None, partition_key="a", sort_key="b", time_of=int, registry="memory://")
    with pytest.raises(InvalidSetting, match="partition_key is 'room', but table"):
        Table(
            shop.plain,
            partition_key="room",
            sort_key=KEYS[1],
            time_of=times.millis_text,
            registry=shop.engine.registry,
        )
    shop.write(shop.table.put_item, sent, "a")
    shop.write(shop.table.put_item, "without a time", "b")
    page = shop.table.query(KeyConditionExpression=where, FilterExpression=Attr("text").eq("b"))
    assert page["Items"] == [shop.model["without a time"]]


def test_numbers_sort_as_numbers(engine: Engine) -> None:
    plain = engine.make_table(f"chat-{uuid4().hex}", "N")
    plain.put_item(Item={"conversation": "c1", "sent": 9})
    with Table(
        plain,
        partition_key="conversation",
        sort_key="sent",
        time_of=times.seconds,
        registry=engine.registry,
    ) as table:
        table.pin("c1", buckets=4, reason="test")
        until(lambda: table.explain("c1").layout.buckets == 4)
        start_ms = table.explain("c1").layout.epochs[-1].start_ms
        until(lambda: now_ms() > start_ms)
        sent = [Decimal(now_ms()) / 1000 + n * Decimal("1E-9") for n in range(20)]
        for number in sent:
            table.put_item(Item={"conversation": "c1", "sent": number})
        found = table.query(KeyConditionExpression=Key("conversation").eq("c1"), Limit=100)
        assert [item["sent"] for item in found["Items"]] == [Decimal(9), *sent]
        assert "Item" in table.get_item(Key={"conversation": "c1", "sent": sent[3] * 1})


def test_binary_sort_keys_page_too(engine: Engine) -> None:
    plain = engine.make_table(f"chat-{uuid4().hex}", "B")
    with Table(
        plain,
        partition_key="conversation",
        sort_key="sent",
        time_of=lambda sort: int.from_bytes(sort[:6], "big"),
        registry=engine.registry,
    ) as table:
        sent = [(OLD_MS + n).to_bytes(6, "big") + b"\xff" for n in range(5)]
        for one in sent:
            table.put_item(Item={"conversation": "c1", "sent": Binary(one)})
        where = Key("conversation").eq("c1") & Key("sent").gt(sent[0])
        page = table.query(KeyConditionExpression=where, Limit=2)
        rest = table.query(KeyConditionExpression=where, ExclusiveStartKey=page["LastEvaluatedKey"])
        found = [bytes(item["sent"]) for item in page["Items"] + rest["Items"]]
        assert found == sent[1:]
        assert "Item" in table.get_item(Key={"conversation": "c1", "sent": Binary(sent[2])})


@pytest.mark.parametrize(
    ("time_of", "value"),
    [
        (times.iso_text, "2026-11-15T12:00:00.000Z"),
        (times.iso_text, "2026-11-15T12:00:00"),
        (times.seconds, 1_794_744_000),
        (times.millis, 1_794_744_000_000),
        (times.millis_text, "1794744000000#a#b"),
        (times.uuid7_text, "01a1df14-1e00-7000-8000-000000000000"),
        (times.ulid_text, "01M7FH87G00000000000000000"),
        (times.after("MSG#", times.iso_text), "MSG#2026-11-15T12:00:00Z"),
    ],
)
def test_times_are_read_from_sort_keys(time_of: times.TimeOf, value: Any) -> None:
    moment_ms = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp() * 1000)
    assert times.careful(time_of)(value) == moment_ms
    with pytest.raises(InvalidId, match="carries no time"):
        times.careful(time_of)("abc")


def test_reads_are_refused_when_the_registry_is_replaced(engine: Engine, tmp_path: Path) -> None:
    registry = f"sqlite:///{tmp_path}/registry.db"
    plain = engine.make_table(f"chat-{uuid4().hex}")
    names: dict[str, Any] = {"partition_key": KEYS[0], "sort_key": KEYS[1]}
    key = {"conversation": "c1", "sent": millis_key(OLD_MS)}
    asked = Key("conversation").eq("c1")
    with Table(plain, **names, time_of=times.millis_text, registry=registry) as table:
        assert table.query(KeyConditionExpression=asked)["Items"] == []
        asyncio.run(run_fsck(registry, True, SystemClock()))
        until(lambda: bool(table._attachment._background.registry.refusal))
        with pytest.raises(ClientError, match="reconnect"):
            table.get_item(Key=key)
        with pytest.raises(ClientError, match="reconnect"):
            table.query(KeyConditionExpression=asked)
        with pytest.raises(ClientError, match="reconnect"):
            table.put_item(Item=key)
