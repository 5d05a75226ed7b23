"""A chat with a shop, written for plain tables, gives the same answers on a spread table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

import heatsink
from heatsink.boto import Attachment, attach
from heatsink.cli import main
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.keys import TAG
from heatsink.door.times import iso_text
from heatsink.primitives.subjects import Kind, Subject
from tests.adoption import complete_adoption
from tests.door.world import DEFINITION
from tests.waiting import until

from .conftest import Engine
from .shop import CALLS, App, chat, shop, times

names = count()
SINCE_MS = 100  # messages are dated up to 20 ms before now


def declared(name: str) -> SpreadTable:
    rules = [by_time("MSG#", iso_text), by_time("ORDER#", iso_text)]
    return SpreadTable(name, partition_key="pk", sort_key="sk", rules=rules)


class Tables:
    """A plain table, and one that is spread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.client = engine.client()
        self.plain, self.spread = (f"{kind}{next(names)}" for kind in ("plain", "spread"))
        for name in (self.plain, self.spread):
            self.client.create_table(**{**DEFINITION, "TableName": name})

    def spread_room(self, attachment: Attachment, buckets: int) -> None:
        """Wait until new messages of the room go to its buckets."""
        attachment.pin(self.spread, "ROOM#1", buckets=buckets, reason="a test")

        def is_spread() -> bool:
            found = attachment.explain(self.spread, "ROOM#1")
            return found.layout.epoch_at(found.now_ms - SINCE_MS).buckets == buckets

        until(is_spread)

    def spread_index(self) -> None:
        """Spread the index by-kind, and wait until new messages go to several of its buckets."""
        address = f"dynamodb://{self.spread}?endpoint={self.engine.endpoint}"
        flags = ["--index", "by-kind", "--spread", "--in-flight", "0"]
        ran = CliRunner().invoke(main, ["adopt", self.engine.registry, address, *flags])
        assert ran.exit_code == 0, ran.output
        value = Subject(Kind.INDEX, f"{self.spread}/by-kind/message")
        with heatsink.connect_sync(self.engine.registry, coordinate=False) as hs:
            hs.pin(value, buckets=3, reason="a test")

            def is_spread() -> bool:
                found = hs.explain(value)
                return found.layout.epoch_at(found.now_ms - SINCE_MS).buckets == 3

            until(is_spread)

    def stored(self, name: str = "pk") -> set[str]:
        """Return the partition keys of the spread table, or of its index, as they are stored."""
        found = self.client.scan(TableName=self.spread)["Items"]
        return {item[name]["S"] for item in found if name in item}


@pytest.fixture
def tables(engine: Engine) -> Tables:
    made = Tables(engine)
    with attach(engine.resource(), tables=[], registry=engine.registry):  # founds the registry
        complete_adoption(engine.registry, made.spread)
    return made


def attached(target: Any, tables: Tables) -> Attachment:
    return attach(target, tables=[declared(tables.spread)], registry=tables.engine.registry)


def shown(answer: dict[str, Any], table: str) -> dict[str, Any]:
    """Return an answer without what differs between two tables."""
    answer = {name: value for name, value in answer.items() if name != "ResponseMetadata"}
    for field in ("Responses", "UnprocessedItems", "UnprocessedKeys"):
        if isinstance(answer.get(field), dict) and table in answer[field]:
            rows = answer[field][table]
            answer[field] = sorted(rows, key=lambda row: str(row["sk"]))
    return answer


def outcome(call: Any) -> dict[str, Any]:
    try:
        return dict(call())
    except ClientError as error:
        return {
            "error": error.response["Error"],
            "item": error.response.get("Item"),
            "reasons": error.response.get("CancellationReasons"),
        }


def run(app: App, client: Any, table: str) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    try:
        method, parameters = next(app)
        while True:
            answer = outcome(lambda: getattr(client, method)(**parameters))  # noqa: B023
            answers.append(shown(answer, table))
            method, parameters = app.send(answer)
    except StopIteration:
        return answers


async def run_async(app: App, client: Any, table: str) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    try:
        method, parameters = next(app)
        while True:
            try:
                answer = dict(await getattr(client, method)(**parameters))
            except ClientError as error:
                answer = outcome(_raising(error))
            answers.append(shown(answer, table))
            method, parameters = app.send(answer)
    except StopIteration:
        return answers


def _raising(error: Exception) -> Any:
    def call() -> None:
        raise error

    return call


def test_the_application_is_unchanged_on_boto3(tables: Tables) -> None:
    engine = tables.engine
    client = engine.client()
    with attached(client, tables) as attachment:
        tables.spread_index()
        tables.spread_room(attachment, 4)
        at = times(20)
        expected = run(chat(tables.plain, at), tables.client, tables.plain)
        found = run(chat(tables.spread, at), client, tables.spread)
        assert found == expected
        tables.spread_room(attachment, 7)
        at = times(3)
        expected += run(shop(tables.plain, at), tables.client, tables.plain)
        found += run(shop(tables.spread, at), client, tables.spread)
        assert found == expected
    assert len(found) == CALLS
    assert len([name for name in tables.stored() if TAG in name]) > 1
    assert len([name for name in tables.stored("heatsink:by-kind") if TAG in name]) > 1


async def test_the_application_is_unchanged_on_aiobotocore(tables: Tables) -> None:
    engine = tables.engine
    session = import_module("aiobotocore.session").get_session()
    with attached(session, tables) as attachment:
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
        made = session.create_client(
            "dynamodb", region_name="us-east-1", endpoint_url=engine.endpoint, **keys
        )
        async with made as client:
            await asyncio.to_thread(tables.spread_room, attachment, 4)
            at = times(20)
            expected = run(chat(tables.plain, at), tables.client, tables.plain)
            found = await run_async(chat(tables.spread, at), client, tables.spread)
            expected += run(shop(tables.plain, at), tables.client, tables.plain)
            found += await run_async(shop(tables.spread, at), client, tables.spread)
    assert found == expected
    assert len(found) == CALLS
    assert len([name for name in tables.stored() if TAG in name]) > 1


class ByKind(GlobalSecondaryIndex["Message"]):  # type: ignore[no-untyped-call]
    class Meta:
        index_name = "by-kind"
        projection = AllProjection()

    kind = UnicodeAttribute(hash_key=True)
    score = NumberAttribute(range_key=True)


class Message(Model):
    class Meta:
        table_name = ""
        region = "us-east-1"
        aws_access_key_id = "any"
        aws_secret_access_key = "any"  # noqa: S105 (the emulator takes any)

    pk = UnicodeAttribute(hash_key=True)
    sk = UnicodeAttribute(range_key=True)
    author = UnicodeAttribute(null=True)
    kind = UnicodeAttribute(null=True)
    score = NumberAttribute(null=True)
    likes = NumberAttribute(null=True)
    by_kind = ByKind()


def model_of(table: str, engine: Engine) -> type[Message]:
    meta = type("Meta", (Message.Meta,), {"table_name": table, "host": engine.endpoint})
    return type("Message", (Message,), {"Meta": meta})


def pynamo(model: type[Message], engine: Engine, at: list[str]) -> Iterator[Any]:
    """Use a room with PynamoDB, and yield what a person would see."""
    room = "ROOM#1"
    model(room, "META", author="ada").save(model.pk.does_not_exist())
    with pytest.raises(PutError) as failed:
        model(room, "META").save(model.pk.does_not_exist())
    yield failed.value.cause_response_code
    with model.batch_write() as batch:
        for number, time in enumerate(at):
            who, kind = ("ada", "bob")[number % 2], "message"
            batch.save(model(room, f"MSG#{time}#{number}", author=who, kind=kind, score=number))
    liked = model.get(room, f"MSG#{at[2]}#2", consistent_read=True)
    for _ in range(2):
        liked.update([model.likes.add(1)], condition=model.pk == room)
    yield liked.serialize()
    liked.refresh(consistent_read=True)
    yield liked.serialize()
    newest = model.query(
        room,
        model.sk.startswith("MSG#"),
        scan_index_forward=False,
        limit=7,
        page_size=3,
        consistent_read=True,
    )
    yield [one.serialize() for one in newest]
    yield newest.last_evaluated_key
    liking = model.query(room, filter_condition=model.likes > 1, consistent_read=True)
    yield [one.serialize() for one in liking]
    yield model.count(room, model.sk.between("MSG#", "MSG#~"), consistent_read=True)
    yield [one.serialize() for one in model.by_kind.query("message", model.score > 15)]
    yield sorted(one.sk for one in model.scan(model.pk == room))
    keys = [(room, f"MSG#{time}#{number}") for number, time in enumerate(at[:5])]
    yield sorted(one.sk for one in model.batch_get(keys, consistent_read=True))
    connection = Connection(region="us-east-1", host=engine.endpoint)
    connection = model._get_connection().connection or connection
    with TransactWrite(connection=connection) as write:
        write.delete(model(room, f"MSG#{at[1]}#1"), condition=model.author == "bob")
        write.update(model(room, f"MSG#{at[3]}#3"), actions=[model.likes.set(5)])
    yield model.get(room, f"MSG#{at[3]}#3").likes
    yield model.count(room)


def test_the_application_is_unchanged_on_pynamodb(tables: Tables) -> None:
    engine = tables.engine
    plain, spread = (model_of(name, engine) for name in (tables.plain, tables.spread))
    with attached(spread, tables) as attachment:
        tables.spread_room(attachment, 4)
        at = times(20)
        assert list(pynamo(spread, engine, at)) == list(pynamo(plain, engine, at))
    assert len([name for name in tables.stored() if TAG in name]) > 1
