"""A chat with a shop, written for plain tables, gives the same answers on a spread table."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from benchmarks.environments import python_of
from pynamodb.attributes import BooleanAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import DoesNotExist, PutError, TransactWriteError, UpdateError
from pynamodb.expressions.update import Action
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex
from pynamodb.models import Model
from pynamodb.transactions import TransactGet, TransactWrite

from heatsink.boto import Attachment, attach
from heatsink.door.keys import TAG
from tests.adoption import complete_adoption, spread_index, spread_value
from tests.door.world import DEFINITION
from tests.waiting import until

from .conftest import Engine
from .shop import CALLS, chat, declared, run, run_async, shop, times

ROOT = Path(__file__).resolve().parents[2]
names = count()
SINCE_MS = 100  # messages are dated up to 20 ms before now


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
        registry = self.engine.registry
        spread_index(registry, self.engine.endpoint, self.spread, "by-kind")
        spread_value(registry, self.spread, "by-kind", "message", SINCE_MS)

    def check_spread(self) -> None:
        """Check that rows of the table, and entries of its index, are in several buckets."""
        found = self.client.scan(TableName=self.spread)["Items"]
        for name in ("pk", "heatsink:by-kind"):
            stored = {item[name]["S"] for item in found if name in item}
            assert len([one for one in stored if TAG in one]) > 1, name


@pytest.fixture
def tables(engine: Engine) -> Tables:
    made = Tables(engine)
    with attach(engine.resource(), tables=[], registry=engine.registry):  # founds the registry
        complete_adoption(engine.registry, made.spread)
    return made


def attached(target: Any, tables: Tables) -> Attachment:
    return attach(target, tables=[declared(tables.spread)], registry=tables.engine.registry)


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
    tables.check_spread()


async def test_the_application_is_unchanged_on_aiobotocore(tables: Tables) -> None:
    engine = tables.engine
    session = import_module("aiobotocore.session").get_session()
    with attached(session, tables) as attachment:
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
        made = session.create_client(
            "dynamodb", region_name="us-east-1", endpoint_url=engine.endpoint, **keys
        )
        async with made as client:
            await client.scan(TableName=tables.spread)  # the first request records the declaration
            await asyncio.to_thread(tables.spread_index)
            await asyncio.to_thread(tables.spread_room, attachment, 4)
            at = times(20)
            expected = run(chat(tables.plain, at), tables.client, tables.plain)
            found = await run_async(chat(tables.spread, at), client, tables.spread)
            expected += run(shop(tables.plain, at), tables.client, tables.plain)
            found += await run_async(shop(tables.spread, at), client, tables.spread)
    assert found == expected
    assert len(found) == CALLS
    tables.check_spread()


def run_elsewhere(name: str, *arguments: str) -> Any:
    """Run `on_NAME.py` in the environment of `NAME.txt`, and return what it prints."""
    python = python_of(Path(__file__).with_name(f"{name}.txt"))
    if python is None and not os.environ.get("CI"):
        pytest.skip(f"{name} could not be fetched from PyPI")
    assert python is not None
    ran = subprocess.run(
        [python, "-m", f"tests.boto.on_{name}", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(ran.stdout)


@pytest.mark.full("makes an environment: aioboto3 needs an older aiobotocore than ours")
@pytest.mark.timeout(300)
def test_the_application_is_unchanged_on_aioboto3(tables: Tables) -> None:
    engine = tables.engine
    with attached(engine.client(), tables) as attachment:
        tables.spread_index()
        tables.spread_room(attachment, 4)
        at = [times(20), times(3)]
        given = [engine.endpoint, engine.registry, tables.spread, json.dumps(at)]
        found = run_elsewhere("aioboto3", *given)
    expected = run(chat(tables.plain, at[0]), tables.client, tables.plain)
    expected += run(shop(tables.plain, at[1]), tables.client, tables.plain)
    count = tables.client.scan(TableName=tables.plain)["Count"]
    assert found == json.loads(json.dumps([*expected, count], default=repr))
    assert len(found) == CALLS + 1
    tables.check_spread()


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
    left = NumberAttribute(null=True)
    qty = NumberAttribute(null=True)
    paid = BooleanAttribute(null=True)
    by_kind = ByKind()


def model_of(table: str, engine: Engine) -> type[Message]:
    meta = type("Meta", (Message.Meta,), {"table_name": table, "host": engine.endpoint})
    return type("Message", (Message,), {"Meta": meta})


def pynamo_chat(model: type[Message], at: list[str]) -> Iterator[Any]:
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
    with TransactWrite(connection=model._get_connection().connection) as write:
        write.delete(model(room, f"MSG#{at[1]}#1"), condition=model.author == "bob")
        write.update(model(room, f"MSG#{at[3]}#3"), actions=[model.likes.set(5)])
    yield model.get(room, f"MSG#{at[3]}#3").likes
    yield model.count(room)


def pynamo_shop(model: type[Message], at: list[str]) -> Iterator[Any]:
    """Sell in the room with PynamoDB, and yield what a person would see."""
    room, stock = "ROOM#1", model("STOCK", "mug", left=2)
    connection = model._get_connection().connection
    stock.save()
    for number in (0, 1, 2, 1):
        ordered = model(room, f"ORDER#{at[number]}#{number}", qty=1, kind="order", score=number)
        try:
            with TransactWrite(connection=connection) as write:
                write.update(stock, [model.left.add(-1)], condition=model.left > 0)
                write.save(ordered, condition=model.sk.does_not_exist())
        except TransactWriteError as error:
            reasons = [one and one.code for one in error.cancellation_reasons]
            yield error.cause_response_code, reasons
    ordered_in = model.sk.between(f"ORDER#{at[0]}", f"ORDER#{at[2]}~")
    orders = list(model.query(room, ordered_in, consistent_read=True))
    yield [one.serialize() for one in orders]
    with TransactGet(connection=connection) as reads:
        found = [reads.get(model, one.pk, one.sk) for one in orders]
    yield [one.get().serialize() for one in found]
    keys = [("STOCK", "mug"), *((one.pk, one.sk) for one in orders)]
    yield sorted(str(one.serialize()) for one in model.batch_get(keys, consistent_read=True))
    paying: list[Action] = [model.paid.set(value=True), model.qty.remove()]
    orders[0].update(paying, condition=(model.pk == room) & model.paid.does_not_exist())
    yield orders[0].serialize()
    with pytest.raises(UpdateError) as failed:
        orders[0].update(paying, condition=(model.pk == room) & model.paid.does_not_exist())
    yield failed.value.cause_response_code
    pages = model.by_kind.query("message", model.score > 10, page_size=2)
    yield [one.serialize() for one in pages]
    newest = model.by_kind.query("message", limit=4, scan_index_forward=False)
    yield [one.sk for one in newest]
    older = model.by_kind.query(
        "message", scan_index_forward=False, last_evaluated_key=newest.last_evaluated_key
    )
    yield [one.sk for one in older]
    yield model.by_kind.count("order")
    yield sorted(one.sk for one in model.by_kind.scan(model.score < 5))
    with model.batch_write() as batch:
        for one in orders:
            batch.delete(one)
    with pytest.raises(DoesNotExist):
        model.get(room, orders[0].sk, consistent_read=True)
    stock.delete()
    yield model.count("STOCK")


def test_the_application_is_unchanged_on_pynamodb(tables: Tables) -> None:
    plain, spread = (model_of(name, tables.engine) for name in (tables.plain, tables.spread))
    with attached(spread, tables) as attachment:
        tables.spread_index()
        tables.spread_room(attachment, 4)
        at = times(20)
        assert list(pynamo_chat(spread, at)) == list(pynamo_chat(plain, at))
        tables.spread_room(attachment, 7)
        at = times(3)
        assert list(pynamo_shop(spread, at)) == list(pynamo_shop(plain, at))
    tables.check_spread()


@pytest.mark.full("makes an environment: Powertools is no dependency of Heatsink or its tests")
@pytest.mark.timeout(300)
def test_idempotency_and_parameters_of_powertools_are_unchanged(tables: Tables) -> None:
    endpoint = tables.engine.endpoint
    found = run_elsewhere("powertools", endpoint, tables.spread, tables.engine.registry)
    assert found == run_elsewhere("powertools", endpoint, tables.plain)
    *_, paid, flags = found
    assert len(paid) == len(set(paid)) + 1  # one failed at first
    assert len(flags) == len(set(paid)) - 1
    stored = {item["pk"]["S"] for item in tables.client.scan(TableName=tables.spread)["Items"]}
    for key in ("idempotency", "flags"):
        assert len([name for name in stored if name.startswith(key + TAG)]) > 1, key
