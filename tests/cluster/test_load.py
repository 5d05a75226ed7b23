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
