"""What nodes answer, parsed: lines of CLUSTER NODES, statistics of slots, migrations."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from heatsink.cluster.answers import (
    Node,
    NoSlotStatistics,
    Server,
    Topology,
    ailment_of,
    counted_in,
    endpoints_in,
    in_order,
    migration,
    one_of_each,
    pairs_of_lines,
    parse_node,
    server_of,
    trouble_of,
)
from heatsink.cluster.balance import rules_of
from heatsink.cluster.keys import queue_slots, text_or_hex
from heatsink.cluster.mover import commands_for
from heatsink.cluster.policy import SlotMove
from heatsink.cluster.rules import MoveLimits, SlotSettings, parse_hours
from heatsink.cluster.slots import SLOTS, as_ranges, key_in, ranges_of
from heatsink.errors import InvalidSetting
from heatsink.stores.redis.address import parse

PRIMARY = "aa 10.0.0.1:6379@16379,red1 myself,master - 0 17 3 connected 0-99 200 [7->-bb] [9-<-cc]"
REPLICA = "bb [::1]:6380@16380 slave,fail? aa 1 2 3 disconnected"


def test_a_primary_has_its_slots_and_those_that_are_half_moved() -> None:
    node = parse_node(PRIMARY)
    assert (node.id, node.address, node.is_primary) == ("aa", "10.0.0.1:6379", True)
    assert node.ranges == ((0, 99), (200, 200))
    assert node.open_slots == (7, 9)


def test_a_replica_names_its_primary_and_may_fail() -> None:
    node = parse_node(REPLICA)
    assert (node.primary, node.host, node.is_primary) == ("aa", "::1", False)
    assert node.is_failing


def whole(**changes: object) -> Node:
    facts = {"flags": frozenset({"master"}), "ranges": ((0, SLOTS - 1),), **changes}
    return Node("aa", "h", 1, primary="", **facts)  # type: ignore[arg-type]


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
    found = counted_in([statistics(5, 7, 100)], "aa", "h:1")[5]
    assert (found.owner, found.cpu_us) == ("aa", 100)
    assert (found.keys, found.bytes_in, found.bytes_out) == (7, 10, 20)


def test_statistics_without_cpu_time_name_the_setting() -> None:
    with pytest.raises(NoSlotStatistics, match=r"^h:1 .* cluster-slot-stats-enabled"):
        counted_in([[5, [b"key-count", 7]]], "aa", "h:1")


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
    assert ranges_of([9, 5, 8, 7, 440], 11) == "5, 7-9, 440"
    assert ranges_of([9, 5, 8, 7, 440], 10) == "5, 7-9, …"


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
        ("cancelled", "failed", "cancelled"),
        ("failed", "cancelled", "cancelled"),
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
    nodes = (whole(), Node("bb", "g", 2, frozenset({"master"}), ""))
    move = SlotMove((5, 6, 9), "aa", "bb", 0, "a test")

    def commands(way: str, url: str = "redis+cluster://h") -> str:
        server = Server("Redis 9", (9,), way)  # type: ignore[arg-type]
        return commands_for(move, Topology(nodes), server, parse(url))

    assert commands("migrateslots").endswith("CLUSTER MIGRATESLOTS SLOTSRANGE 5 6 9 9 NODE bb")
    assert commands("import") == "redis-cli -h g -p 2 CLUSTER MIGRATION IMPORT 5 6 9 9"
    assert commands("setslot").startswith("for slot in $(seq 5 6) 9; do")
    assert "SETSLOT $slot NODE bb" in commands("setslot")
    assert "AUTH" not in commands("setslot")
    with_login = commands("setslot", "rediss+cluster://ann:secret@h?ca=/ca.pem")
    assert "redis-cli --tls --cacert /ca.pem --user ann -h g -p 2" in with_login
    assert 'MIGRATE g 2 "" 0 5000 AUTH2 ann "$REDISCLI_AUTH" KEYS' in with_login
    assert "secret" not in with_login


def test_the_slots_of_the_queue_hold_its_partitions() -> None:
    assert {key_slot(f"partition_{number}".encode()) for number in range(16)} <= queue_slots(16)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pinned": "x"},
        {"hours": "25:00-26:00"},
        {"hours": "22:00-22:00"},
        {"start": 1.0},
        {"megabytes_s": 0.0},
        {"leave_queue": -1},
    ],
)
def test_wrong_settings_of_the_deployment_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting) as refusal:
        SlotSettings(**wrong)  # type: ignore[arg-type]
    assert refusal.value.field == next(iter(wrong))


def test_settings_of_the_deployment_become_rules_and_limits() -> None:
    settings = SlotSettings(pinned="5,7-9", hours="22:00-06:00", megabytes_s=2.0)
    assert settings.rules.pinned == {5, 7, 8, 9}
    assert (settings.limits.hours, settings.limits.bytes_s) == ((1_320, 360), 2e6)


@pytest.mark.parametrize(
    ("hours", "allowed", "forbidden"),
    [
        ("22:00-06:00", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "12:00", "21:59"]),
        ("08:30-17:00", ["08:30", "16:59"], ["08:29", "17:00", "00:00", "23:59"]),
        ("00:00-24:00", ["00:00", "23:59"], []),
        ("23:00-24:00", ["23:00", "23:59"], ["00:00", "22:59"]),
        ("00:00-01:00", ["00:00", "00:59"], ["01:00", "23:59"]),
        ("", ["00:00", "12:00"], []),
    ],
)
def test_slots_move_at_the_hours_of_each_day_also_over_midnight(
    hours: str, allowed: list[str], forbidden: list[str]
) -> None:
    limits = SlotSettings(hours=hours).limits
    for words in (*allowed, *forbidden):
        hour, _, minute = words.partition(":")
        for day in (0, 1, 20_000):
            time_s = day * 86_400 + int(hour) * 3_600 + int(minute) * 60
            assert limits.allows(time_s + 59.9) == (words in allowed), words


def test_the_hours_are_shown_as_people_write_them() -> None:
    assert MoveLimits(hours=parse_hours("22:00-06:30")).day_words == "22:00 to 06:30"


def test_a_deployment_can_leave_the_slots_of_its_queue_where_they_are() -> None:
    assert rules_of(SlotSettings(pinned="5")).pinned == {5}
    left = rules_of(SlotSettings(pinned="5", leave_queue=16)).pinned
    assert left == queue_slots(16) | {5}
    assert key_slot(b"partition_15") in left


def test_nodes_are_reached_where_the_cluster_tells_clients_to() -> None:
    def member(id: str, endpoint: str | None) -> list[object]:
        return [b"id", id.encode(), b"endpoint", endpoint and endpoint.encode(), b"ip", b"10.0.0.9"]

    members = [
        member("aa", "red1"),
        member("bb", "10.0.0.2"),
        member("cc", None),
        member("dd", "?"),
    ]
    answer = [[b"slots", [0, 5], b"nodes", members[:2]], [b"slots", [], b"nodes", members[2:]]]
    assert endpoints_in(answer, "asked") == {"aa": "red1", "bb": "10.0.0.2", "cc": "asked"}


def test_a_node_that_has_met_no_other_knows_no_host() -> None:
    node = parse_node("aa :6379@16379 myself,master - 0 0 1 connected 0-16383")
    assert (node.host, node.port) == ("", 6379)


def test_the_order_in_which_servers_list_things_does_not_matter() -> None:
    one, two = {b"name": b"f", b"flags": [b"a", b"b"]}, {b"name": b"g", b"flags": []}
    turned = {b"flags": [b"b", b"a"], b"name": b"f"}
    assert in_order([one, two]) == in_order([two, turned])
    assert in_order([one, two]) != in_order([one])
    assert in_order([b"user a on", b"user b on"]) != in_order([b"user a on", b"user b off"])
