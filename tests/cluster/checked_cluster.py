"""A cluster on virtual time, whose nodes fail, and which checks every order that it gets.

A few slots have most of the data, and some of these are larger than a measurement shows. In *tight*
clusters the nodes have little room, and these slots are busy, so that the planner wants to move
them. No migration may fill its target, nor its source by what is written during the copy. A node
that is nearly full must be relieved. In *crowded* clusters, slots have so many keys that their
source would stand still after a move. In *bound* clusters, few slots may move in an hour, or only
at some time of the day. Replicas get the writes of their primary, and reads of their own.

While the load is steady, no slot may move without gain, or go back to a node that it has left,
unless it leaves a node that is nearly full.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from heatsink.cluster.answers import Node, SlotMigration, Topology
from heatsink.cluster.load import ClusterCounters, NodeCounters, SlotCounters
from heatsink.cluster.policy import SlotMove
from heatsink.cluster.rules import MoveLimits, SlotRules
from heatsink.cluster.sizes import CROWDED, GIVE, PAGES, ROOM, NodeMemory, SlotSize
from heatsink.errors import Unavailable
from heatsink.testing.clocks import SkewedClock
from tests.simulation.history import Violation

SLOTS = 256  # a real cluster has 64 times as many
BUSY_SLOTS = 200
FLAP_S = 60.0
JUST_NOW_S = 1.0  # between a check and an order, others may act: a node fails, somebody moves slots
FOREIGN = "somebody else"
RULES = SlotRules(rest_s=600.0)
LIMITS = MoveLimits(bytes_s=20e6, slots_per_hour=16_384, timeout_s=60)
SMALL, MEDIUM, LARGE = 100_000, 1_000_000, 50_000_000
LIMIT_MIN = 150_000_000  # smaller nodes would be full before a look at their memory could show it
LARGE_IF_TIGHT = 8
FEW, MANY, VERY_MANY = 1_000, 60_000, 5_000_000  # keys
TRIES = 2  # a balancer that has just begun may not know of the last failure yet
WIRE_S = 60e6  # bytes a second in a migration
ASKED_S, ANSWERED_S = 1e4, 1e6  # bytes a second of reads that use a core
REPLICATED = 0.8  # of what a write costs its primary, it costs each replica
HOUR_S, DAY_MINUTES = 3_600.0, 24 * 60


class Cluster:
    """Three to five primaries. Migrations take time and are atomic, as in Valkey 9."""

    def __init__(self, rng: Random, clock: SkewedClock) -> None:
        self.rng = rng
        self.clock = clock
        self.events: Counter[str] = Counter()
        count = rng.randint(3, 5)
        self.primaries = [f"n{number}" for number in range(count)]
        self.owner = {slot: self.primaries[slot * count // SLOTS] for slot in range(SLOTS)}
        self.is_tight = rng.random() < 0.3
        self.large = rng.sample(range(SLOTS), LARGE_IF_TIGHT if self.is_tight else SLOTS // 10)
        self.written = {slot: rng.choice([0.0, 0.5, 1.0]) for slot in range(SLOTS)}
        """Which part of a slot's load are writes."""
        self.write_s = rng.choice([2e5, 5e6])
        """Bytes a second of writes that use a core."""
        self.cpu = self._load()
        self.is_uneven = rng.random() < 0.2
        count_of_all = rng.randint(0, 2)
        self.replicas = {
            node: rng.randint(0, 2) if self.is_uneven else count_of_all for node in self.primaries
        }
        self.read = {slot: rng.choice([0.0, 0.0, 0.0, 1.5]) for slot in range(SLOTS)}
        """What reads on replicas cost, as a part of a slot's load on its primary."""
        self.counted = {slot: [0.0] * 6 for slot in range(SLOTS)}
        self.read_s = 0.0
        self.jobs: list[SlotMigration] = []
        self.ends_s: dict[str, float] = {}
        self.by: dict[str, str] = {}
        self.by_life: dict[str, int] = {}
        self.alive: set[int] = set()
        """The processes that have not been killed. Nobody watches the migrations of others."""
        self.failing: set[str] = set()
        self.failed_s: dict[str, float] = {}
        self.unconfirmed: set[int] = set()
        self.left: dict[int, set[str]] = {}
        self.made = 0
        self.is_steady = False
        self.flaps = False
        self.moved_s: dict[int, float] = {}
        self.demoted_s: dict[str, float] = {}
        usual = MEDIUM if self.is_tight else SMALL
        self.sizes_of = dict.fromkeys(range(SLOTS), usual) | dict.fromkeys(self.large, LARGE)
        self.hidden = {
            slot for slot in self.large if rng.random() < (0.5 if self.is_tight else 0.2)
        }
        whole = {slot for slot in self.large if slot % 3 == 0} - self.hidden
        self.pieces = dict.fromkeys(whole, LARGE)
        """Slots whose data is one value: the target needs the memory twice while it arrives."""
        self.limits = {node: self._limit_of(node) for node in self.primaries}
        self.is_crowded = rng.random() < 0.3
        self.keys_of = {slot: rng.choice([MANY] + 3 * [FEW]) for slot in range(SLOTS)}
        if self.is_crowded:
            self.keys_of |= dict.fromkeys(rng.sample(range(SLOTS), 20), VERY_MANY)
        self.failures_s: dict[int, list[float]] = {}
        self.begun_s: dict[str, float] = {}
        self.received = dict.fromkeys(self.primaries, 0)
        self.ends_of_us: list[tuple[float, int]] = []
        self.lives = 0
        self.next_s = (0, 0.0)
        self.holder, self.held_s = "", 0.0
        self.orders = self._orders()

    @property
    def is_bound(self) -> bool:
        """Whether the hour's budget or the time of the day may keep slots from moving."""
        return self.orders != LIMITS

    def _orders(self) -> MoveLimits:
        kind = self.rng.random()
        if kind < 0.15:
            return msgspec.structs.replace(LIMITS, slots_per_hour=self.rng.randint(5, 30))
        if kind < 0.3:
            first = int(self.clock.now_s() // 60 + self.rng.randint(-10, 30)) % DAY_MINUTES
            hours = first, (first + self.rng.randint(5, 30)) % DAY_MINUTES
            return msgspec.structs.replace(LIMITS, hours=hours)
        return LIMITS

    def _limit_of(self, node: str) -> int:
        if not self.is_tight:
            return 2 * sum(self.sizes_of.values())
        return max(round(self._data(node) / self.rng.uniform(0.55, 0.97)), LIMIT_MIN)

    def _data(self, node: str) -> int:
        return sum(self.sizes_of[slot] for slot, owner in self.owner.items() if owner == node)

    def _load(self) -> dict[int, float]:
        cpu = dict.fromkeys(range(SLOTS), 0.0)
        skew = self.rng.uniform(0.7, 1.4)
        for rank in range(BUSY_SLOTS):
            has_data = self.is_tight and self.rng.random() < 0.3
            slot = self.rng.choice(self.large) if has_data else self.rng.randrange(SLOTS)
            cpu[slot] += 1 / (rank + 1) ** skew
        scale = self.rng.uniform(0.1, 0.5) * len(self.primaries) / sum(cpu.values())
        return {slot: each * scale for slot, each in cpu.items()}

    # -- what production asks --------------------------------------------------------------

    async def topology(self) -> Topology:
        await self._answer()
        nodes = []
        for id in self.primaries:
            flags = {"master", *(["fail?"] if id in self.failing else [])}
            owned = tuple((slot, slot) for slot, owner in self.owner.items() if owner == id)
            nodes.append(Node(id, id, 1, frozenset(flags), "", owned))
        failing = ", ".join(sorted(self.failing & {*self.primaries}))
        return Topology(tuple(nodes), f"{failing} is failing" if failing else "")

    async def snapshot(self, _: Topology, __: Mapping[str, float]) -> ClusterCounters:
        await self._answer()
        now_s = self.clock.monotonic_s()
        burst = 8.0 if not self.is_steady and self.rng.random() < 0.1 else 1.0
        bursting = self.rng.choice(self.primaries)
        took_s, self.read_s = now_s - self.read_s, now_s
        for slot, cpu in self.cpu.items():
            noise = self.rng.uniform(0.95, 1.05) if cpu else 0.0
            more = burst if self.owner[slot] == bursting else 1.0
            if self.flaps and (now_s // FLAP_S) % 2 == slot % 2:
                more *= 10.0
            for place, rate in enumerate(self._rates(slot)):
                self.counted[slot][place] += rate * noise * more * took_s
        nodes = tuple(self._node(id) for id in self.primaries)
        own, replicas = dict[int, SlotCounters](), dict[str, dict[int, SlotCounters]]()
        for slot, counted in self.counted.items():
            owner, keys, numbers = self.owner[slot], self.keys_of[slot], [*map(int, counted)]
            own[slot] = SlotCounters(owner, keys, *numbers[:3])
            for number in range(self.replicas_of(owner)):
                copied = replicas.setdefault(f"{owner}r{number}", {})
                copied[slot] = SlotCounters(owner, keys, *numbers[3:])
        return ClusterCounters(now_s, nodes, own, replicas)

    @property
    def reads(self) -> float:
        """The CPU that reads use on all replicas, in cores."""
        owned = self.owner.items()
        return sum(self.read[slot] * self.cpu[slot] for slot, id in owned if self.replicas_of(id))

    def replicas_of(self, id: str) -> int:
        """Return how many replicas a node has. A promoted one has as many as its predecessor."""
        return self.replicas[id.partition(".")[0]]

    def _node(self, id: str) -> NodeCounters:
        memory, data = self._memory(id), self._data(id)
        return NodeCounters(
            id=id,
            address=id,
            memory=data,
            dataset=data,
            room=memory.room,
            headroom=memory.headroom,
            spare=memory.spare,
            excess=memory.excess,
            replicas=self.replicas_of(id),
        )

    def _rates(self, slot: int) -> tuple[float, ...]:
        """Return CPU time (µs), received and sent bytes a second: of the owner, of each replica."""
        cpu, count = self.cpu[slot], self.replicas_of(self.owner[slot])
        reads, writes = self.read[slot] * cpu, self.written[slot] * cpu
        each, there = (reads / count, 0.0) if count else (0.0, reads)
        written_s, answered = writes * self.write_s, cpu - writes + there
        return (
            (cpu + there) * 1e6,
            written_s + answered * ASKED_S,
            count * written_s + answered * ANSWERED_S,
            (REPLICATED * writes + each) * 1e6,
            written_s + each * ASKED_S,
            each * ANSWERED_S,
        )

    def used(self, node: str) -> float:
        """Return how busy the busiest of a primary and its replicas is."""
        slots = [self._rates(slot) for slot, owner in self.owner.items() if owner == node]
        own, each = (sum(rates[place] for rates in slots) / 1e6 for place in (0, 3))
        return max(own, each) if self.replicas_of(node) else own

    async def migrations(self, _: Topology) -> list[SlotMigration]:
        await self._answer()
        return list(self.jobs)

    async def memory(self, id: str, _: Topology) -> NodeMemory:
        await self._answer()
        if id not in self.primaries:
            raise Unavailable("the node is gone")
        return self._memory(id)

    def _memory(self, id: str) -> NodeMemory:
        arriving = [job for job in self.running if job.target == id]
        now_s = self.clock.monotonic_s()
        came = sum(
            self._size(job)
            * (now_s - self.begun_s[job.name])
            / max(self.ends_s[job.name] - self.begun_s[job.name], 1e-6)
            for job in arriving
        )
        used = self._data(id) + min(round(came), sum(map(self._size, arriving)))
        used += sum(map(self._piece, arriving))
        for job in self.running:
            if job.source == id:
                lasts_s = max(self.ends_s[job.name] - self.begun_s[job.name], 1e-6)
                done = min((now_s - self.begun_s[job.name]) / lasts_s, 1.0)
                used += round(done * self._kept(job))
        return NodeMemory(used, self._limit(id), received=self.received.get(id, 0))

    def _limit(self, id: str) -> int:
        """A promoted replica has the limit of the primary that it replaces."""
        return self.limits[id.partition(".")[0]]

    def _kept(self, job: SlotMigration) -> float:
        """Return the bytes that the source has to keep until the end of the copy."""
        own = [slot for slot, owner in self.owner.items() if owner == job.source]
        written_s = sum(self.cpu[slot] * self.written[slot] for slot in own) * self.write_s
        return PAGES * written_s * self._size(job) / WIRE_S

    def _piece(self, job: SlotMigration) -> int:
        return max(self.pieces.get(slot, 0) for slot in job.slots)

    def _size(self, job: SlotMigration) -> int:
        return sum(self.sizes_of[slot] for slot in job.slots)

    async def sizes(self, owner: str, slots: Sequence[int], _: Topology) -> dict[int, SlotSize]:
        await self._answer()
        if {self.owner[slot] for slot in slots} - {owner}:
            raise Unavailable("a slot is not here")
        seen = {slot: SMALL if slot in self.hidden else self.sizes_of[slot] for slot in slots}
        return {
            slot: SlotSize(size, round(size * 1.1), self.keys_of[slot], self.pieces.get(slot, 0))
            for slot, size in seen.items()
        }

    async def start(self, move: SlotMove, _: Topology, life: int = 0) -> None:
        await self._answer()
        self._check_start(move, life)
        if not self._is_relief(move):
            for slot in move.slots:
                self.left.setdefault(slot, set()).add(move.source)
        self._begin(move.source, move.target, frozenset(move.slots), "us", life)
        if self.rng.random() < 0.1 and not self.is_steady:
            self.events["answers to start were lost"] += 1
            raise Unavailable("the answer was lost")

    def _check_start(self, move: SlotMove, life: int) -> None:
        now_s = self.clock.monotonic_s()
        if any(now_s - self.begun_s[job.name] >= JUST_NOW_S for job in self.running):
            raise Violation("a migration began beside another one")
        if any(
            now_s - self.failed_s[node] >= JUST_NOW_S for node in self.failing & {*self.primaries}
        ):
            raise Violation("slots moved while a node was failing")
        if self.unconfirmed:
            raise Violation("a migration began before the last one was confirmed")
        if {self.owner[slot] for slot in move.slots} != {move.source}:
            raise Unavailable("the source does not own these slots")
        if move.target not in self.primaries:
            if now_s - self.demoted_s[move.target] < JUST_NOW_S:
                raise Unavailable("the target is no primary any more")
            raise Violation("slots were to move to a node that is gone")
        keys = [self.keys_of[slot] for slot in move.slots]
        if max(keys) == VERY_MANY or (len(keys) > 1 and sum(keys) > LIMITS.job_keys):
            raise Violation("a source has to delete too many keys at once")
        self._check_orders(len(move.slots), now_s)
        if self.next_s[0] == life and now_s < self.next_s[1] - 0.001:
            raise Violation("more data moved than the rate allows")
        for slot in move.slots:
            self._check_slot(slot, move, now_s)

    def _check_orders(self, slots: int, now_s: float) -> None:
        moved = sum(count for at_s, count in self.ends_of_us if at_s > now_s - HOUR_S + JUST_NOW_S)
        if moved + slots > self.orders.slots_per_hour:
            raise Violation("more slots moved in an hour than its budget")
        first, last = self.orders.hours or (0, 0)
        minutes = [(self.clock.now_s() - ago_s) // 60 for ago_s in (0.0, JUST_NOW_S)]
        is_within = any((m - first) % DAY_MINUTES < (last - first) % DAY_MINUTES for m in minutes)
        if self.orders.hours and not is_within:
            raise Violation("slots moved at a forbidden time of the day")

    def _check_slot(self, slot: int, move: SlotMove, now_s: float) -> None:
        if self.is_steady and not self._is_relief(move):
            if self.cpu[slot] < sum(self.cpu.values()) / SLOTS / 1_000:
                raise Violation(f"slot {slot} moved although it is idle")
            if not self.flaps and move.target in self.left.get(slot, ()):
                raise Violation(f"slot {slot} went back although the load was steady")
        failures = [each for each in self.failures_s.get(slot, ()) if each > now_s - RULES.rest_s]
        if len(failures) >= TRIES:
            raise Violation(f"slot {slot} was copied again and again in vain")
        if now_s - self.moved_s.get(slot, -RULES.rest_s) < RULES.rest_s - 1:
            raise Violation(f"slot {slot} moved again before it had rested")

    def _is_relief(self, move: SlotMove) -> bool:
        """Whether slots may leave for their data: idle slots too, and where they were before."""
        return move.relieves and self._data(move.source) > ROOM * self._limit(move.source)

    async def cancel(self, source: str, _: Topology) -> None:
        await self._answer()
        for job in self.running:
            if job.source == source:
                if self.by[job.name] == FOREIGN:
                    raise Violation("somebody else's migration was cancelled")
                self._end(job, "canceled")
                self.events["migrations were cancelled"] += 1

    async def confirm(self, owner: str, _: int, __: Topology) -> None:
        await self._answer()
        self.unconfirmed -= {slot for slot in self.unconfirmed if self.owner[slot] == owner}

    async def lead(self, name: str, lease_ms: int, _: Topology) -> bool:
        await self._answer()
        now_s = self.clock.monotonic_s()
        if self.holder != name and now_s < self.held_s:
            return False
        self.holder, self.held_s = name, now_s + lease_ms / 1_000
        return True

    async def _answer(self) -> None:
        await self.clock.sleep(self.rng.uniform(0.001, 0.02))
        self._advance()

    def born(self) -> int:
        """Return the number of a new process."""
        self.lives += 1
        self.alive.add(self.lives)
        return self.lives

    def check_relief(self) -> None:
        """Raise `Violation` if a node is nearly full, and has slots that fit elsewhere."""
        room = {id: self._memory(id).room for id in self.primaries}
        for slot, owner in self.owner.items():
            if self.keys_of[slot] == VERY_MANY or self._data(owner) <= CROWDED * self._limit(owner):
                continue
            others = max(free for id, free in room.items() if id != owner)
            if self.sizes_of[slot] <= MEDIUM and others > 5 * MEDIUM:
                raise Violation(f"{owner} is nearly full, and slot {slot} could leave")

    # -- what happens in the cluster -------------------------------------------------------

    @property
    def running(self) -> list[SlotMigration]:
        return [job for job in self.jobs if not job.has_ended]

    def _begin(
        self, source: str, target: str, slots: frozenset[int], by: str, life: int = 0
    ) -> None:
        self.made += 1
        name = f"job{self.made}"
        self.jobs.append(SlotMigration(name, source, target, slots, "snapshotting"))
        slow = self.rng.random() < 0.05 and not self.is_steady
        size = self._size(self.jobs[-1])
        takes_s = 500.0 if slow else self.rng.uniform(0.05, 2) + size / WIRE_S
        self.begun_s[name] = self.clock.monotonic_s()
        self.ends_s[name] = self.begun_s[name] + takes_s
        self.by[name], self.by_life[name] = by, life
        if by == "us":
            self.next_s = life, self.begun_s[name] + size / LIMITS.bytes_s

    def _advance(self) -> None:
        for job in self.running:
            if self.clock.monotonic_s() < self.ends_s[job.name]:
                continue
            ends = {job.source, job.target}
            broken = bool(ends & self.failing) or not ends <= {*self.primaries}
            fails = broken or (not self.is_steady and self.rng.random() < 0.1)
            self._end(job, "failed" if fails else "success")
            if fails:
                self.events["migrations failed"] += 1
                continue
            self.events["migrations succeeded"] += 1
            self._succeed(job, self.by[job.name] == "us")

    def _succeed(self, job: SlotMigration, is_ours: bool) -> None:
        self.received[job.target] = self.received.get(job.target, 0) + self._size(job)
        now_s, limit = self.clock.monotonic_s(), self._limit(job.source)
        is_watched = is_ours and self.by_life[job.name] in self.alive
        arrived = self._size(job) + self._piece(job)
        if is_watched and self._data(job.target) + arrived > self._limit(job.target):
            raise Violation("a migration filled its target above the limit")
        kept = self._kept(job)
        if is_watched and kept > 2 * GIVE * limit and self._data(job.source) + kept > limit:
            raise Violation("a copy used up the memory of its source")
        for slot in job.slots:
            self.owner[slot] = job.target
            self.counted[slot] = [0.0] * 6
        self.moved_s |= dict.fromkeys(job.slots, now_s)
        if is_ours:
            self.unconfirmed |= job.slots
            self.ends_of_us.append((now_s, len(job.slots)))

    def _end(self, job: SlotMigration, state: str) -> None:
        ended = msgspec.structs.replace(job, state=state, changed_s=self.clock.now_s())
        self.jobs[self.jobs.index(job)] = ended
        if state != "success" and self.by[job.name] == "us":
            self.next_s = (0, 0.0)
            for slot in job.slots:
                self.failures_s.setdefault(slot, []).append(self.clock.monotonic_s())

    async def misbehave(self) -> None:
        """Fail nodes, promote replicas, and move slots by hand, until cancelled."""
        while True:
            await self.clock.sleep(self.rng.uniform(5, 60))
            self._advance()
            what = self.rng.choice([self._fail, self._promote, self._move_by_hand, self._change])
            what()

    def _fail(self) -> None:
        node = self.rng.choice(self.primaries)
        if node not in self.failing:
            self.failed_s[node] = self.clock.monotonic_s()
        self.failing.add(node)
        self.events["nodes failed"] += 1
        later_s = self.rng.uniform(1, 30)
        asyncio.get_running_loop().call_later(later_s, self.failing.discard, node)

    def _promote(self) -> None:
        """A replica takes the place of its primary, under a new id."""
        at = self.rng.randrange(len(self.primaries))
        old, new = self.primaries[at], f"{self.primaries[at].partition('.')[0]}.{self.made}x"
        self.made += 1
        self.primaries[at] = new
        self.demoted_s[old] = self.clock.monotonic_s()
        for job in self.running:
            if old in (job.source, job.target):
                self._end(job, "failed")
        self.owner = {slot: new if own == old else own for slot, own in self.owner.items()}
        self.unconfirmed.clear()
        self.events["replicas were promoted"] += 1

    def _move_by_hand(self) -> None:
        if self.running or self.unconfirmed:
            return
        slot = self.rng.randrange(SLOTS)
        target = self.rng.choice(self.primaries)
        if target != self.owner[slot]:
            self._begin(self.owner[slot], target, frozenset({slot}), FOREIGN)
            self.events["somebody else moved slots"] += 1

    def _change(self) -> None:
        self.cpu = self._load()
        self.events["the load changed"] += 1
