"""The planner and the mover among failures: every seed holds, and each planted bug is found."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from heatsink.cluster import load, mover, policy
from heatsink.cluster.answers import SlotMigration, Topology
from heatsink.cluster.load import ClusterLoad
from heatsink.cluster.mover import Bounds, SlotMover
from heatsink.cluster.policy import SlotMove, SlotPolicy
from heatsink.cluster.rules import MoveLimits, SlotRules
from heatsink.cluster.sizes import NodeMemory, SlotSize
from tests.planted import Bugs, Hunt, hold, usually
from tests.simulation.history import Violation

from .checked_cluster import SMALL
from .simulation import simulate

bug = Bugs()
HUNT = Hunt("cluster", bug, simulate, Violation, seeds=40)


@bug
def other_migrations_are_ignored() -> Iterator[None]:
    async def check(self: SlotMover) -> Topology:
        topology = await self._cluster.topology()
        if topology.trouble:
            raise mover.Unsafe(topology.trouble)
        await self._confirm(await self._cluster.migrations(topology))
        return topology

    async def migrate(self: SlotMover, job: SlotMove, topology: Topology) -> None:
        before = {each.name for each in await self._cluster.migrations(topology)}
        source = await self._cluster.memory(job.source, topology)
        await self._cluster.start(job, topology)
        await self._wait(job, topology, before, source)
        await self._confirm(await self._cluster.migrations(await self._agreed(job)))

    with patch.object(SlotMover, "check", check), patch.object(SlotMover, "_migrate", migrate):
        yield


@bug
def failing_nodes_are_ignored() -> Iterator[None]:
    async def check(self: SlotMover) -> Topology:
        topology = await self._cluster.topology()
        found = await self._cluster.migrations(topology)
        if any(not each.has_ended for each in found):
            raise mover.Unsafe("busy")
        await self._confirm(found)
        return topology

    with patch.object(SlotMover, "check", check):
        yield


@bug
def a_new_owner_is_not_confirmed() -> Iterator[None]:
    async def confirm(*_: object) -> None:
        return None

    with patch.object(SlotMover, "_confirm", confirm):
        yield


@bug
def only_own_migrations_are_confirmed() -> Iterator[None]:
    """As if an answer were never lost, and no process ever died."""
    whole = SlotMover._confirm

    async def confirm(self: SlotMover, found: list[SlotMigration]) -> None:
        is_own = sys._getframe(1).f_code.co_name == "_migrate"
        await whole(self, found if is_own else [])

    with patch.object(SlotMover, "_confirm", confirm):
        yield


@bug
def every_slow_migration_is_cancelled() -> Iterator[None]:
    async def check(self: SlotMover) -> Topology:
        topology = await self._cluster.topology()
        found = await self._cluster.migrations(topology)
        for each in found:
            if not each.has_ended:
                await self._cluster.cancel(each.source, topology)
        if topology.trouble:
            raise mover.Unsafe(topology.trouble)
        await self._confirm(found)
        return topology

    with patch.object(SlotMover, "check", check):
        yield


@bug
def moved_slots_do_not_rest() -> Iterator[None]:
    with patch.object(SlotPolicy, "note", lambda *_: None):
        yield


@bug
def a_new_process_does_not_ask_what_has_moved() -> Iterator[None]:
    async def recent(_: SlotMover) -> dict[int, float]:
        return {}

    with patch.object(SlotMover, "recent", recent):
        yield


@bug
def the_gain_has_the_wrong_sign() -> Iterator[None]:
    def order(self: policy._Board, node: str) -> tuple[float, str]:
        return -self.used(node), node

    with patch.object(policy._Board, "_order", order):
        yield


@bug
def sizes_are_guessed_by_the_mean() -> Iterator[None]:
    async def measure(self: SlotMover, _: str, slots: Sequence[int], __: Topology) -> None:
        mean = SlotSize(SMALL, SMALL)
        self._sizes |= {slot: (self._clock.monotonic_s(), mean) for slot in slots}

    with (
        patch.object(SlotMover, "measure", measure),
        patch.object(NodeMemory, "is_full", property(lambda _: False)),
    ):
        yield


@bug
def a_target_that_fills_up_is_not_noticed() -> Iterator[None]:
    """As if a sample of keys always found the largest key."""
    with patch.object(NodeMemory, "is_full", property(lambda _: False)):
        yield


@bug
def the_room_of_the_target_is_not_checked() -> Iterator[None]:
    whole = mover.cut_job

    def cut_job(
        move: SlotMove, sizes: Mapping[int, SlotSize], bounds: Bounds, limits: MoveLimits
    ) -> mover.Cut:
        return whole(move, sizes, msgspec.structs.replace(bounds, room=math.inf), limits)

    with (
        patch.object(mover, "cut_job", cut_job),
        patch.object(policy._Board, "_has_room", lambda *_: True),
        patch.object(NodeMemory, "is_full", property(lambda _: False)),
    ):
        yield


@bug
def large_values_need_no_memory_while_they_arrive() -> Iterator[None]:
    with (
        patch.object(NodeMemory, "headroom", property(lambda _: math.inf)),
        patch.object(NodeMemory, "is_full", property(lambda _: False)),
    ):
        yield


@bug
def the_rate_is_held_by_the_planned_size() -> Iterator[None]:
    whole = SlotMover.pause

    async def pause(self: SlotMover, topology: Topology) -> None:
        last = self._unpaid
        self._unpaid = last and msgspec.structs.replace(last, most=SMALL, received=None)
        await whole(self, topology)

    with patch.object(SlotMover, "pause", pause):
        yield


@bug
def a_slot_that_failed_to_move_is_tried_again_at_once() -> Iterator[None]:
    async def recent(self: SlotMover) -> dict[int, float]:
        self._remember(await self._cluster.migrations(await self._cluster.topology()))
        return {slot: at_s for at_s, slots in self._seen.values() for slot in slots}

    with patch.object(SlotMover, "recent", recent):
        yield


@bug
def the_keys_of_a_migration_are_not_counted() -> Iterator[None]:
    whole = mover.cut_job

    def cut_job(
        move: SlotMove, sizes: Mapping[int, SlotSize], bounds: Bounds, limits: MoveLimits
    ) -> mover.Cut:
        return whole(move, sizes, bounds, msgspec.structs.replace(limits, job_keys=10**12))

    with patch.object(mover, "cut_job", cut_job):
        yield


@bug
def slots_with_very_many_keys_move() -> Iterator[None]:
    whole = policy._Board.__init__

    def board(self: policy._Board, now: ClusterLoad, rules: SlotRules, *more: Any) -> None:
        whole(self, now, msgspec.structs.replace(rules, keys_max=10**12), *more)

    with patch.object(policy._Board, "__init__", board):
        yield


@bug
def idle_slots_move_with_their_neighbours() -> Iterator[None]:
    with patch.object(policy, "IDLE", -1.0):
        yield


@bug
def a_full_node_is_not_relieved() -> Iterator[None]:
    with patch.object(policy._Board, "relieving", lambda _: iter(())):
        yield


@bug
def a_full_source_gives_nothing() -> Iterator[None]:
    """As if a copy always took as much memory as the slots."""
    with patch.object(NodeMemory, "spare", NodeMemory.room), whole_copies():
        yield


@contextmanager
def whole_copies() -> Iterator[None]:
    def may_copy(spare: float, _: float) -> float:
        return spare

    with patch.object(mover, "may_copy", may_copy), patch.object(policy, "may_copy", may_copy):
        yield


@bug
def writes_during_a_copy_are_not_reserved() -> Iterator[None]:
    def may_copy(*_: float) -> float:
        return math.inf

    with (
        patch.object(mover, "may_copy", may_copy),
        patch.object(policy, "may_copy", may_copy),
        patch.object(NodeMemory, "is_worn", lambda *_: False),
    ):
        yield


@bug
def what_replicas_count_is_added_to_their_primary() -> Iterator[None]:
    whole = load._with_replicas

    def with_replicas(
        slot: int, own: load.Counted, replicas: Sequence[Any], cost: float | None
    ) -> load.Rates:
        more = [each.slots.get(slot, (0.0, 0.0, 0.0)) for each in replicas]
        both = [sum(each) for each in zip(own, *more, strict=True)]
        return whole(slot, (both[0], both[1], both[2]), [], cost)

    with patch.object(load, "_with_replicas", with_replicas):
        yield


@bug
def replicated_writes_are_taken_for_reads() -> Iterator[None]:
    def split(self: Any, slot: int, *_: Any) -> tuple[float, float, float, float]:
        cpu, bytes_in, bytes_out = self.slots.get(slot, (0.0, 0.0, 0.0))
        return 0.0, 0.0, cpu, bytes_in + bytes_out

    with patch.object(load._ReplicaRates, "split", split):
        yield


@bug
def reads_on_replicas_are_not_seen() -> Iterator[None]:
    whole = load._with_replicas

    def with_replicas(slot: int, own: load.Counted, *_: Any) -> load.Rates:
        return whole(slot, own, [], None)

    with patch.object(load, "_with_replicas", with_replicas):
        yield


@bug
def the_budget_of_the_hour_is_not_kept() -> Iterator[None]:
    with patch.object(SlotMover, "room", lambda self: self._limits.slots_per_hour):
        yield


@bug
def slots_move_at_any_time_of_the_day() -> Iterator[None]:
    with patch.object(MoveLimits, "allows", lambda *_: True):
        yield


@pytest.mark.parametrize("name", bug)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)


def test_slots_are_never_left_half_moved_and_the_cluster_ends_balanced() -> None:
    runs = hold(simulate, range(usually(3, 500)), Violation, "cluster")
    happened: Counter[str] = Counter()
    for run in runs:
        happened += run.events
    assert happened["migrations succeeded"] > 0
    assert happened["replicas were promoted"] > 0
    assert happened["a balancer waited for another"] > 0
