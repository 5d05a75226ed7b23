"""Sizes of slots from some of their keys, the room of nodes, and what a migration takes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.cluster.mover import Bounds, cut_job
from heatsink.cluster.policy import SlotMove
from heatsink.cluster.rules import MoveLimits
from heatsink.cluster.sizes import (
    GIVE,
    ROOM,
    NodeMemory,
    SlotSize,
    may_copy,
    memory_of,
    size_of,
)

MB = 1_000_000
SIZES = st.lists(st.integers(50, 10**8), max_size=30)


@given(SIZES)
def test_a_slot_whose_keys_were_all_measured_is_known(sizes: list[int]) -> None:
    found = size_of(len(sizes), sizes)
    assert found.size == sum(sizes) < found.most


@given(st.integers(0, 10**6), st.floats(0.3, 2.0))
def test_the_upper_bound_holds_for_a_part_of_the_keys(seed: int, spread: float) -> None:
    rng = Random(seed)
    keys = [round(100 * rng.lognormvariate(0, spread)) + 50 for _ in range(3_000)]
    assert size_of(len(keys), rng.sample(keys, 600)).most >= sum(keys)


def test_equal_keys_have_a_close_bound() -> None:
    found = size_of(10_000, [1_000] * 500)
    assert found.size == 10 * MB
    assert found.most < 1.15 * found.size


def test_the_largest_key_needs_memory_twice_while_it_arrives() -> None:
    assert size_of(3, [MB, 30 * MB, MB]).piece > 30 * MB
    assert size_of(300, [MB, 30 * MB, MB]).piece > 30 * MB


def test_an_empty_slot_needs_next_to_nothing() -> None:
    assert size_of(0, []).most < 10_000


def info(**values: int) -> dict[str, int]:
    return {"used_memory": 100 * MB, "total_system_memory": 8_000 * MB, **values}


@pytest.mark.parametrize(
    ("said", "sharing", "declared", "room"),
    [
        ({"maxmemory": 200 * MB}, 1, 0, ROOM * 200 - 100),
        ({"maxmemory": 200 * MB, "mem_not_counted_for_evict": 30 * MB}, 1, 0, ROOM * 200 - 70),
        ({"maxmemory": 200 * MB}, 1, 150, ROOM * 200 - 100),
        ({}, 4, 0, ROOM * 2_000 - 100),
        ({}, 4, 500, ROOM * 500 - 100),
        ({"used_memory_rss": 300 * MB}, 4, 500, ROOM * 500 - 300),
        ({"maxmemory": 9_000 * MB, "used_memory_rss": 6_000 * MB}, 1, 0, ROOM * 8_000 - 6_000),
        ({"maxmemory": 90 * MB}, 1, 0, 0),
    ],
)
def test_room_is_below_the_limit_that_is_nearest(
    said: dict[str, int], sharing: int, declared: int, room: float
) -> None:
    assert memory_of(info(**said), sharing, declared * MB).room == pytest.approx(room * MB)


@pytest.mark.parametrize(("replicas", "reserve"), [(0, 0), (1, 7)])
def test_what_the_replication_buffers_will_use_is_reserved(replicas: int, reserve: int) -> None:
    buffers = {"repl_backlog_size": 10 * MB, "mem_total_replication_buffers": 3 * MB}
    said = info(maxmemory=400 * MB, connected_slaves=replicas, **buffers)
    assert memory_of(said, 1).reserve == reserve * MB


@pytest.mark.parametrize(
    ("used", "spare", "excess"), [(50, 50, 0), (86, 14, 0), (90, 10, 10), (120, 100 * GIVE, 40)]
)
def test_a_nearly_full_node_has_something_to_spare_and_something_to_give(
    used: int, spare: float, excess: float
) -> None:
    memory = NodeMemory(used * MB, 100 * MB)
    assert memory.spare == spare * MB
    assert memory.excess == pytest.approx(excess * MB)


def test_fragmentation_is_no_reason_to_move_slots_away() -> None:
    memory = memory_of(info(used_memory_rss=390 * MB), 1, 400 * MB)
    assert (memory.room, memory.excess) == (0, 0)


def test_pages_that_a_child_process_keeps_count() -> None:
    before = memory_of(info(), 1, 150 * MB)
    little, much = (memory_of(info(current_cow_size=n * MB), 1, 150 * MB) for n in (30, 50))
    assert (before.used, much.used) == (100 * MB, 150 * MB)
    assert much.is_worn(before)
    assert not little.is_worn(before)


def test_less_may_be_copied_the_more_is_written() -> None:
    assert may_copy(100 * MB, 0.0) == float("inf")
    assert may_copy(100 * MB, 2e6) == may_copy(50 * MB, 1e6) < may_copy(100 * MB, 1e6)


@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=20),
    st.floats(0, 10**8),
    st.floats(0, 10**8),
    st.floats(0, 10**8),
    st.floats(0, 10**8),
    st.integers(1, 20),
    st.integers(1, 10**6),
)
def test_a_migration_keeps_within_room_and_rate(
    sizes: list[tuple[int, int]],
    room: float,
    headroom: float,
    copy: float,
    burst: float,
    slots_max: int,
    keys_max: int,
) -> None:
    known = {
        slot: SlotSize(size, size + more, more // 10, more // 2)
        for slot, (size, more) in enumerate(sizes)
    }
    limits = MoveLimits(job_slots=slots_max, job_keys=keys_max)
    move = SlotMove(tuple(known), "a", "b", 0, "a test")
    cut = cut_job(move, known, Bounds(room, headroom, copy, burst), limits)
    assert (*sorted(cut.job.slots + cut.skipped.slots), *cut.rest.slots) == move.slots
    assert cut.job.slots or cut.skipped.slots
    assert cut.job.most <= room
    pieces = [known[slot].piece for slot in cut.job.slots]
    assert cut.job.most + max(pieces, default=0) <= room + headroom
    assert cut.job.most <= copy
    assert cut.job.most <= burst or len(cut.job.slots) == 1
    assert len(cut.job.slots) <= slots_max
    keys = sum(known[slot].keys for slot in cut.job.slots)
    assert keys <= keys_max or len(cut.job.slots) == 1
    left, peak = min(room - cut.job.most, copy), room + headroom - cut.job.most
    largest = max(pieces, default=0)
    for slot in cut.skipped.slots:
        most, piece = known[slot].most, known[slot].piece
        assert most > left or most + max(piece, largest) > peak
