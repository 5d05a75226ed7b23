"""Existing boto3 code on an attached client: a spread table behaves as it did before."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import boto3
import pytest
from boto3.dynamodb.conditions import Attr, Key
from botocore.exceptions import ClientError
from prometheus_client import CollectorRegistry

from heatsink.boto import Attachment, attach
from heatsink.client.prometheus import Prometheus
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.keys import TAG
from heatsink.door.times import iso_text
from heatsink.errors import Closed, InvalidSetting
from tests.adoption import complete_adoption
from tests.server.door.conftest import records_of
from tests.waiting import until

from .conftest import KEYS, Engine

names = count()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def declared(name: str, **others: Any) -> SpreadTable:
    rules = [by_time("", iso_text)]
    return SpreadTable(name, partition_key=KEYS[0], sort_key=KEYS[1], rules=rules, **others)


def spread(attachment: Attachment, plain: Any, table: Any, buckets: int = 4) -> None:
    """Pin a key to some buckets, and wait until new items go there."""
    attachment.pin(table.name, "r", buckets=buckets, reason="a test")

    def is_spread() -> bool:
        item = {KEYS[0]: "r", KEYS[1]: now()}
        table.put_item(Item=item)
        table.delete_item(Key=item)
        stored = {**item, "probe": 1}
        table.put_item(Item=stored)
        found = plain.scan(FilterExpression=Attr("probe").eq(1))["Items"]
        table.delete_item(Key=item)
        return any(TAG in one[KEYS[0]] for one in found)

    until(is_spread)


@pytest.fixture
def made(engine: Engine) -> Iterator[tuple[Any, Any, Attachment]]:
    """A table used through an attached resource, the same table past it, and the attachment."""
    plain = engine.make_table(f"attached{next(names)}")
    resource = engine.resource()
    with attach(resource, tables=[declared(plain.name)], registry=engine.registry) as attachment:
        complete_adoption(engine.registry, plain.name)
        yield resource.Table(plain.name), plain, attachment


def test_a_streams_client_of_an_attached_session_shows_the_keys_of_the_application(
    engine: Engine,
) -> None:
    plain = engine.make_table(f"attached{next(names)}")
    session: Any = boto3.Session("any", "any", region_name="us-east-1")
    past: Any = boto3.Session("any", "any", region_name="us-east-1")
    stream = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    plain.meta.client.update_table(TableName=plain.name, StreamSpecification=stream)
    with attach(session, tables=[declared(plain.name)], registry=engine.registry) as attachment:
        complete_adoption(engine.registry, plain.name)
        where = {"endpoint_url": engine.endpoint}
        table = session.resource("dynamodb", **where).Table(plain.name)
        spread(attachment, plain, table)
        shown, stored = (
            records_of(plain.meta.client, of.client("dynamodbstreams", **where), plain.name)
            for of in (session, past)
        )
    changes = [one["dynamodb"] for one in shown]
    assert {one["Keys"][KEYS[0]]["S"] for one in changes} == {"r"}
    assert {one["NewImage"][KEYS[0]]["S"] for one in changes if "NewImage" in one} == {"r"}
    assert any(TAG in one["dynamodb"]["Keys"][KEYS[0]]["S"] for one in stored)


def test_boto3_uses_a_spread_table_as_any_other(made: Any) -> None:
    table, plain, attachment = made
    spread(attachment, plain, table)
    sent = [now() for _ in range(30)]
    with table.batch_writer() as batch:
        for number, at in enumerate(sent):
            batch.put_item(Item={KEYS[0]: "r", KEYS[1]: at, "n": number, "raw": b"x"})
    stored = {item[KEYS[0]] for item in plain.scan()["Items"]}
    assert len(stored) > 1
    assert all(name.startswith(f"r{TAG}") for name in stored)

    changed = table.update_item(
        Key={KEYS[0]: "r", KEYS[1]: sent[3]},
        UpdateExpression="ADD likes :one SET #c = conversation",
        ExpressionAttributeNames={"#c": "copied"},
        ExpressionAttributeValues={":one": 1},
        ReturnValues="ALL_NEW",
    )
    assert changed["Attributes"]["likes"] == 1
    assert changed["Attributes"]["copied"] == changed["Attributes"][KEYS[0]] == "r"
    with pytest.raises(ClientError, match="ConditionalCheckFailed") as failed:
        table.put_item(
            Item={KEYS[0]: "r", KEYS[1]: sent[3]},
            ConditionExpression=Attr(KEYS[0]).not_exists(),
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    assert failed.value.response["Item"][KEYS[0]] == {"S": "r"}  # type: ignore[typeddict-item]

    paginator = table.meta.client.get_paginator("query")
    pages = paginator.paginate(
        TableName=table.name,
        KeyConditionExpression=Key(KEYS[0]).eq("r"),
        ConsistentRead=True,
        PaginationConfig={"PageSize": 7},
    )
    found = [item for page in pages for item in page["Items"]]
    assert [item["n"] for item in found] == list(range(30))
    assert {item[KEYS[0]] for item in found} == {"r"}
    assert table.scan(Select="COUNT")["Count"] == 30


def test_other_tables_and_partiql_keep_their_behaviour(made: Any, engine: Engine) -> None:
    table = made[0]
    other = engine.make_table(f"other{next(names)}")
    client = table.meta.client
    client.put_item(TableName=other.name, Item={KEYS[0]: f"r{TAG}1", KEYS[1]: "x"})
    assert other.get_item(Key={KEYS[0]: f"r{TAG}1", KEYS[1]: "x"})["Item"]
    with pytest.raises(ClientError, match="PartiQL"):
        client.execute_statement(Statement=f'DELETE FROM "{table.name}"')  # noqa: S608 (refused)


def test_refused_requests_are_counted(engine: Engine) -> None:
    plain = engine.make_table(f"counted{next(names)}")
    client, metrics = engine.resource().meta.client, CollectorRegistry()
    hooks = [Prometheus(metrics)]
    with attach(client, tables=[declared(plain.name)], registry=engine.registry, hooks=hooks):
        with pytest.raises(ClientError, match="PartiQL"):
            client.execute_statement(Statement=f'DELETE FROM "{plain.name}"')  # noqa: S608
        client.get_item(TableName=plain.name, Key={KEYS[0]: "r", KEYS[1]: "x"})
        assert metrics.get_sample_value("heatsink_table_refusals_total") == 1
        assert metrics.get_sample_value("heatsink_table_waits_total") == 0


def test_a_session_attaches_all_clients_that_it_makes_later(engine: Engine) -> None:
    plain = engine.make_table(f"session{next(names)}")
    session = boto3.Session("any", "any", region_name="us-east-1")
    tables = [declared(plain.name)]
    with attach(session, tables=tables, registry=engine.registry):
        with pytest.raises(InvalidSetting, match="is attached to this session already"):
            attach(session, tables=tables, registry=engine.registry)
        client = session.client("dynamodb", endpoint_url=engine.endpoint)
        with pytest.raises(ClientError, match="reserved for buckets"):
            client.get_item(
                TableName=plain.name, Key={KEYS[0]: {"S": f"r{TAG}1"}, KEYS[1]: {"S": "x"}}
            )
    free = session.client("dynamodb", endpoint_url=engine.endpoint)
    free.get_item(TableName=plain.name, Key={KEYS[0]: {"S": f"r{TAG}1"}, KEYS[1]: {"S": "x"}})


def test_a_table_that_does_not_fit_its_declaration_is_refused(engine: Engine) -> None:
    plain = engine.make_table(f"numbers{next(names)}", sort_type="N")
    with pytest.raises(InvalidSetting, match="sort_type='N'"):
        attach(engine.resource(), tables=[declared(plain.name)], registry=engine.registry)
    with pytest.raises(InvalidSetting, match="target must be"):
        attach("dynamodb", tables=[], registry=engine.registry)


def test_after_close_declared_tables_are_refused(made: Any, engine: Engine) -> None:
    table, _, attachment = made
    other = engine.make_table(f"other{next(names)}")
    attachment.close()
    item = {KEYS[0]: "r", KEYS[1]: now()}
    batch = {table.name: [{"PutRequest": {"Item": item}}]}
    calls: list[tuple[Any, dict[str, Any]]] = [
        (table.put_item, {"Item": item}),
        (table.query, {"KeyConditionExpression": Key(KEYS[0]).eq("r")}),
        (table.meta.client.batch_write_item, {"RequestItems": batch}),
    ]
    for call, given in calls:
        with pytest.raises(ClientError, match=r"is closed, so this request would go past Heatsink"):
            call(**given)
    table.meta.client.put_item(TableName=other.name, Item=item)
    assert other.get_item(Key=item)["Item"] == item
    with pytest.raises(Closed):
        attachment.explain(table.name, "r")
    tables = [declared(table.name)]
    with attach(table, tables=tables, registry=engine.registry):
        table.put_item(Item=item)
        assert table.get_item(Key=item)["Item"] == item


def test_a_detached_client_is_as_before(made: Any) -> None:
    table, plain, attachment = made
    attachment.close(detach=True)
    key = {KEYS[0]: f"r{TAG}1", KEYS[1]: "x"}
    assert "Item" not in table.get_item(Key=key)
    assert "Item" not in plain.get_item(Key=key)


def test_a_second_attachment_of_a_table_is_refused_and_the_first_goes_on(
    made: Any, engine: Engine
) -> None:
    table, _, attachment = made
    tables = [declared(table.name)]
    said = f"table {table.name} is attached to this client already"
    with pytest.raises(InvalidSetting, match=said):
        attach(table, tables=tables, registry=engine.registry)
    with pytest.raises(InvalidSetting, match=said):
        attachment.add(table)
    item = {KEYS[0]: "cold", KEYS[1]: now()}
    table.put_item(Item=item)
    assert table.get_item(Key=item)["Item"] == item


def test_of_two_attachments_with_tables_of_their_own_the_open_one_goes_on(
    made: Any, engine: Engine
) -> None:
    table, _, _ = made
    other = engine.make_table(f"second{next(names)}")
    attach(table, tables=[declared(other.name)], registry=engine.registry).close()
    item = {KEYS[0]: "cold", KEYS[1]: now()}
    table.put_item(Item=item)
    assert table.get_item(Key=item)["Item"] == item
    with pytest.raises(ClientError, match=f"attachment of table {other.name} is closed"):
        table.meta.client.put_item(TableName=other.name, Item=item)


def test_wrong_arguments_are_named(engine: Engine) -> None:
    plain = engine.make_table(f"named{next(names)}")
    right = declared(plain.name)

    def said(tables: Any) -> str:
        with pytest.raises(InvalidSetting) as refused:
            attach(engine.resource(), tables=tables, registry=engine.registry)
        return str(refused.value)

    assert "tables must be a list" in said(right)
    assert "tables must be a list of SpreadTable" in said([plain.name])
    assert f"tables declares the table '{plain.name}' twice" in said([right, right])
    assert "there is no table 'chatt' in us-east-1" in said([declared("chatt")])
    wrong = SpreadTable(plain.name, partition_key="rom", sort_key=KEYS[1], rules=[])
    assert f"partition_key is 'rom', but table {plain.name} has {KEYS[0]!r}" in said([wrong])
    with attach(engine.resource(), tables=[right], registry=engine.registry) as attachment:
        with pytest.raises(InvalidSetting) as refused:
            attachment.pin(plain.name, "r", buckets=2, reason="too early")
        assert f"run heatsink adopt '{engine.registry}' {plain.name} --complete" in str(
            refused.value
        )
