"""The planner: it lowers the busiest node's load, moves little, and knows when nothing helps."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatsink.cluster.load import SLOTS, ClusterLoad
from heatsink.cluster.policy import Plan, SlotPolicy, SlotRules, plan_moves
from heatsink.errors import InvalidSetting

from .loads import cluster, even, node, zipf

RULES = SlotRules()
THREE = [node(number) for number in range(3)]


def after(load: ClusterLoad, plan: Plan) -> ClusterLoad:
    """The same load once the plan is carried out."""
    target = {slot: move.target for move in plan.moves for slot in move.slots}
    replace = msgspec.structs.replace
    slots = (replace(slot, node=target.get(slot.slot, slot.node)) for slot in load.slots)
    return replace(load, slots=tuple(slots))


def used(load: ClusterLoad) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for slot in load.slots:
        sums[slot.node] += slot.cpu  # type: ignore[assignment]
    return {node.id: sums[node.id] / node.cores for node in load.nodes}


def ranges(load: ClusterLoad) -> int:
    owners = {slot.slot: slot.node for slot in load.slots}
    return sum(1 for slot in range(SLOTS) if owners[slot] != owners.get(slot - 1))


def hot_slot(cpu: float, slot: int = 100, rest: float = 0.3) -> ClusterLoad:
    shares = [rest * 3 / SLOTS] * SLOTS
    shares[slot] = cpu
    return cluster(shares, THREE, [1] * SLOTS)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    s=st.floats(0.5, 1.6),
    cores=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=8),
)
def test_a_plan_never_makes_the_busiest_node_busier(
    seed: int, s: float, cores: list[float]
) -> None:
    load = zipf(seed, s, [node(number, each) for number, each in enumerate(cores)])
    plan = plan_moves(load, RULES)
    before, later = used(load), used(after(load, plan))
    assert max(later.values()) <= max(before.values()) + 1e-9
    mean = sum(each.cpu for each in load.slots) / sum(cores)
    assert plan.before == pytest.approx(max(before.values()) / mean)
    assert plan.after == pytest.approx(max(later.values()) / mean)
    best = max(RULES.stop, plan.ceiling.ratio if plan.ceiling else 0.0)
    assert plan.after <= best * 1.1


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), s=st.floats(0.8, 1.5))
def test_a_slot_moves_once_from_its_owner_to_another_node(seed: int, s: float) -> None:
    load = zipf(seed, s, THREE)
    owner = {slot.slot: slot.node for slot in load.slots}
    plan = plan_moves(load, RULES)
    moved = [slot for move in plan.moves for slot in move.slots]
    assert len(moved) == len(set(moved))
    for move in plan.moves:
        assert {owner[slot] for slot in move.slots} == {move.source} != {move.target}


def test_the_same_load_gives_the_same_plan() -> None:
    assert plan_moves(zipf(1, 1.1, THREE), RULES) == plan_moves(zipf(1, 1.1, THREE), RULES)


def test_equal_slots_are_left_where_they_are() -> None:
    plan = plan_moves(even(THREE), RULES)
    assert plan.moves == ()
    assert plan.why.startswith("balanced")


def test_a_new_empty_node_gets_its_share_in_few_ranges() -> None:
    load = even(THREE)
    grown = msgspec.structs.replace(load, nodes=(*load.nodes, node(9)))
    plan = plan_moves(grown, RULES)
    later = after(grown, plan)
    assert max(used(later).values()) < 1.11 * sum(used(later).values()) / 4
    assert ranges(later) <= 20


def test_a_node_with_twice_the_cores_carries_twice_the_load() -> None:
    plan = plan_moves(load := even([node(0), node(1), node(2, cores=2.0)]), RULES)
    assert max(used(after(load, plan)).values()) <= RULES.stop * 0.3 * 1.01


def test_a_dominant_slot_stays_and_its_neighbours_leave() -> None:
    load = hot_slot(0.8)
    plan = plan_moves(load, SlotRules(slots_max=SLOTS))
    assert 100 not in {slot for move in plan.moves for slot in move.slots}
    assert {move.source for move in plan.moves} == {"n0"}
    assert plan.ceiling is not None
    assert plan.ceiling.slot == 100
    assert plan.after == pytest.approx(plan.ceiling.ratio, rel=0.05)


def test_a_slot_that_fills_a_node_is_named_with_its_remedy() -> None:
    ceiling = plan_moves(hot_slot(0.95, rest=0.1), RULES).ceiling
    assert ceiling is not None
    assert ceiling.is_full
    assert "slot 100 alone uses 95.0% of its node" in ceiling.words
    assert "hs.counters" in ceiling.words


def test_a_slot_that_is_mostly_read_is_to_be_cached() -> None:
    load = hot_slot(0.95, rest=0.1)
    read = tuple(msgspec.structs.replace(slot, written_s=0.0) for slot in load.slots)
    ceiling = plan_moves(msgspec.structs.replace(load, slots=read), RULES).ceiling
    assert ceiling is not None
    assert "hs.reads" in ceiling.words


def test_pinned_and_resting_slots_never_move() -> None:
    load = zipf(2, 1.1, THREE)
    first = {slot for move in plan_moves(load, RULES).moves for slot in move.slots}
    assert first
    pinned = SlotRules(pinned=frozenset(first))
    for plan in (plan_moves(load, pinned), plan_moves(load, RULES, first)):
        assert first.isdisjoint(slot for move in plan.moves for slot in move.slots)


def test_a_node_without_room_gets_nothing() -> None:
    nodes = [node(0), node(1, memory=900, memory_max=1_000), node(2)]
    plan = plan_moves(zipf(0, 1.5, nodes), RULES)
    assert plan.moves
    assert "n1" not in {move.target for move in plan.moves}


def test_a_source_without_room_for_the_copy_gives_nothing() -> None:
    nodes = [node(number, memory=900, memory_max=1_000) for number in range(3)]
    plan = plan_moves(zipf(0, 1.1, nodes), RULES)
    assert plan.moves == ()
    assert "no room" in plan.why


def test_ranges_stay_below_their_limit() -> None:
    load = zipf(0, 1.1, THREE)
    assert ranges(after(load, plan_moves(load, RULES))) > 4
    assert ranges(after(load, plan_moves(load, SlotRules(ranges_max=4)))) <= 4


def test_network_counts_like_cpu() -> None:
    load = even(THREE, used=0.05)
    replace = msgspec.structs.replace
    busy = tuple(
        replace(slot, net_s=20_000.0 if slot.node == "n0" else 10.0) for slot in load.slots
    )
    plan = plan_moves(replace(load, slots=busy), RULES)
    assert {move.source for move in plan.moves} == {"n0"}
    assert plan.after < 1.2 < plan.before


def test_an_idle_cluster_is_left_alone() -> None:
    plan = plan_moves(zipf(0, 1.5, THREE, used=0.001), RULES)
    assert plan.moves == ()
    assert "too little to act" in plan.why


def test_one_primary_has_nowhere_to_move_slots_to() -> None:
    assert "one primary" in plan_moves(even([node(0)]), RULES).why


def test_moves_begin_only_when_the_imbalance_lasts() -> None:
    policy, load = SlotPolicy(RULES), zipf(0, 1.1, THREE)
    first, second, third = (policy.decide(load) for _ in range(3))
    assert first.moves == second.moves == ()
    assert first.why == "seen in 1 of 3 windows in a row"
    assert third.moves


def test_a_burst_of_one_window_starts_again_from_one() -> None:
    policy, load = SlotPolicy(RULES), zipf(0, 1.1, THREE)
    plans = [policy.decide(each) for each in (load, load, even(THREE), load, load)]
    assert all(plan.moves == () for plan in plans)


def test_a_slot_that_was_moved_rests() -> None:
    policy, load = SlotPolicy(SlotRules(patience=1)), zipf(2, 1.1, THREE)
    moved = {slot for move in policy.decide(load).moves for slot in move.slots}
    policy.note(dict.fromkeys(moved, load.at_s))
    again = policy.decide(load)  # the same load: as if the moves had been undone by hand
    assert moved.isdisjoint(slot for move in again.moves for slot in move.slots)
    later = msgspec.structs.replace(load, at_s=load.at_s + RULES.rest_s)
    assert {slot for move in policy.decide(later).moves for slot in move.slots} == moved


@pytest.mark.parametrize("wrong", [{"start": 1.0}, {"stop": 0.9}, {"patience": 0}, {"idle": 2}])
def test_wrong_rules_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting) as refusal:
        SlotRules(**wrong)  # type: ignore[arg-type]
    assert next(iter(wrong)) in str(refusal.value)
