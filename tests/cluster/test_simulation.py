"""The planner and the mover among failures: every seed holds, and each planted bug is found."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from heatsink.cluster import mover, policy
from heatsink.cluster.mover import Mover
from heatsink.cluster.nodes import Migration, Topology
from heatsink.cluster.policy import SlotPolicy
from tests.planted import Bugs, Hunt, hold, usually
from tests.simulation.history import Violation

from .simulation import simulate

bug = Bugs()
HUNT = Hunt("cluster", bug, simulate, Violation, seeds=40)


@bug
def other_migrations_are_ignored() -> Iterator[None]:
    async def check(self: Mover) -> Topology:
        topology = await self._cluster.topology()
        if topology.trouble:
            raise mover.Unsafe(topology.trouble)
        await self._confirm(await self._cluster.migrations(topology), topology)
        return topology

    with patch.object(Mover, "check", check):
        yield


@bug
def failing_nodes_are_ignored() -> Iterator[None]:
    async def check(self: Mover) -> Topology:
        topology = await self._cluster.topology()
        found = await self._cluster.migrations(topology)
        if any(not each.has_ended for each in found):
            raise mover.Unsafe("busy")
        await self._confirm(found, topology)
        return topology

    with patch.object(Mover, "check", check):
        yield


@bug
def a_new_owner_is_not_confirmed() -> Iterator[None]:
    async def confirm(*_: object) -> None:
        return None

    with patch.object(Mover, "_confirm", confirm):
        yield


@bug
def only_own_migrations_are_confirmed() -> Iterator[None]:
    """As if an answer were never lost, and no process ever died."""
    whole = Mover._confirm

    async def confirm(self: Mover, found: list[Migration], topology: Topology) -> None:
        is_own = sys._getframe(1).f_code.co_name == "carry_out"
        await whole(self, found if is_own else [], topology)

    with patch.object(Mover, "_confirm", confirm):
        yield


@bug
def every_slow_migration_is_cancelled() -> Iterator[None]:
    async def check(self: Mover) -> Topology:
        topology = await self._cluster.topology()
        found = await self._cluster.migrations(topology)
        for each in found:
            if not each.has_ended:
                await self._cluster.cancel(each.source, topology)
        if topology.trouble:
            raise mover.Unsafe(topology.trouble)
        await self._confirm(found, topology)
        return topology

    with patch.object(Mover, "check", check):
        yield


@bug
def moved_slots_do_not_rest() -> Iterator[None]:
    with patch.object(SlotPolicy, "note", lambda *_: None):
        yield


@bug
def a_new_process_does_not_ask_what_has_moved() -> Iterator[None]:
    async def recent(_: Mover) -> dict[int, float]:
        return {}

    with patch.object(Mover, "recent", recent):
        yield


@bug
def the_gain_has_the_wrong_sign() -> Iterator[None]:
    def order(self: policy._Board, node: str) -> tuple[float, str]:
        return -self.used(node), node

    with patch.object(policy._Board, "_order", order):
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
