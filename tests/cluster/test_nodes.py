"""What nodes answer, parsed: lines of CLUSTER NODES, statistics of slots, migrations."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from heatsink.cluster.load import SLOTS
from heatsink.cluster.mover import commands_for
from heatsink.cluster.nodes import (
    Node,
    NoSlotStatistics,
    Server,
    Topology,
    ailment_of,
    as_ranges,
    counted_in,
    key_in,
    migration,
    one_of_each,
    pairs_of_lines,
    parse_node,
    queue_slots,
    ranges_of,
    server_of,
    text_or_hex,
    trouble_of,
)
from heatsink.cluster.policy import Move, SlotSettings
from heatsink.errors import InvalidSetting

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


WELL = {"cluster_state": "ok"}
LINKED = {"master_link_status": "up", "master_sync_in_progress": 0}


@pytest.mark.parametrize(
    ("flag", "replication", "state", "words"),
    [
        ("master", {"master_failover_state": "no-failover"}, WELL, ""),
        ("slave", LINKED, WELL, ""),
        ("master", {}, {"cluster_state": "fail"}, "state of the cluster is fail"),
        ("master", {"master_failover_state": "waiting-for-sync"}, WELL, "hands over"),
        ("slave", {**LINKED, "master_sync_in_progress": 1}, WELL, "not in step"),
        ("slave", {"master_link_status": "down"}, WELL, "not in step"),
    ],
)
def test_a_node_that_is_not_well_stops_all_moves(
    flag: str, replication: dict[str, object], state: dict[str, str], words: str
) -> None:
    said = ailment_of(whole(flags=frozenset({flag})), replication, state)
    assert words in said
    assert bool(words) == bool(said)


def test_lines_of_cluster_info_are_read() -> None:
    assert pairs_of_lines(b"cluster_state:ok\r\ncluster_size:3\r\n")["cluster_state"] == "ok"


def job(state: str, source: str = "aa") -> list[object]:
    said = {"name": "n", "slot_ranges": "5-5", "target_node": "bb", "state": state}
    named = {**said, "source_node": source} if source else said
    return [word for pair in named.items() for word in pair]


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ("success", "importing", "importing"),
        ("importing", "success", "importing"),
        ("failed", "success", "success"),
        ("success", "failed", "success"),
    ],
)
def test_a_migration_has_ended_when_both_ends_say_so(first: str, second: str, joined: str) -> None:
    found = one_of_each(migration(job(state)) for state in (first, second))
    assert [each.state for each in found] == [joined]


def test_a_target_may_not_know_the_source_of_a_migration_any_more() -> None:
    assert migration(job("failed", source="")).source == ""


@pytest.mark.parametrize(
    ("info", "way"),
    [
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "migrateslots"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.0"}, "setslot"),
        ({"redis_version": "8.4.0"}, "import"),
        ({"redis_version": "6.2.14"}, "setslot"),
    ],
)
def test_how_slots_move_follows_from_the_server(info: dict[str, str], way: str) -> None:
    assert server_of(info).way == way


def test_people_get_the_commands_of_their_server() -> None:
    nodes = (whole(), Node("bb", "g", 2, frozenset({"master"}), "", 1, True))
    move = Move((5, 6, 9), "aa", "bb", 0, "a test")

    def commands(way: str) -> str:
        return commands_for(move, Topology(nodes), Server("Redis 9", (9,), way))  # type: ignore[arg-type]

    assert commands("migrateslots").endswith("CLUSTER MIGRATESLOTS SLOTSRANGE 5 6 9 9 NODE bb")
    assert commands("import") == "redis-cli -h g -p 2 CLUSTER MIGRATION IMPORT 5 6 9 9"
    assert commands("setslot").startswith("for slot in $(seq 5 6) 9; do")
    assert "SETSLOT $slot NODE bb" in commands("setslot")


def test_the_slots_of_the_queue_hold_its_partitions() -> None:
    assert {key_slot(f"partition_{number}".encode()) for number in range(16)} <= queue_slots(16)


@pytest.mark.parametrize(
    "wrong", [{"pinned": "x"}, {"hours": "25:00-26:00"}, {"start": 1.0}, {"megabytes_s": 0.0}]
)
def test_wrong_settings_of_the_deployment_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting) as refusal:
        SlotSettings(**wrong)  # type: ignore[arg-type]
    assert refusal.value.field == next(iter(wrong))


def test_settings_of_the_deployment_become_rules_and_limits() -> None:
    settings = SlotSettings(pinned="5,7-9", hours="22:00-06:00", megabytes_s=2.0)
    assert settings.rules.pinned == {5, 7, 8, 9}
    assert (settings.limits.hours, settings.limits.bytes_s) == ((1_320, 360), 2e6)
