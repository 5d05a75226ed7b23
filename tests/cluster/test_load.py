"""Rates from counters: resets, new owners and short bursts do not distort them."""

from __future__ import annotations

from heatsink.cluster.load import NodeCounters, SlotCounters, SlotLoad, SlotRates, Snapshot

NODES = (NodeCounters("a", "h:1", 2_000, 1_000, 0), NodeCounters("b", "h:2", 500, 400, 0))


def snapshot(at_s: float, *slots: tuple[int, str, int, int]) -> Snapshot:
    """Each slot: number, owner, keys, CPU in µs. It got 10 and sent 30 bytes per µs."""
    counters = {
        slot: SlotCounters(owner, keys, cpu, 10 * cpu, 30 * cpu) for slot, owner, keys, cpu in slots
    }
    return Snapshot(at_s, NODES, counters)


def slots_after(*snapshots: Snapshot) -> dict[int, SlotLoad]:
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


def with_replica(at_s: float, owner: str, own: int, replica: str, counted: int) -> Snapshot:
    """Slot 5 with an owner and its replica, and what each has counted in µs."""
    nodes = tuple(NodeCounters(id, id, 0, 0, 0) for id in ("a", "b") if id == owner)
    slots = {5: SlotCounters(owner, 1, own, 0, 0)}
    return Snapshot(at_s, nodes, slots, {replica: {5: SlotCounters(owner, 1, counted, 0, 0)}})


def test_reads_on_replicas_are_added() -> None:
    (slot,) = slots_after(
        with_replica(1.0, "a", 0, "b", 50_000), with_replica(2.0, "a", 100_000, "b", 250_000)
    ).values()
    assert round(slot.cpu, 6) == 0.3


def test_a_replica_that_restarts_does_not_count_the_owner_twice() -> None:
    (slot,) = slots_after(
        with_replica(1.0, "a", 9_000_000, "b", 9_000_000),
        with_replica(2.0, "a", 9_100_000, "b", 50_000),
    ).values()
    assert round(slot.cpu, 6) == 0.15


def test_a_promoted_replica_goes_on_from_its_own_counters() -> None:
    (slot,) = slots_after(
        with_replica(1.0, "a", 9_000_000, "b", 5_000_000),
        with_replica(2.0, "b", 5_100_000, "a", 0),
    ).values()
    assert round(slot.cpu, 6) == 0.1


def test_a_node_that_was_unknown_counts_nothing_at_first() -> None:
    first = Snapshot(1.0, (NODES[0],), {5: SlotCounters("a", 1, 100, 0, 0)})
    second = Snapshot(2.0, (NODES[1],), {5: SlotCounters("b", 1, 9_000_000, 0, 0)})
    (slot,) = slots_after(first, second).values()
    assert slot.cpu == 0.0
