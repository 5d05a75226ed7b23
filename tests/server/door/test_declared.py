"""Declared tables through the door: items are in buckets, and no program sees that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner

import heatsink
from heatsink.cli import main
from heatsink.door.keys import TAG, subject_in
from heatsink.errors import InvalidSetting
from heatsink.server.door.tables import read_tables
from heatsink.testing.dynamodb import LocalDynamoDB
from tests.adoption import complete_adoption
from tests.processes import Served
from tests.server.door.conftest import CHAT, a_door, client_of, make_table, records_of
from tests.waiting import until

BUCKETS = 4


class Chat:
    """A declared table behind a door, and the same table without the door."""

    def __init__(self, door: Served, dynamodb: LocalDynamoDB, registry: str) -> None:
        self.url = door.url
        self.door = client_of(door.url)
        self.behind = dynamodb.client()
        self.registry = registry

    def put(self, room: str, number: int) -> dict[str, Any]:
        item = {
            "room": {"S": room},
            "at": {"S": f"MSG#{int(time.time() * 1000)}#{number:03}"},
            "text": {"S": "hey"},
        }
        self.door.put_item(TableName="chat", Item=item)
        return item

    def stored_under(self) -> set[str]:
        return {item["room"]["S"] for item in self.behind.scan(TableName="chat")["Items"]}

    def spread(self, room: str) -> None:
        with heatsink.connect_sync(self.registry, coordinate=False) as hs:
            hs.pin(subject_in("chat", room), buckets=BUCKETS, reason="test")
        until(lambda: self.put(room, 0) and any(f"{room}{TAG}" in n for n in self.stored_under()))


@pytest.fixture(scope="module")
def chat(emulator: LocalDynamoDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    folder = tmp_path_factory.mktemp("chat")
    (folder / "tables.toml").write_text(CHAT)
    make_table(emulator.client(), "chat")
    registry = f"dynamodb://heatsink?endpoint={emulator.url}"
    for command in (["table", "create", registry], ["adopt", registry, "chat", "--complete"]):
        if command[0] == "adopt":
            with heatsink.connect_sync(registry):  # the first client makes the registry
                pass
        assert CliRunner().invoke(main, command).exit_code == 0
    flags = ("--tables", "tables.toml", "--store", registry)
    with a_door(folder, emulator.url, *flags) as door:
        yield Chat(door, emulator, registry)


def test_items_of_a_spread_key_are_read_and_changed_as_if_it_were_not(chat: Chat) -> None:
    chat.spread("r1")
    items = [chat.put("r1", number) for number in range(20)]
    assert len([name for name in chat.stored_under() if name.startswith("r1")]) > 2
    for item in items:
        key = {name: item[name] for name in ("room", "at")}
        assert chat.door.get_item(TableName="chat", Key=key)["Item"] == item
        changed = chat.door.update_item(
            TableName="chat",
            Key=key,
            UpdateExpression="ADD likes :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
            ReturnValues="ALL_NEW",
        )
        assert changed["Attributes"] == {**item, "likes": {"N": "1"}}
    with pytest.raises(ClientError, match="The conditional request failed"):
        chat.door.put_item(
            TableName="chat", Item=items[0], ConditionExpression="attribute_not_exists(room)"
        )


def test_a_stream_read_through_the_door_shows_the_keys_of_the_application(chat: Chat) -> None:
    stream = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    chat.door.update_table(TableName="chat", StreamSpecification=stream)
    chat.spread("r2")
    items = [chat.put("r2", number) for number in range(10)]
    chat.door.delete_item(TableName="chat", Key={name: items[0][name] for name in ("room", "at")})
    streams = client_of(chat.door.meta.endpoint_url, "dynamodbstreams")
    changes = [one["dynamodb"] for one in records_of(chat.door, streams, "chat")]
    assert {one["Keys"]["room"]["S"] for one in changes} == {"r2"}
    shown = [one["NewImage"] for one in changes if "NewImage" in one]
    assert all(item in shown for item in items)
    assert items[0] in [one.get("OldImage") for one in changes]
    past = client_of(chat.behind.meta.endpoint_url, "dynamodbstreams")
    keys = [one["dynamodb"]["Keys"]["room"]["S"] for one in records_of(chat.behind, past, "chat")]
    assert any(TAG in key for key in keys)


def test_a_door_with_another_declaration_does_not_start(
    chat: Chat, emulator: LocalDynamoDB, tmp_path: Path
) -> None:
    (tmp_path / "tables.toml").write_text(CHAT.replace('time = "millis_text"', ""))
    store = ("--tables", str(tmp_path / "tables.toml"), "--store", chat.registry)
    flags = ("door", "--endpoint", emulator.url, "--port", "0", *store)
    result = CliRunner().invoke(main, flags)
    assert result.exit_code != 0
    assert "'MSG#' is unspread here, and by_time millis_text in the registry" in result.stderr


@pytest.mark.usefixtures("chat")  # which makes the table
def test_a_table_in_a_dry_run_is_named_at_start(emulator: LocalDynamoDB, tmp_path: Path) -> None:
    (tmp_path / "tables.toml").write_text(CHAT)
    registry = f"sqlite:///{tmp_path}/registry.db"
    flags = ("--tables", "tables.toml", "--store", registry)

    def said() -> list[str]:
        with a_door(tmp_path, emulator.url, *flags) as door:
            pass
        return [event["message"] for event in door.events if event["event"] == "dry-run"]

    command = f"heatsink adopt {registry} chat --complete"
    assert said() == [f"table chat is in a dry run: no key of it is spread before `{command}`"]
    complete_adoption(registry, "chat")
    assert said() == []


def test_partiql_on_a_declared_table_is_refused_with_the_reason(chat: Chat) -> None:
    with pytest.raises(ClientError, match="PartiQL"):
        chat.door.execute_statement(Statement='SELECT * FROM "chat"')
    with urlopen(f"{chat.url}/metrics") as answer:  # noqa: S310 (the door's own page)
        lines = answer.read().decode().splitlines()
    [refusals] = [line for line in lines if line.startswith("heatsink_table_refusals_total ")]
    assert float(refusals.split()[1]) >= 1
    assert any(line.startswith("heatsink_table_waits_total ") for line in lines)


def test_tables_beside_a_declared_one_pass_untouched(chat: Chat) -> None:
    item = {"room": {"S": "r1"}, "at": {"S": "x"}}
    chat.door.put_item(TableName="plain", Item=item)
    assert chat.behind.get_item(TableName="plain", Key=item)["Item"] == item


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("table = 1", "table must be an array"),
        ("[[table]]\nname = 'chat'", "partition_key is missing"),
        (CHAT.replace("millis_text", "milis_text"), "did you mean 'millis_text'?"),
        (CHAT + "buckets = 3", "has both time and buckets"),
        (CHAT.replace("time =", "tiem ="), "did you mean 'time'?"),
        (CHAT.replace("sort_key =", "sortkey ="), "did you mean 'sort_key'?"),
        (CHAT + CHAT, "declares the table 'chat' twice"),
        (CHAT.replace('sort_key = "at"', 'sort_key = ""'), "table 'chat': sort_key"),
        ("[[table", "cannot be read"),
    ],
)
def test_mistakes_in_the_file_of_tables_are_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "tables.toml"
    file.write_text(text)
    with pytest.raises(InvalidSetting) as caught:
        read_tables(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_declaration_that_does_not_fit_the_table_is_refused(
    chat: Chat, emulator: LocalDynamoDB, tmp_path: Path
) -> None:
    (tmp_path / "tables.toml").write_text(CHAT.replace('"room"', '"rom"'))
    flags = ["--endpoint", emulator.url, "--tables", str(tmp_path / "tables.toml")]
    result = CliRunner().invoke(main, ["door", *flags, "--store", chat.registry, "--port", "0"])
    assert result.exit_code == 2
    assert "partition_key is 'rom', but table chat has 'room'" in result.stderr
    (tmp_path / "tables.toml").write_text(CHAT.replace('"chat"', '"chatt"'))
    result = CliRunner().invoke(main, ["door", *flags, "--store", chat.registry, "--port", "0"])
    assert f"there is no table 'chatt' in {emulator.url}" in result.stderr
    assert result.exit_code == 1
    assert "table create" not in result.stderr
