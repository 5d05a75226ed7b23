"""Carries out moves of slots, one migration at a time, and stops where it is safe.

The servers migrate a slot atomically (Valkey 9.0 or newer, `CLUSTER MIGRATESLOTS`): either the
target owns all slots of the migration, or the source still does. So this process need not store
anything about a migration. If the process dies, the servers finish or undo the migration by
themselves, and the next run waits for that. `Mover` never cancels a migration that it did not
start, because a server can only cancel all of its migrations at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Protocol

import msgspec

from heatsink.errors import HeatsinkError, Unavailable
from heatsink.primitives.clock import Clock

from .nodes import Migration, Server, Topology, as_ranges, ranges_of
from .policy import Move, MoveLimits

LOOK_S = 0.1
AGREE_S = 10.0
HOUR_S = 3_600.0


class MovableCluster(Protocol):
    """What a mover needs of a cluster."""

    async def topology(self) -> Topology: ...

    async def migrations(self, topology: Topology) -> list[Migration]: ...

    async def start(self, move: Move, topology: Topology) -> None: ...

    async def cancel(self, source: str, topology: Topology) -> None: ...

    async def confirm(self, owner: str, slot: int, topology: Topology) -> None: ...


class Unsafe(Unavailable):
    """No slot may move now: a node is failing, or another program moves slots. Try again later."""


class Mover:
    """Moves slots within limits, and waits until they are safe on their new owner."""

    def __init__(self, cluster: MovableCluster, limits: MoveLimits, clock: Clock) -> None:
        self._cluster = cluster
        self._limits = limits
        self._clock = clock
        self._seen: dict[str, tuple[float, frozenset[int]]] = {}
        self._confirmed: set[str] = set()
        self.running: Move | None = None
        """The migration that this process carries out now."""

    def adopt(self, limits: MoveLimits) -> None:
        """Move slots within these limits from now on."""
        self._limits = limits

    def jobs(self, move: Move) -> Iterator[Move]:
        """Divide a move into migrations within the limits."""
        each = move.size / max(len(move.slots), 1)
        count = max(min(self._limits.job_slots, int(self._limits.job_bytes / max(each, 1))), 1)
        for at in range(0, len(move.slots), count):
            slots = move.slots[at : at + count]
            size = round(each * len(slots))
            yield msgspec.structs.replace(move, slots=slots, size=size)

    def room(self) -> int:
        """Return how many slots may move now, within the hour's budget and the hours of the day."""
        if not self._limits.allows(self._clock.now_s()):
            return 0
        since_s = self._clock.monotonic_s() - HOUR_S
        used = sum(len(slots) for at_s, slots in self._seen.values() if at_s > since_s)
        return self._limits.slots_per_hour - used

    async def recent(self) -> dict[int, float]:
        """Return the monotonic time of each slot's last move, whichever program moved it.

        The servers remember their migrations. So a new process keeps to the hour's budget, and
        moves no slot again before the slot has rested.
        """
        topology = await self._cluster.topology()
        self._remember(await self._cluster.migrations(topology))
        return {slot: at_s for at_s, slots in sorted_by_time(self._seen) for slot in slots}

    def _remember(self, found: list[Migration]) -> None:
        now_s, time_s = self._clock.monotonic_s(), self._clock.now_s()
        for each in found:
            if each.state == "success" and each.name not in self._seen:
                age_s = max(time_s - each.changed_s, 0.0) if each.changed_s else 0.0
                self._seen[each.name] = now_s - age_s, each.slots

    async def check(self) -> Topology:
        """Return the topology. Raises `Unsafe` if no slot may move now.

        First confirms all migrations that have ended, even those that this process does not know
        of: an earlier process may have been killed, or the answer to its command may have been
        lost.
        """
        topology = await self._cluster.topology()
        if topology.trouble:
            raise Unsafe(f"{topology.trouble}: no slot moves until that is over")
        found = await self._cluster.migrations(topology)
        for each in found:
            if not each.has_ended:
                raise Unsafe(
                    f"a migration of slots {ranges_of(each.slots)} is running ({each.state}): "
                    "wait until it has ended"
                )
        self._remember(found)
        await self._confirm(found, topology)
        return topology

    async def _confirm(self, found: list[Migration], topology: Topology) -> None:
        """Wait until the slots of ended migrations are safe on their new owners."""
        owners = topology.owners
        done = [each for each in found if each.state == "success"]
        unsure = [each for each in done if each.name not in self._confirmed]
        targets = {
            each.target: slot
            for each in unsure
            for slot in each.slots
            if owners.get(slot) == each.target
        }
        for target, slot in targets.items():
            await self._cluster.confirm(target, slot, topology)
        self._confirmed = {each.name for each in done}

    async def carry_out(self, job: Move, topology: Topology) -> None:
        """Migrate the slots of one job, and wait until they are safe on their new owner.

        `topology` is the topology that `check` returned. Raises `Unsafe` if the cluster has changed
        since the plan was made, and `Unavailable` if the migration fails. Then the source still
        owns the slots.
        """
        self._still_right(job, topology)
        began_s = self._clock.monotonic_s()
        before = {each.name for each in await self._cluster.migrations(topology)}
        self.running = job
        try:
            await self._cluster.start(job, topology)
            await self._wait(job, topology, before)
            after = await self._agreed(job)
            found = await self._cluster.migrations(after)
            self._remember(found)
            await self._confirm(found, after)
        finally:
            self.running = None
        spent_s = self._clock.monotonic_s() - began_s
        await self._clock.sleep(max(job.size / self._limits.bytes_s - spent_s, 0.0))

    def _still_right(self, job: Move, topology: Topology) -> None:
        owners = topology.owners
        if any(owners.get(slot) != job.source for slot in job.slots):
            raise Unsafe("slots have changed their owner since the plan was made: plan again")
        if job.target not in {node.id for node in topology.primaries}:
            raise Unsafe("the target is no primary any more: plan again")

    async def _wait(self, job: Move, topology: Topology, before: set[str]) -> None:
        """Wait for the end of our migration. Cancel it if it takes too long."""
        deadline_s = self._clock.monotonic_s() + self._limits.timeout_s
        while True:
            found = await self._cluster.migrations(topology)
            ours = [each for each in found if self._is_ours(each, job, before)]
            ended = [each for each in ours if each.has_ended]
            if ended:
                _raise_unless_done(ended[-1], job)
                return
            if self._clock.monotonic_s() > deadline_s:
                await self._give_up(job, topology, found, before)
            await self._clock.sleep(LOOK_S)

    def _is_ours(self, each: Migration, job: Move, before: set[str]) -> bool:
        is_new = each.name not in before and each.target == job.target
        return is_new and bool(each.slots & set(job.slots))

    async def _give_up(
        self, job: Move, topology: Topology, found: list[Migration], before: set[str]
    ) -> None:
        running = [each for each in found if not each.has_ended and each.source == job.source]
        slots = ranges_of(job.slots)
        text = f"the migration of slots {slots} took over {self._limits.timeout_s:.0f} s"
        if all(self._is_ours(each, job, before) for each in running):
            await self._cluster.cancel(job.source, topology)
            raise Unavailable(f"{text}: Heatsink cancelled it, and the slots stay at {job.source}")
        raise Unsafe(f"{text}, and another migration of the same source is running: look at both")

    async def _agreed(self, job: Move) -> Topology:
        """Wait until all primaries name the target as the owner."""
        deadline_s = self._clock.monotonic_s() + AGREE_S
        while True:
            topology = await self._cluster.topology()
            owners = topology.owners
            if all(owners.get(slot) == job.target for slot in job.slots):
                return topology
            if self._clock.monotonic_s() > deadline_s:
                raise Unsafe("the nodes do not agree on the new owner of the slots")
            await self._clock.sleep(LOOK_S)


def _raise_unless_done(ended: Migration, job: Move) -> None:
    if ended.state != "success":
        why = f": {ended.message}" if ended.message else ""
        slots = ranges_of(job.slots)
        raise Unavailable(f"the migration of slots {slots} {ended.state}{why}: they did not move")


class MoveReport(msgspec.Struct, frozen=True):
    """What became of a job: `error` is empty if its slots have moved."""

    job: Move
    took_s: float
    at_s: float
    """When it ended, as seconds since 1970."""
    error: str = ""


async def carry_out_each(
    mover: Mover, moves: tuple[Move, ...], clock: Clock
) -> AsyncIterator[MoveReport]:
    """Carry out moves in order, and yield a report after each migration.

    Stops at the first move that fails, or when the budget is used up. Before each migration the
    cluster is checked. After a fail-over the remaining moves are dropped, because the loads were
    measured before the fail-over.
    """
    planned: set[str] | None = None
    for job in (job for move in moves for job in mover.jobs(move)):
        began_s = clock.monotonic_s()
        try:
            topology = await mover.check()
            primaries = {node.id for node in topology.primaries}
            if planned not in (None, primaries):
                raise Unsafe("a primary has changed since the plan was made: plan again")
            planned = primaries
            if len(job.slots) > mover.room():
                raise Unsafe(
                    "the rest moves later: the budget of slots for this hour is used up, or the "
                    "present time is outside the hours in which slots may move"
                )
            await mover.carry_out(job, topology)
        except HeatsinkError as error:
            yield MoveReport(job, clock.monotonic_s() - began_s, clock.now_s(), str(error))
            return
        yield MoveReport(job, clock.monotonic_s() - began_s, clock.now_s())


def sorted_by_time(
    seen: Mapping[str, tuple[float, frozenset[int]]],
) -> list[tuple[float, frozenset[int]]]:
    return sorted(seen.values(), key=lambda each: each[0])


def commands_for(move: Move, topology: Topology, server: Server) -> str:
    """Return the shell commands with which a person carries out one move on this kind of server.

    `Mover` itself moves slots only on servers where one command moves them atomically. On other
    servers, an interrupted move leaves a slot half-way, and a person has to decide how to go on.
    """
    source, target = topology.known(move.source), topology.known(move.target)
    cli = "valkey-cli" if server.name.startswith("Valkey") else "redis-cli"
    at_source = f"{cli} -h {source.host} -p {source.port}"
    at_target = f"{cli} -h {target.host} -p {target.port}"
    ranges = " ".join(f"{first} {last}" for first, last in as_ranges(move.slots))
    if server.way == "migrateslots":
        return f"{at_source} CLUSTER MIGRATESLOTS SLOTSRANGE {ranges} NODE {target.id}"
    if server.way == "import":
        return f"{at_target} CLUSTER MIGRATION IMPORT {ranges}"
    slots = " ".join(
        f"{first}" if first == last else f"$(seq {first} {last})"
        for first, last in as_ranges(move.slots)
    )
    return "\n".join(
        (
            f"for slot in {slots}; do",
            f"  {at_target} CLUSTER SETSLOT $slot IMPORTING {source.id}",
            f"  {at_source} CLUSTER SETSLOT $slot MIGRATING {target.id}",
            f'  while [ "$({at_source} CLUSTER COUNTKEYSINSLOT $slot)" -gt 0 ]; do',
            f"    {at_source} CLUSTER GETKEYSINSLOT $slot 100 | tr '\\n' '\\0' |",
            f'      xargs -0 {at_source} MIGRATE {target.host} {target.port} "" 0 5000 KEYS',
            "  done",
            f"  {at_target} CLUSTER SETSLOT $slot NODE {target.id}",
            f"  {at_source} CLUSTER SETSLOT $slot NODE {target.id}",
            "done",
        )
    )
