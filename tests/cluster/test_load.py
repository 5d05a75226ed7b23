"""Rates from counters: resets, new owners and short bursts do not distort them."""

from __future__ import annotations

from collections.abc import Mapping

from heatsink.cluster.load import (
    ClusterCounters,
    NodeCounters,
    NodeLoad,
    SlotCounters,
    SlotDemand,
    SlotLoad,
    SlotRates,
    mean_used,
)

NODES = (NodeCounters("a", "h:1", 2_000, 1_000), NodeCounters("b", "h:2", 500, 400))


def snapshot(at_s: float, *slots: tuple[int, str, int, int]) -> ClusterCounters:
    """Each slot: number, owner, keys, CPU in µs. It got 10 and sent 30 bytes per µs."""
    counters = {
        slot: SlotCounters(owner, keys, cpu, 10 * cpu, 30 * cpu) for slot, owner, keys, cpu in slots
    }
    return ClusterCounters(at_s, NODES, counters)


def slots_after(*snapshots: ClusterCounters) -> dict[int, SlotLoad]:
    rates, load = SlotRates(1e8), None
    for each in snapshots:
        load = rates.add(each)
    assert load is not None
    return {slot.slot: slot for slot in load.slots}


def test_one_snapshot_has_no_rates() -> None:
    assert SlotRates(1e8).add(snapshot(1.0, (5, "a", 1, 100))) is None


def test_rates_are_differences_over_time() -> None:
    (slot,) = slots_after(
        snapshot(1.0, (5, "a", 2, 1_000_000)), snapshot(3.0, (5, "a", 2, 1_500_000))
    ).values()
    assert (slot.cpu, slot.written_s, slot.net_s) == (0.25, 2.5e6, 1e7)


def test_a_counter_that_went_down_begins_at_zero() -> None:
    (slot,) = slots_after(
        snapshot(1.0, (5, "a", 1, 9_000_000)), snapshot(2.0, (5, "a", 1, 100_000))
    ).values()
    assert slot.cpu == 0.1


def test_a_slot_with_a_new_owner_begins_at_zero() -> None:
    (slot,) = slots_after(
        snapshot(1.0, (5, "a", 1, 100_000)), snapshot(2.0, (5, "b", 1, 200_000))
    ).values()
    assert (slot.node, slot.cpu) == ("b", 0.2)


def test_one_busy_window_of_three_does_not_count() -> None:
    (slot,) = slots_after(
        *(snapshot(n, (5, "a", 1, cpu)) for n, cpu in enumerate([0, 1_000, 900_000, 901_000]))
    ).values()
    assert slot.cpu < 0.01


def test_the_size_of_a_slot_is_its_share_of_the_keys_of_its_node() -> None:
    found = slots_after(
        *(snapshot(at_s, (5, "a", 30, 0), (6, "a", 10, 0), (9, "b", 1, 0)) for at_s in (1.0, 2.0))
    )
    assert {slot: load.size for slot, load in found.items()} == {5: 750, 6: 250, 9: 400}


Counts = tuple[int, int, int]
"""CPU in µs, bytes in, bytes out."""


def with_replicas(
    at_s: float,
    owner: str,
    own: Mapping[int, Counts],
    replicas: Mapping[str, Mapping[int, Counts]],
    cpu_s: float = 0.0,
    replicas_cpu_s: float = 0.0,
) -> ClusterCounters:
    """What an owner and its replicas have counted for slots."""
    there = {
        id: {slot: SlotCounters(owner, 1, *each) for slot, each in counts.items()}
        for id, counts in replicas.items()
    }
    return ClusterCounters(
        at_s,
        (NodeCounters(owner, owner, 0, 0, cpu_s=cpu_s, replicas=len(replicas)),),
        {slot: SlotCounters(owner, 1, *each) for slot, each in own.items()},
        there,
        dict.fromkeys(there, replicas_cpu_s),
    )


NONE = (0, 0, 0)
READ, WRITTEN, MIXED = 5, 6, 7


def of_two_replicas() -> dict[int, SlotLoad]:
    """One slot is read on replicas, one is written, and one is both written and read there."""
    own = {READ: NONE, WRITTEN: (200_000, 1_000, 2_100), MIXED: (200_000, 1_000, 2_100)}
    each = {READ: (50_000, 10, 500), WRITTEN: (100_000, 1_000, 0), MIXED: (150_000, 1_010, 500)}
    return slots_after(
        with_replicas(1.0, "a", dict.fromkeys(own, NONE), {"b": {}, "c": {}}),
        with_replicas(2.0, "a", own, dict.fromkeys("bc", each)),
    )


def test_reads_on_replicas_are_told_from_replicated_writes() -> None:
    found = of_two_replicas()
    assert [round(found[slot].reads_cpu, 6) for slot in (READ, WRITTEN, MIXED)] == [0.1, 0.0, 0.1]
    assert [round(found[slot].reads_s) for slot in (READ, WRITTEN, MIXED)] == [1_020, 0, 1_020]
    assert [round(found[slot].replicated_cpu, 6) for slot in found] == [0.0, 0.1, 0.1]
    assert [round(found[slot].replicated_s) for slot in found] == [0, 1_000, 1_000]


def test_a_replicated_write_is_no_load_of_its_primary() -> None:
    found = of_two_replicas()
    assert [round(found[slot].cpu, 6) for slot in found] == [0.0, 0.2, 0.2]
    assert [found[slot].written_s for slot in found] == [0.0, 1_000.0, 1_000.0]
    assert [found[slot].net_s for slot in found] == [0.0, 3_100.0, 3_100.0]


def test_without_slots_that_are_only_written_bytes_divide_the_time_of_a_replica() -> None:
    own, there = {MIXED: (200_000, 1_000, 1_100)}, {MIXED: (100_000, 1_000, 1_000)}
    (slot,) = slots_after(
        with_replicas(1.0, "a", {MIXED: NONE}, {"b": {}}),
        with_replicas(2.0, "a", own, {"b": there}),
    ).values()
    assert (slot.replicated_cpu, slot.reads_cpu) == (0.05, 0.05)


def test_a_shard_is_as_busy_as_its_busiest_member() -> None:
    demand = SlotDemand(cpu=0.4, replicated_cpu=0.1, reads_cpu=0.8)
    assert [round(demand.busiest(count)[0], 6) for count in range(4)] == [1.2, 0.9, 0.5, 0.4]
    assert mean_used(demand, [NodeLoad("a", "a", 1.0, 1e9, 0, replicas=1)] * 2) == 0.45


def test_the_time_that_servers_do_not_count_is_divided_once_for_each_role() -> None:
    own, there = {WRITTEN: (100_000, 100, 100)}, {WRITTEN: (50_000, 100, 0)}
    (slot,) = slots_after(
        with_replicas(1.0, "a", {WRITTEN: NONE}, {"b": {WRITTEN: NONE}}, 3.0, 7.0),
        with_replicas(2.0, "a", own, {"b": there}, 3.3, 7.1),
    ).values()
    assert (round(slot.cpu, 6), round(slot.replicated_cpu, 6)) == (0.3, 0.1)


def test_a_replica_that_restarts_does_not_count_the_owner_twice() -> None:
    (slot,) = slots_after(
        with_replicas(1.0, "a", {5: (9_000_000, 0, 0)}, {"b": {5: (9_000_000, 0, 0)}}),
        with_replicas(2.0, "a", {5: (9_100_000, 0, 0)}, {"b": {5: (50_000, 0, 0)}}),
    ).values()
    assert (round(slot.cpu, 6), round(slot.replicated_cpu, 6)) == (0.1, 0.05)


def test_a_promoted_replica_goes_on_from_its_own_counters() -> None:
    (slot,) = slots_after(
        with_replicas(1.0, "a", {5: (9_000_000, 0, 0)}, {"b": {5: (5_000_000, 0, 0)}}),
        with_replicas(2.0, "b", {5: (5_100_000, 0, 0)}, {"a": {5: NONE}}),
    ).values()
    assert round(slot.cpu, 6) == 0.1


def test_a_node_that_was_unknown_counts_nothing_at_first() -> None:
    first = ClusterCounters(1.0, (NODES[0],), {5: SlotCounters("a", 1, 100, 0, 0)})
    second = ClusterCounters(2.0, (NODES[1],), {5: SlotCounters("b", 1, 9_000_000, 0, 0)})
    (slot,) = slots_after(first, second).values()
    assert slot.cpu == 0.0
