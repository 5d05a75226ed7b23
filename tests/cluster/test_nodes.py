"""What nodes answer, parsed: lines of CLUSTER NODES, statistics of slots, migrations."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from heatsink.cluster.load import SLOTS
from heatsink.cluster.nodes import (
    Node,
    NoSlotStatistics,
    as_ranges,
    counted_in,
    key_in,
    migration,
    parse_node,
    ranges_of,
    text_or_hex,
    trouble_of,
)

PRIMARY = "aa 10.0.0.1:6379@16379,red1 myself,master - 0 17 3 connected 0-99 200 [7->-bb] [9-<-cc]"
REPLICA = "bb [::1]:6380@16380 slave,fail? aa 1 2 3 disconnected"


def test_a_primary_has_its_slots_and_those_that_are_half_moved() -> None:
    node = parse_node(PRIMARY)
    assert (node.id, node.address, node.is_primary, node.epoch) == ("aa", "red1:6379", True, 3)
    assert node.ranges == ((0, 99), (200, 200))
    assert node.open_slots == (7, 9)


def test_a_replica_names_its_primary_and_may_fail() -> None:
    node = parse_node(REPLICA)
    assert (node.primary, node.host, node.is_primary) == ("aa", "::1", False)
    assert node.is_failing
    assert not node.is_linked


def whole(**changes: object) -> Node:
    facts = {"flags": frozenset({"master"}), "ranges": ((0, SLOTS - 1),), **changes}
    return Node("aa", "h", 1, primary="", epoch=1, is_linked=True, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "asked", "words"),
    [
        (whole(), {}, ""),
        (whole(flags=frozenset({"master", "fail?"})), {}, "h:1 is failing (fail?)"),
        (whole(open_slots=(7, 8)), {}, "importing or migrating state (7-8)"),
        (whole(ranges=((0, 99),)), {}, "16284 slots have no owner"),
        (whole(), {"aa": OSError()}, "h:1 does not answer"),
    ],
)
def test_trouble_is_named(node: Node, asked: dict[str, object], words: str) -> None:
    assert words in trouble_of([node], asked)
    assert bool(words) == bool(trouble_of([node], asked))


def statistics(slot: int, keys: int, cpu: int) -> list[object]:
    words = [b"key-count", keys, b"cpu-usec", cpu]
    return [slot, [*words, b"network-bytes-in", 10, b"network-bytes-out", 20]]


def test_the_counters_of_a_slot_are_read() -> None:
    found = counted_in([statistics(5, 7, 100)], "aa")[5]
    assert (found.owner, found.cpu_us) == ("aa", 100)
    assert (found.keys, found.bytes_in, found.bytes_out) == (7, 10, 20)


def test_statistics_without_cpu_time_name_the_setting() -> None:
    with pytest.raises(NoSlotStatistics, match="cluster-slot-stats-enabled"):
        counted_in([[5, [b"key-count", 7]]], "aa")


def test_a_migration_is_read_in_either_protocol() -> None:
    said = {
        b"name": b"job",
        b"source_node": b"aa",
        b"target_node": b"bb",
        b"slot_ranges": b"5-6 9-9",
        b"state": b"success",
        b"message": b"",
    }
    flat = [word for pair in said.items() for word in pair]
    assert migration(said) == migration(flat)
    assert migration(flat).slots == {5, 6, 9}
    assert migration(flat).has_ended


@given(st.sets(st.integers(0, SLOTS - 1), max_size=60))
def test_ranges_hold_exactly_their_slots(slots: set[int]) -> None:
    ranges = as_ranges(slots)
    assert {slot for first, last in ranges for slot in range(first, last + 1)} == slots
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(ranges))


def test_ranges_in_words() -> None:
    assert ranges_of([9, 5, 8, 7]) == "5, 7-9"


@pytest.mark.parametrize("slot", [0, 4_711, SLOTS - 1])
def test_a_key_can_be_found_for_every_slot(slot: int) -> None:
    assert key_slot(key_in(slot).encode()) == slot


def test_a_key_that_is_no_text_is_shown_in_digits() -> None:
    assert text_or_hex(b"k\xff") == "0x6bff"
