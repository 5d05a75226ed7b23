"""Carries out moves of slots, one migration at a time, and stops where it is safe.

The servers migrate a slot atomically (Valkey 9.0 or newer, `CLUSTER MIGRATESLOTS`): either the
target owns all slots of the migration, or the source still does. So nothing has to be remembered
here. If this process dies, the servers finish or undo the migration by themselves, and the next run
waits for that. `Mover` never cancels a migration that it did not start, because a server can only
cancel all of its migrations at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

import msgspec

from heatsink.errors import HeatsinkError, Unavailable
from heatsink.primitives.checks import check_number
from heatsink.primitives.clock import Clock

from .nodes import Migration, Topology, ranges_of
from .policy import Move

LOOK_S = 0.1
AGREE_S = 10.0
HOUR_S = 3_600.0
DAY_MINUTES = 24 * 60


class MovableCluster(Protocol):
    """What a mover needs of a cluster."""

    async def topology(self) -> Topology: ...

    async def migrations(self, topology: Topology) -> list[Migration]: ...

    async def start(self, move: Move, topology: Topology) -> None: ...

    async def cancel(self, source: str, topology: Topology) -> None: ...

    async def confirm(self, owner: str, slot: int, topology: Topology) -> None: ...


class Unsafe(Unavailable):
    """No slot may move now: a node is failing, or somebody else moves slots. Try again later."""


class MoveLimits(msgspec.Struct, frozen=True):
    """How fast, how much and when slots may move."""

    bytes_s: float = 50e6
    """Data a second, on average over a migration and the pause after it."""
    slots_per_hour: int = 4_096
    """The most slots in any hour."""
    job_slots: int = 256
    """The most slots in one migration."""
    job_bytes: int = 256 * 1024**2
    """The most data in one migration, unless one slot has more."""
    timeout_s: float = 120.0
    """After this time, a migration is cancelled."""
    hours: tuple[int, int] | None = None
    """From which to which minute of the day (UTC) slots may move; None for any time."""

    def __post_init__(self) -> None:
        check_number("bytes_s", self.bytes_s, 1, 1e12)
        check_number("slots_per_hour", self.slots_per_hour, 1, 10**6)
        check_number("job_slots", self.job_slots, 1, 16_384)
        check_number("job_bytes", self.job_bytes, 1, 10**12)
        check_number("timeout_s", self.timeout_s, 1, 86_400)
        for minute in self.hours or ():
            check_number("hours", minute, 0, DAY_MINUTES)

    def allows(self, time_s: float) -> bool:
        """Whether slots may move at this time of the day."""
        if self.hours is None:
            return True
        first, last = self.hours
        minute = time_s // 60 % DAY_MINUTES
        return first <= minute < last if first <= last else minute >= first or minute < last


class Mover:
    """Moves slots within limits, and waits until they are safe on their new owner."""

    def __init__(self, cluster: MovableCluster, limits: MoveLimits, clock: Clock) -> None:
        self._cluster = cluster
        self._limits = limits
        self._clock = clock
        self._budget: deque[tuple[float, int]] = deque()
        self._confirmed: set[str] = set()

    def jobs(self, move: Move) -> Iterator[Move]:
        """Divide a move into migrations within the limits."""
        each = move.size / max(len(move.slots), 1)
        count = max(min(self._limits.job_slots, int(self._limits.job_bytes / max(each, 1))), 1)
        for at in range(0, len(move.slots), count):
            slots = move.slots[at : at + count]
            size = round(each * len(slots))
            yield msgspec.structs.replace(move, slots=slots, size=size)

    def room(self) -> int:
        """How many slots may move now, within the hour's budget and the hours of the day."""
        now_s = self._clock.monotonic_s()
        while self._budget and now_s - self._budget[0][0] >= HOUR_S:
            self._budget.popleft()
        if not self._limits.allows(self._clock.now_s()):
            return 0
        return self._limits.slots_per_hour - sum(count for _, count in self._budget)

    async def check(self) -> Topology:
        """Return the topology. Raises `Unsafe` if no slot may move now.

        First confirms migrations that have ended, whoever started them: this process may have been
        killed, or the answer to its order may have been lost.
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

        `topology` is the one that `check` returned. Raises `Unsafe` if the cluster has changed
        since the plan was made, and `Unavailable` if the migration fails. Then the source still
        owns the slots.
        """
        self._still_right(job, topology)
        began_s = self._clock.monotonic_s()
        before = {each.name for each in await self._cluster.migrations(topology)}
        await self._cluster.start(job, topology)
        self._budget.append((began_s, len(job.slots)))
        await self._wait(job, topology, before)
        after = await self._agreed(job)
        await self._confirm(await self._cluster.migrations(after), after)
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
            raise Unavailable(f"{text}: it was cancelled, and the source keeps the slots")
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
    error: str = ""


async def carry_out_all(mover: Mover, moves: tuple[Move, ...], clock: Clock) -> list[MoveReport]:
    """Carry out moves in order. Stop at the first that fails, or when the budget is used up.

    Before each job the cluster is checked. A fail-over stops the rest, because the loads were
    measured before it.
    """
    reports: list[MoveReport] = []
    planned: set[str] | None = None
    for job in (job for move in moves for job in mover.jobs(move)):
        if len(job.slots) > mover.room():
            return reports
        began_s = clock.monotonic_s()
        try:
            topology = await mover.check()
            primaries = {node.id for node in topology.primaries}
            if planned not in (None, primaries):
                raise Unsafe("a primary has changed since the plan was made: plan again")
            planned = primaries
            await mover.carry_out(job, topology)
        except HeatsinkError as error:
            reports.append(MoveReport(job, clock.monotonic_s() - began_s, str(error)))
            return reports
        reports.append(MoveReport(job, clock.monotonic_s() - began_s))
    return reports
