"""Programs in Node, unchanged, through the door: a chat with a shop, and a hot key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import heatsink
from heatsink.door.keys import TAG, subject_in
from heatsink.emulator.settings import EngineSettings
from heatsink.testing.dynamodb import LocalDynamoDB
from tests import nodejs
from tests.adoption import complete_adoption, spread_index, spread_value, wait_until_spread
from tests.boto.shop import CALLS, times
from tests.door.world import DEFINITION
from tests.processes import Served
from tests.server.door.conftest import a_door

PROGRAMS = Path(__file__).parent / "node"
TABLES = """
[[table]]
name = "spread"
partition_key = "pk"
sort_key = "sk"

[[table.rule]]
prefix = "MSG#"
time = "iso_text"

[[table.rule]]
prefix = "ORDER#"
time = "iso_text"
"""
LIMIT = 20.0  # write units a second of a partition; a busy machine sends less than RATE
RATE = 4 * LIMIT
SINCE_MS = 100  # messages are dated up to 20 ms before now


class World:
    """An emulator with a plain and a spread table, and a door in front of it."""

    def __init__(self, dynamodb: LocalDynamoDB, door: Served, registry: str) -> None:
        self.behind = dynamodb.url
        self.door = door.url
        self.client: Any = dynamodb.client()
        self._registry = registry

    def spread_room(self, buckets: int) -> None:
        """Wait until new messages of the room go to its buckets."""
        wait_until_spread(self._registry, subject_in("spread", "ROOM#1"), buckets, SINCE_MS)

    def spread_index(self) -> None:
        """Spread the index by-kind, and wait until new messages go to several of its buckets."""
        spread_index(self._registry, self.behind, "spread", "by-kind")
        spread_value(self._registry, "spread", "by-kind", "message", SINCE_MS)

    def buckets_used(self, name: str = "pk") -> int:
        """Return in how many buckets there are rows, or entries of the index."""
        items = self.client.scan(TableName="spread")["Items"]
        return len({item[name]["S"] for item in items if TAG in item.get(name, {}).get("S", "")})


def run(program: str, *arguments: str) -> list[str]:
    return nodejs.run(nodejs.installed(PROGRAMS) / program, *arguments)


@contextmanager
def a_world(folder: Path, settings: EngineSettings, *flags: str) -> Iterator[World]:
    with LocalDynamoDB(settings) as dynamodb:
        client = dynamodb.client()
        for name in ("plain", "spread"):
            client.create_table(**{**DEFINITION, "TableName": name})
        (folder / "tables.toml").write_text(TABLES)
        registry = f"sqlite:///{folder}/registry.db"
        with heatsink.connect_sync(registry):  # founds the registry
            pass
        complete_adoption(registry, "spread")
        given = ("--tables", "tables.toml", "--store", registry, *flags)
        with a_door(folder, dynamodb.url, *given) as door:
            yield World(dynamodb, door, registry)


def test_a_chat_and_shop_in_node_gives_the_same_answers(tmp_path: Path) -> None:
    unlimited = EngineSettings(port=0, write_limit=1e9, read_limit=1e9)
    with a_world(tmp_path, unlimited) as world:
        world.spread_index()
        found: list[str] = []
        expected: list[str] = []
        for part, count, buckets in (("chat", 20, 4), ("shop", 3, 7)):
            world.spread_room(buckets)
            at = json.dumps(times(count))
            expected += run("shop.mjs", world.behind, "plain", part, at)
            found += run("shop.mjs", world.door, "spread", part, at)
        assert found == expected
        assert len(found) == CALLS
        assert world.buckets_used() > 1
        assert world.buckets_used("heatsink:by-kind") > 1


def test_a_hot_key_in_node_is_throttled_without_the_door_and_not_with_it(tmp_path: Path) -> None:
    limited = EngineSettings(
        port=0, write_limit=LIMIT, burst_s=1, partitions=64, adaptive=False, full_burst=False
    )
    load = (str(int(RATE)),)
    with a_world(tmp_path, limited, "--bucket-units", "10") as world:
        without = [json.loads(line) for line in run("puts.mjs", world.behind, "plain", *load, "4")]
        assert all(second["throttled"] > RATE / 8 for second in without[1:])
        lines = run("puts.mjs", world.door, "spread", *load, "60", "until calm")
        seconds = [json.loads(line) for line in lines]
        assert [second["throttled"] for second in seconds[-3:]] == [0, 0, 0]
        assert all(second["accepted"] == RATE for second in seconds[-3:])
        assert world.buckets_used() >= 4


@pytest.mark.parametrize("name", ["shop.mjs", "puts.mjs"])
def test_the_programs_know_nothing_of_heatsink(name: str) -> None:
    lines = (PROGRAMS / name).read_text().splitlines()
    code = [line for line in lines if not line.startswith("//")]
    assert not [line for line in code if "eatsink" in line or "door" in line]
