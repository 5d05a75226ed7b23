"""Items that are never spread since their sort keys carry no usable time are noticed."""

from __future__ import annotations

import logging

import pytest

from heatsink.door.recent import ENOUGH, FEW, LOOK_AT_EACH, WARN_EACH_MS

from .grammar import text_of
from .world import START_MS, TABLE, World

PUTS = ENOUGH * LOOK_AT_EACH


def put(world: World, sort: str, count: int = PUTS) -> str:
    """Put an item many times, and return what is said about the recent puts."""
    process = world.processes[0]
    item = {"pk": {"S": "room"}, "sk": {"S": sort}, "v": {"S": "x"}}
    for number in range(count):
        if number % 2:
            process.send("PutItem", {"TableName": TABLE, "Item": item})
        else:
            batch = {"RequestItems": {TABLE: [{"PutRequest": {"Item": item}}]}}
            process.send("BatchWriteItem", batch)
    return process.core.places[TABLE].recent.words()


def test_sort_keys_without_a_time_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING, "heatsink"):
        said = put(world, "MSG#2026-11-17 12:00:00.123")
        put(world, "MSG#2026-11-17 12:00:00.123")
    assert said.startswith("100% of the recent puts")
    assert "'MSG#2026-11-17 12:00:00.123'" in said
    [record] = caplog.records
    assert said in record.getMessage()
    world.registry.closed_ms += WARN_EACH_MS
    world.registry.renew(world.processes[0].view)
    put(world, "MSG#2026-11-17 12:00:00.123", LOOK_AT_EACH * ENOUGH)
    assert len(caplog.records) == 2


def test_the_first_puts_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    put(world, "MSG#today", FEW - 1)
    recent = world.processes[0].core.places[TABLE].recent
    assert recent.words(FEW) == ""
    put(world, "MSG#today", 1)
    assert recent.words(FEW).startswith("100% of the recent puts")
    assert not caplog.records
    put(world, "MSG#today", ENOUGH - FEW)
    assert len(caplog.records) == 1


def test_times_from_before_the_key_was_spread_are_noticed() -> None:
    world = World()
    world.registry.spread(world.label("room"), 4)
    world.registry.renew(world.processes[0].view)
    said = put(world, f"MSG#{text_of(START_MS - 5 * 3_600_000)}#1")
    assert said.startswith("100% of the recent puts")
    assert "carry a time from before their key was spread" in said
    assert "no time that it can read" not in said


def test_items_from_the_moment_in_which_the_key_was_spread_are_not() -> None:
    world = World()
    world.registry.spread(world.label("room"), 4)
    world.registry.renew(world.processes[0].view)
    newest = world.processes[0].view.layout(world.label("room")).epochs[-1]
    assert put(world, f"MSG#{text_of(newest.start_ms - 1_000)}#1") == ""


def test_usable_times_and_other_prefixes_are_not() -> None:
    world = World()
    assert put(world, "META") == ""
    assert put(world, f"MSG#{text_of(START_MS)}#1") == ""


def test_a_misspelt_prefix_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING, "heatsink"):
        said = put(world, f"MGS#{text_of(START_MS)}#1")
    assert said.startswith("no item looked at has the declared prefix '")
    assert "MGS#2" in said
    assert said in caplog.records[0].getMessage()


def test_a_declared_prefix_in_use_is_not_called_misspelt() -> None:
    world = World()
    for prefix in ("MSG#", "LOG#"):
        put(world, f"{prefix}{text_of(START_MS)}#1", LOOK_AT_EACH)
    assert put(world, f"OTHER#{text_of(START_MS)}#1") == ""
