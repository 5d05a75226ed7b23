"""Carries out moves of slots, one migration at a time, and stops where it is safe.

The servers migrate a slot atomically (Valkey 9.0 or newer, `CLUSTER MIGRATESLOTS`): either the
target owns all slots of the migration, or the source still does. So this process need not store
anything about a migration. If the process dies, the servers finish or undo the migration by
themselves, and the next run waits for that. `SlotMover` never cancels a migration that it did not
start, because a server can only cancel all of its migrations at once.

Before each migration, `SlotMover` measures the data of its slots. It leaves out slots whose upper
bound does not fit on the target, or for whose copy the source lacks memory. If a migration
nevertheless fills the source or the target, `SlotMover` cancels it.

`SlotMover` keeps the rate by a pause after each migration, as long as the bytes require that the
target has really received. By the upper bound of its data, a migration takes at most `BURST_S` at
this rate. A single slot with more data moves alone, and a longer pause follows. After a migration,
the source deletes all its keys, and does nothing else in this time. So `SlotMover` also limits the
keys of a migration.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from shlex import quote
from typing import Protocol

import msgspec

from heatsink.errors import HeatsinkError, Unavailable
from heatsink.primitives.clock import Clock
from heatsink.primitives.words import data_size
from heatsink.stores.redis.address import RedisAddress
from heatsink.stores.redis.connection import RedisRefused

from .answers import Server, SlotMigration, Topology
from .load import ClusterLoad
from .policy import SlotMove
from .rules import MoveLimits
from .sizes import ROOM, NodeMemory, SlotSize, may_copy
from .slots import as_ranges, ranges_of

LOOK_S = 0.1
AGREE_S = 10.0
HOUR_S = 3_600.0
BURST_S = 10.0
SIZES_KEPT_S = 600.0


class MovableCluster(Protocol):
    """What a mover needs of a cluster."""

    async def topology(self) -> Topology: ...

    async def migrations(self, topology: Topology) -> list[SlotMigration]: ...

    async def start(self, move: SlotMove, topology: Topology) -> None: ...

    async def cancel(self, source: str, topology: Topology) -> None: ...

    async def confirm(self, owner: str, slot: int, topology: Topology) -> None: ...

    async def memory(self, id: str, topology: Topology) -> NodeMemory: ...

    async def sizes(
        self, owner: str, slots: Sequence[int], topology: Topology
    ) -> dict[int, SlotSize]: ...


class Unsafe(Unavailable):
    """No slot may move now: a node is failing, or another program moves slots. Try again later."""


class Cut(msgspec.Struct, frozen=True):
    """A move, cut in three: `job` moves now, `skipped` has no room, `rest` is left for later."""

    job: SlotMove
    skipped: SlotMove
    rest: SlotMove


class _Unpaid(msgspec.Struct, frozen=True):
    """A migration whose data does not count towards the rate yet."""

    target: str
    began_s: float
    most: int
    received: int | None
    """The bytes that the target had received before."""


class Bounds(msgspec.Struct, frozen=True):
    """How many bytes of slots may move."""

    room: float
    """What the target may still take."""
    headroom: float
    """What the target may use in addition while slots arrive."""
    copy: float
    """What the source may copy at once."""
    burst: float
    """What the rate allows in one migration. A single slot may have more."""


def cut_job(
    move: SlotMove, sizes: Mapping[int, SlotSize], bounds: Bounds, limits: MoveLimits
) -> Cut:
    """Cut the next migration from a move, by the upper bounds of its slots and by their keys.

    Takes slots in order while they fit. A single slot may exceed `bounds.burst` and
    `limits.job_keys`.
    """
    most_max = min(bounds.copy, bounds.burst)
    taken: list[int] = []
    skipped: list[int] = []
    most = keys = piece = 0
    for slot in move.slots[: limits.job_slots]:
        each = sizes[slot]
        after, largest = most + each.most, max(piece, each.piece)
        is_too_large = after > bounds.room or after + largest > bounds.room + bounds.headroom
        if is_too_large or each.most > bounds.copy:
            skipped.append(slot)
        elif taken and (after > most_max or keys + each.keys > limits.job_keys):
            break
        else:
            taken.append(slot)
            most, piece = after, largest
            keys += each.keys
    rest = move.slots[len(taken) + len(skipped) :]
    return Cut(*(_part(move, tuple(slots), sizes) for slots in (taken, skipped, rest)))


def _part(move: SlotMove, slots: tuple[int, ...], sizes: Mapping[int, SlotSize]) -> SlotMove:
    known = [sizes[slot] for slot in slots if slot in sizes]
    size, most = sum(each.size for each in known), sum(each.most for each in known)
    return msgspec.structs.replace(move, slots=slots, size=size, most=most)


class SlotMover:
    """Moves slots within limits, and waits until they are safe on their new owner."""

    def __init__(self, cluster: MovableCluster, limits: MoveLimits, clock: Clock) -> None:
        self._cluster = cluster
        self._limits = limits
        self._clock = clock
        self._seen: dict[str, tuple[float, frozenset[int]]] = {}
        self._confirmed: set[str] = set()
        self._sizes: dict[int, tuple[float, SlotSize]] = {}
        self._failed: dict[str, tuple[float, frozenset[int]]] = {}
        self._unpaid: _Unpaid | None = None
        self.running: SlotMove | None = None
        """The migration that this process carries out now."""

    def adopt(self, limits: MoveLimits) -> None:
        """Move slots within these limits from now on."""
        self._limits = limits

    async def measure(self, owner: str, slots: Sequence[int], topology: Topology) -> None:
        """Measure slots on their owner, and remember their sizes for the next plans."""
        found = await self._cluster.sizes(owner, slots, topology)
        now_s = self._clock.monotonic_s()
        self._sizes |= {slot: (now_s, size) for slot, size in found.items()}

    def sized(self, load: ClusterLoad) -> ClusterLoad:
        """Return a load with the sizes of the slots that were measured lately."""
        since_s = self._clock.monotonic_s() - SIZES_KEPT_S
        self._sizes = {slot: each for slot, each in self._sizes.items() if each[0] > since_s}
        known = {slot: size for slot, (_, size) in self._sizes.items()}
        slots = tuple(
            msgspec.structs.replace(slot, size=size.size, most=size.most, piece=size.piece)
            if (size := known.get(slot.slot))
            else slot
            for slot in load.slots
        )
        return msgspec.structs.replace(load, slots=slots)

    async def next_job(self, move: SlotMove, topology: Topology) -> Cut:
        """Measure the next slots of a move, and cut the next migration from it.

        If the source was to be relieved and has room again, nothing is left to move: the slots that
        have left may have had more data than their measurement showed.
        """
        source = await self._cluster.memory(move.source, topology)
        if move.relieves and source.is_relieved:
            return Cut(*3 * [_part(move, (), {})])
        slots_max = min(self._limits.job_slots, self.room())
        limits = msgspec.structs.replace(self._limits, job_slots=slots_max)
        slots = move.slots[:slots_max]
        await self.measure(move.source, slots, topology)
        sizes = {slot: self._sizes[slot][1] for slot in slots}
        target = await self._cluster.memory(move.target, topology)
        burst = min(self._limits.job_bytes, BURST_S * self._limits.bytes_s)
        copy = may_copy(source.spare, move.written_s)
        bounds = Bounds(target.room, target.headroom, copy, burst)
        return cut_job(move, sizes, bounds, limits)

    def check_room(self) -> None:
        """Raise `Unsafe` if the hour's budget or the time of the day forbids a migration now."""
        if not self._limits.allows(self._clock.now_s()):
            raise Unsafe(f"these move later: slots move from {self._limits.day_words} (UTC)")
        if self.room() < 1:
            most = self._limits.slots_per_hour
            raise Unsafe(f"these move later: at most {most:,} slots may move in an hour")

    def room(self) -> int:
        """Return how many slots may still move in this hour."""
        since_s = self._clock.monotonic_s() - HOUR_S
        used = sum(len(slots) for at_s, slots in self._seen.values() if at_s > since_s)
        return self._limits.slots_per_hour - used

    async def recent(self) -> dict[int, float]:
        """Return when each slot moved last, or failed to move, whichever program moved it.

        The times are monotonic. The servers remember their migrations. So a new process keeps to
        the hour's budget, and a slot rests after each attempt: the data of a slot that cannot move
        is not copied again and again.
        """
        topology = await self._cluster.topology()
        self._remember(await self._cluster.migrations(topology))
        ended = sorted_by_time(self._seen | self._failed)
        return {slot: at_s for at_s, slots in ended for slot in slots}

    def _remember(self, found: list[SlotMigration]) -> None:
        now_s, time_s = self._clock.monotonic_s(), self._clock.now_s()
        for each in found:
            age_s = max(time_s - each.changed_s, 0.0) if each.changed_s else 0.0
            ended = self._seen if each.state == "success" else self._failed
            if each.has_ended and each.name not in ended:
                ended[each.name] = now_s - age_s, each.slots

    async def check(self) -> Topology:
        """Return the topology. Raises `Unsafe` if no slot may move now.

        First confirms all migrations that have ended, even those that this process does not know
        of: an earlier process may have been killed, or the answer to its command may have been
        lost. If the last migration seemed to fail, this also waits until its data is within the
        rate.
        """
        topology = await self._checked()
        if self._unpaid:
            await self.pause(topology)
            topology = await self._checked()
        return topology

    async def _checked(self) -> Topology:
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
        await self._confirm(found)
        return topology

    async def _confirm(self, found: list[SlotMigration]) -> None:
        """Wait until the slots of ended migrations are safe on their new owners.

        Asks for the owners again, since they may have been read before the migrations ended.
        """
        done = [each for each in found if each.state == "success"]
        unsure = [each for each in done if each.name not in self._confirmed]
        if not unsure:
            return
        topology = await self._cluster.topology()
        owners = topology.owners
        targets = {
            each.target: slot
            for each in unsure
            for slot in each.slots
            if owners.get(slot) == each.target
        }
        for target, slot in targets.items():
            await self._cluster.confirm(target, slot, topology)
        self._confirmed = {each.name for each in done}

    async def carry_out(self, job: SlotMove, topology: Topology) -> int:
        """Migrate the slots of one job, and wait until they are safe on their new owner.

        `topology` is the topology that `check` returned. Returns how many bytes the target has
        received: `pause` then waits until these are within the rate. Raises `Unsafe` if the cluster
        has changed since the plan was made, and `Unavailable` if the migration fails. Then the
        source still owns the slots.
        """
        self._still_right(job, topology)
        before = (await self._cluster.memory(job.target, topology)).received
        most = max(job.most, job.size)
        self._unpaid = _Unpaid(job.target, self._clock.monotonic_s(), most, before)
        await self._migrate(job, topology)
        return await self._moved(self._unpaid, topology)

    async def pause(self, topology: Topology) -> None:
        """Wait until the last migration, which has ended, is within the rate."""
        if self._unpaid is None:
            return
        moved = await self._moved(self._unpaid, topology)
        spent_s = self._clock.monotonic_s() - self._unpaid.began_s
        await self._clock.sleep(max(moved / self._limits.bytes_s - spent_s, 0.0))
        self._unpaid = None

    async def _moved(self, last: _Unpaid, topology: Topology) -> int:
        """Return the bytes of a migration, or their upper bound if its target does not say."""
        now = None
        with suppress(Unavailable):
            now = (await self._cluster.memory(last.target, topology)).received
        if now is None or last.received is None or now < last.received:
            return last.most
        return now - last.received

    async def _migrate(self, job: SlotMove, topology: Topology) -> None:
        source = await self._cluster.memory(job.source, topology)
        found = await self._cluster.migrations(topology)
        if not all(each.has_ended for each in found):
            raise Unsafe("another migration has just begun: wait until it has ended")
        if any(each.state == "success" and each.name not in self._confirmed for each in found):
            raise Unsafe("another migration has just ended: plan again")
        before = {each.name for each in found}
        self.running = job
        try:
            await self._start(job, topology, before)
            await self._wait(job, topology, before, source)
            after = await self._agreed(job)
            found = await self._cluster.migrations(after)
            self._remember(found)
            await self._confirm(found)
        finally:
            self.running = None

    async def _start(self, job: SlotMove, topology: Topology, before: set[str]) -> None:
        """Order the migration. If the answer is lost, look whether the migration has begun.

        If it has, it must be watched: otherwise nobody cancels it when it fills a node.
        """
        try:
            await self._cluster.start(job, topology)
        except RedisRefused:
            raise
        except Unavailable:
            found = await self._cluster.migrations(topology)
            if not any(self._is_ours(each, job, before) for each in found):
                raise
        finally:  # it began before the answer: from now on, the pause for its bytes is long enough
            if self._unpaid:
                now_s = self._clock.monotonic_s()
                self._unpaid = msgspec.structs.replace(self._unpaid, began_s=now_s)

    def _still_right(self, job: SlotMove, topology: Topology) -> None:
        owners = topology.owners
        if any(owners.get(slot) != job.source for slot in job.slots):
            raise Unsafe("slots have changed their owner since the plan was made: plan again")
        if job.target not in {node.id for node in topology.primaries}:
            raise Unsafe("the target is no primary any more: plan again")

    async def _wait(
        self, job: SlotMove, topology: Topology, before: set[str], source: NodeMemory
    ) -> None:
        """Wait for the end of our migration. Cancel it if it takes too long or fills a node.

        `source` is the memory of the source when the migration began. A migration may succeed
        before the order to cancel it arrives. So this function also waits for the end of a
        cancelled migration.
        """
        deadline_s, given_up = self._clock.monotonic_s() + self._limits.timeout_s, ""
        while True:
            found = await self._cluster.migrations(topology)
            ours = [each for each in found if self._is_ours(each, job, before)]
            ended = [each for each in ours if each.has_ended]
            if ended:
                _raise_unless_done(ended[-1], job, given_up)
                return
            is_late = self._clock.monotonic_s() > deadline_s
            if given_up and is_late:
                raise Unavailable(given_up)
            why = "" if given_up else await self._excess(job, topology, source, is_late)
            if why:
                given_up = await self._give_up(job, topology, found, before, why)
                deadline_s = self._clock.monotonic_s() + AGREE_S
            await self._clock.sleep(LOOK_S)

    async def _excess(
        self, job: SlotMove, topology: Topology, source: NodeMemory, is_late: bool
    ) -> str:
        """Say why the running migration must be cancelled; empty if it need not."""
        if is_late:
            return f"took over {self._limits.timeout_s:.0f} s"
        if (await self._cluster.memory(job.target, topology)).is_full:
            return f"filled the memory of {topology.known(job.target).address}"
        if (await self._cluster.memory(job.source, topology)).is_worn(source):
            return f"used up the memory of {topology.known(job.source).address} for its copy"
        return ""

    def _is_ours(self, each: SlotMigration, job: SlotMove, before: set[str]) -> bool:
        is_new = each.name not in before and each.target == job.target
        return is_new and bool(each.slots & set(job.slots))

    async def _give_up(
        self,
        job: SlotMove,
        topology: Topology,
        found: list[SlotMigration],
        before: set[str],
        why: str,
    ) -> str:
        """Cancel our migration, and return what to say about it."""
        running = [each for each in found if not each.has_ended and each.source == job.source]
        slots = ranges_of(job.slots)
        text = f"the migration of slots {slots} {why}"
        if all(self._is_ours(each, job, before) for each in running):
            await self._cluster.cancel(job.source, topology)
            address = topology.known(job.source).address
            return f"{text}: Heatsink cancelled it, and the slots stay at {address}"
        raise Unsafe(f"{text}, and another migration of the same source is running: look at both")

    async def _agreed(self, job: SlotMove) -> Topology:
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


def _raise_unless_done(ended: SlotMigration, job: SlotMove, given_up: str) -> None:
    if ended.state != "success":
        if given_up:
            raise Unavailable(given_up)
        why = f": {ended.message.strip()}" if ended.message else ""
        if "auth" in ended.message.lower():
            why += " (set primaryauth and primaryuser on the nodes, so that they can log in)"
        slots = ranges_of(job.slots)
        raise Unavailable(f"the migration of slots {slots} {ended.state}{why}: they did not move")


class MoveReport(msgspec.Struct, frozen=True):
    """What became of a job: `error` is empty if its slots have moved."""

    job: SlotMove
    took_s: float
    at_s: float
    """When it ended, as seconds since 1970."""
    error: str = ""
    moved: int = 0
    """The bytes that the target has received."""


async def carry_out_each(
    mover: SlotMover,
    moves: tuple[SlotMove, ...],
    clock: Clock,
    leads: Callable[[], bool] = lambda: True,
) -> AsyncIterator[MoveReport]:
    """Carry out moves in order, and yield a report after each migration.

    The report comes before the pause that holds the rate: whoever is stopped in the pause has
    recorded the migration. Leaves out slots for which there is no room, and reports them. Stops at
    the first migration that fails, or when the budget is used up; that report names all slots of
    the move that did not move. Before each migration the cluster is checked. After a fail-over the
    remaining moves are dropped, because the loads were measured before the fail-over.
    """
    planned: set[str] | None = None
    for move in moves:
        rest = move
        while rest.slots:
            job, began_s = rest, clock.monotonic_s()
            try:
                topology = await mover.check()
                if not leads():
                    raise Unsafe("another process balances this cluster now")
                primaries = {node.id for node in topology.primaries}
                if planned not in (None, primaries):
                    raise Unsafe("a primary has changed since the plan was made: plan again")
                planned = primaries
                mover.check_room()
                cut = await mover.next_job(rest, topology)
                job, rest = cut.job, cut.rest
                if cut.skipped.slots:
                    why = no_room(cut.skipped, topology)
                    yield MoveReport(cut.skipped, 0.0, clock.now_s(), why)
                if not job.slots:
                    continue
                mover.check_room()  # measuring takes time
                moved = await mover.carry_out(job, topology)
            except HeatsinkError as error:
                yield MoveReport(job, clock.monotonic_s() - began_s, clock.now_s(), str(error))
                return
            yield MoveReport(job, clock.monotonic_s() - began_s, clock.now_s(), moved=moved)
            await mover.pause(topology)


def no_room(skipped: SlotMove, topology: Topology) -> str:
    """Say why slots of a move were left out."""
    nodes = [topology.known(id).address for id in (skipped.source, skipped.target)]
    return (
        f"left out, with up to {data_size(skipped.most)}: {nodes[1]} has no room for this data "
        f"below {ROOM:.0%} of its memory, or {nodes[0]} lacks memory to copy it while clients write"
    )


def sorted_by_time(
    seen: Mapping[str, tuple[float, frozenset[int]]],
) -> list[tuple[float, frozenset[int]]]:
    return sorted(seen.values(), key=lambda each: each[0])


def commands_for(move: SlotMove, topology: Topology, server: Server, login: RedisAddress) -> str:
    """Return the shell commands with which a person carries out one move on this kind of server.

    `SlotMover` itself moves slots only on servers where one command moves them atomically. On other
    servers, an interrupted move leaves a slot half-way, and a person has to decide how to go on.
    The commands use TLS and the user of `login`. They expect the password in `REDISCLI_AUTH`.
    """
    source, target = topology.known(move.source), topology.known(move.target)
    words = ["valkey-cli" if server.name.startswith("Valkey") else "redis-cli"]
    words += ["--tls"] if login.tls else []
    words += ["--cacert", quote(login.options.ca)] if login.tls and login.options.ca else []
    words += ["--user", quote(login.user)] if login.user else []
    cli = " ".join(words)
    at_source = f"{cli} -h {source.host} -p {source.port}"
    at_target = f"{cli} -h {target.host} -p {target.port}"
    password = ' AUTH "$REDISCLI_AUTH"' if login.password else ""
    if login.user:
        password = f' AUTH2 {quote(login.user)} "$REDISCLI_AUTH"'
    ranges = " ".join(f"{first} {last}" for first, last in as_ranges(move.slots))
    if server.way == "migrateslots":
        return f"{at_source} CLUSTER MIGRATESLOTS SLOTSRANGE {ranges} NODE {target.id}"
    if server.way == "import":
        return f"{at_target} CLUSTER MIGRATION IMPORT {ranges}"
    slots = " ".join(
        f"{first}" if first == last else f"$(seq {first} {last})"
        for first, last in as_ranges(move.slots)
    )
    migrate = f'MIGRATE {target.host} {target.port} "" 0 5000{password} KEYS'
    return "\n".join(
        (
            f"for slot in {slots}; do",
            f"  {at_target} CLUSTER SETSLOT $slot IMPORTING {source.id}",
            f"  {at_source} CLUSTER SETSLOT $slot MIGRATING {target.id}",
            f'  while [ "$({at_source} CLUSTER COUNTKEYSINSLOT $slot)" -gt 0 ]; do',
            f"    {at_source} CLUSTER GETKEYSINSLOT $slot 100 | tr '\\n' '\\0' |",
            f"      xargs -0 {at_source} {migrate}",
            "  done",
            f"  {at_target} CLUSTER SETSLOT $slot NODE {target.id}",
            f"  {at_source} CLUSTER SETSLOT $slot NODE {target.id}",
            "done",
        )
    )
