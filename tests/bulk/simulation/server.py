"""A queue on one or two servers that lose the newest part of their writes.

Each server keeps a log of the calls that changed it, and knows how much of it is on disk. When its
power fails, it comes back with what was on disk and perhaps some of the rest. When a replica that
lags behind takes over, even what was on disk may be gone. The stores are the production code in
memory; going back is running the log again from its beginning, as far as it was kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from heatsink.bulk.batch import Batch, PartPlace
from heatsink.bulk.plan import PlaceMarks, QueuePlan, spot_of
from heatsink.bulk.store import PartCounts, QueueStores, Single
from heatsink.errors import Unavailable
from heatsink.primitives.clock import Clock
from heatsink.primitives.slot_time import SlotEvidence, SlotWitness, Timed
from heatsink.stores.memory.queue import MemoryQueueServer

FSYNC_S = (0.0, 0.3)
HOME = 0
CHANGES = {
    "queue": {"stage", "steer", "control", "claim", "settle", "chores"},
    "singles": {"accept"},
    "batches": {"open", "update", "restore", "forget"},
    "limits": {"declare", "reserve", "refused"},
    "places": {"hold", "confirm", "free", "declare"},
    "moves": {"close_place", "prepare", "learn", "take"},
    "fleet": {"join", "leave", "own", "disown", "plan", "change", "made_durable"},
}


class Call(NamedTuple):
    """`time_s` is by the server's clock, `true_s` is when it really was."""

    store: str
    method: str
    arguments: tuple[Any, ...]
    time_s: float
    true_s: float
    knew: Memory
    run: int = 0


class Memory(SlotWitness):
    """What a caller knew of the time when it called: the same when the call is run again."""

    def __init__(self, witness: SlotWitness) -> None:
        self._witness = witness
        self._known: dict[str, SlotEvidence] = {}

    def evidence(self, slot: str) -> SlotEvidence:
        if slot not in self._known:
            self._known[slot] = self._witness.evidence(slot)
        return self._known[slot]

    def heard(self, slot: str, own_ms: float) -> None:
        self._witness.heard(slot, own_ms)

    def forget(self) -> None:
        """From now on nobody hears of what it is told."""
        self._witness = SlotWitness(_NoClock())


class _NoClock(Clock):
    def now_s(self) -> float:
        return 0.0

    def monotonic_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


@dataclass
class Machine:
    """One server. `durable` calls of its `log` are on disk; each start has a `run` of its own."""

    number: int
    log: list[Call] = field(default_factory=list)
    durable: int = 0
    run: int = 0
    is_down: bool = False


@dataclass
class Loss:
    """What a server had written and has no more."""

    machine: int
    calls: list[Call]
    was_durable: int

    def stages(self) -> set[str]:
        """The batches of which it lost chunks that were staged."""
        return {
            call.arguments[1].batch
            for call in self.calls
            if call.method == "stage" and call.arguments[2]
        }

    def has(self, store: str) -> bool:
        return any(call.store == store for call in self.calls)


class _ServerClock(Clock):
    """The servers' own time; while a log is run again, that of the call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.then_s: float | None = None

    def now_s(self) -> float:
        return self._clock.now_s() if self.then_s is None else self.then_s

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


class LossyServer(MemoryQueueServer):
    """`machines` share the partitions; the first is also the home of batches, limits and fleet."""

    def __init__(self, clock: Clock, rng: Random, machines: int = 1) -> None:
        self._server_clock = _ServerClock(clock)
        super().__init__(self._server_clock)
        self._rng = rng
        self._then_s = 0.0
        self.machines = [Machine(number) for number in range(machines)]
        self.lossy_barrier = LossyBarrier(self, rng)

    def unrouted(self, clock: Clock | None = None) -> QueueStores:
        plain, witness = super().unrouted(clock), SlotWitness(clock or self._server_clock)

        def routed(store: str) -> Any:
            return _Routed(self, store, witness)

        return QueueStores(
            queue=routed("queue"),
            singles=_RoutedSingles(self, "singles", witness),
            losses=routed("queue"),
            batches=routed("batches"),
            limits=routed("limits"),
            places=_RoutedPlaces(self, "places", witness),
            fleet=routed("fleet"),
            bell=plain.bell,
            soft=plain.soft,
            barrier=self.lossy_barrier,
            moves=_RoutedMoves(self, "moves", witness),
        )

    def url_of(self, machine: int) -> str:
        return f"memory://{machine}" if machine else ""

    def founded_places(self, partitions: int) -> dict[int, str]:
        """The machines share the partitions of a new queue."""
        machines = {number: number % len(self.machines) for number in range(partitions)}
        return {number: self.url_of(machine) for number, machine in machines.items() if machine}

    def machine_of(self, partition: int) -> Machine:
        """The one at the place where the caller believes the partition to be."""
        return self.machines[int(spot_of(partition).url.rpartition("/")[2] or HOME)]

    def machine_for(self, store: str, method: str, arguments: tuple[Any, ...]) -> Machine:
        is_partition = store in ("queue", "singles", "moves") or method in ("own", "disown")
        return self.machine_of(arguments[0]) if is_partition else self.machines[HOME]

    def true_s(self) -> float:
        """The time that it really is, or was when the call came that is run again."""
        return self._then_s or asyncio.get_running_loop().time()

    async def call(
        self, store: str, method: str, arguments: tuple[Any, ...], witness: SlotWitness
    ) -> Any:
        machine = self.machine_for(store, method, arguments)
        check_up(machine)
        call = self._call(store, method, arguments, Memory(witness))
        if method in CHANGES[store]:
            machine.log.append(call)
        return await self._run(call)

    def _call(self, store: str, method: str, arguments: tuple[Any, ...], knew: Memory) -> Call:
        now_s, run = self._server_clock.now_s(), self.machines[HOME].run
        return Call(store, method, arguments, now_s, self.true_s(), knew, run)

    def _run(self, call: Call) -> Coroutine[Any, Any, Any]:
        self.places.server[0] = f"run {call.run}"
        store = self if call.store == "server" else getattr(self, call.store)
        if isinstance(store, Timed):
            store = store.seen_by(call.knew)
        work: Coroutine[Any, Any, Any] = getattr(store, call.method)(*call.arguments)
        return work

    async def synced(self, machine: Machine) -> None:
        """Wait until what a call has just written is on disk."""
        await self.lossy_barrier.begin([machine])()

    # -- losing writes ---------------------------------------------------------------------

    def stop(self, machine: Machine) -> None:
        machine.is_down = True
        machine.run += 1

    def parts_on(self, machine: Machine) -> set[str]:
        """All that were ever staged there."""
        staged = {call.arguments[1].id for call in machine.log if call.method == "stage"}
        accepted = (call.arguments[1] for call in machine.log if call.method == "accept")
        return staged | {single.part.id for singles in accepted for single in singles}

    def damage(self, partition: int, part: str, chunk: int) -> None:
        """Lose a chunk, as no server should."""
        memory = Memory(SlotWitness(self._server_clock))
        call = self._call("server", "lose_chunk", (partition, part, chunk), memory)
        self.machine_of(partition).log.append(call)
        _finished(self._run(call))

    async def lose_chunk(self, partition: int, part: str, chunk: int) -> None:
        if share := self.queue.held(partition).shares.get(part):
            share.chunks.pop(chunk, None)

    def start(self, machine: Machine, kept: int) -> Loss:
        """Come back with the first `kept` calls of the log."""
        loss = Loss(machine.number, machine.log[kept:], max(machine.durable - kept, 0))
        del machine.log[kept:]
        machine.durable = min(machine.durable, kept)
        if loss.calls:
            self._forget_all(machine)
            self._run_again(machine)
        machine.is_down = False
        return loss

    def _forget_all(self, machine: Machine) -> None:
        self.queue.places.get(self.url_of(machine.number), {}).clear()
        if machine.number == HOME:
            self.batches._batches.clear()
            self.batches._gone_s.clear()
            self.limits._limits.clear()
            self.limits._times.clear()
            self.places.homes.clear()
            fleet = self.fleet._fleet
            fleet.members.clear()
            fleet.offered_ms.clear()
            fleet.plan = fleet.time = None
            fleet.durable = -1

    def _run_again(self, machine: Machine) -> None:
        bells, self.queue.bells[:] = list(self.queue.bells), []
        for call in machine.log:
            self._server_clock.then_s, self._then_s = call.time_s, call.true_s
            call.knew.forget()
            with suppress(Exception):  # what failed then fails again
                _finished(self._run(call))
        self._server_clock.then_s, self._then_s = None, 0.0
        self.queue.bells[:] = bells


class LossyBarrier:
    """Reads, then waits for the disk. A server that was restarted meanwhile confirms nothing."""

    def __init__(self, server: LossyServer, rng: Random) -> None:
        self._server = server
        self._rng = rng

    async def parts(self, places: Sequence[PartPlace]) -> list[PartCounts | None]:
        machines = {place.partition: self._server.machine_of(place.partition) for place in places}
        sync = self.begin(list(machines.values()))
        found = [await self._server.queue.part(place.partition, place.id) for place in places]
        await sync()
        return found

    async def batches(self, ids: Sequence[str]) -> list[Batch | None]:
        sync = self.begin([self._server.machines[HOME]])
        found = [await self._server.batches.get(id) for id in ids]
        await sync()
        return found

    async def place(self, partition: int, parts: Sequence[str] = ()) -> PlaceMarks:
        sync = self.begin([self._server.machine_of(partition)])
        found = await self._server.barrier.place(partition, parts)
        await sync()
        return found

    async def plan(self) -> QueuePlan | None:
        sync = self.begin([self._server.machines[HOME]])
        found = self._server.fleet.stored
        await sync()
        return found

    def begin(self, machines: list[Machine]) -> Callable[[], Coroutine[Any, Any, None]]:
        for machine in machines:
            check_up(machine)
        began = [(machine, machine.run, len(machine.log)) for machine in machines]

        async def sync() -> None:
            await asyncio.sleep(self._rng.uniform(*FSYNC_S))
            for machine, run, written in began:
                check_up(machine)
                if machine.run != run:
                    raise Unavailable("the connection was lost")
                machine.durable = max(machine.durable, written)

        return sync


class _Routed:
    def __init__(self, server: LossyServer, store: str, witness: SlotWitness) -> None:
        self._server = server
        self._store = store
        self._witness = witness

    def as_of_now(self) -> _Routed:
        return _Routed(self._server, self._store, self._witness.as_of_now())

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments: self._server.call(self._store, method, arguments, self._witness)


class _RoutedSingles(_Routed):
    """The call and the wait for the disk share a connection."""

    async def accept(self, partition: int, singles: Sequence[Single]) -> list[bool]:
        arguments = (partition, singles)
        answers: list[bool] = await self._server.call("singles", "accept", arguments, self._witness)
        await self._server.synced(self._server.machine_of(partition))
        return answers

    def as_of_now(self) -> _Routed:
        return _RoutedSingles(self._server, self._store, self._witness.as_of_now())


class _RoutedPlaces(_Routed):
    """A home is confirmed when it is durable."""

    async def confirm(self, limit: str, server: str) -> None:
        await self._server.synced(self._server.machines[HOME])
        await self._server.call("places", "confirm", (limit, server), self._witness)

    def as_of_now(self) -> _Routed:
        return _RoutedPlaces(self._server, self._store, self._witness.as_of_now())


class _RoutedMoves(_Routed):
    """Copies are read from one machine, and written to another."""

    def as_of_now(self) -> _Routed:
        return _RoutedMoves(self._server, self._store, self._witness.as_of_now())

    async def take_over(self, source: int, target: int, version: int) -> None:
        check_up(self._server.machine_of(source))
        old = self._server.queue.held(source)
        learned = (target, version, dict(old.tally), old.rotation.learned())
        await self._server.call("moves", "learn", learned, self._witness)

    async def copy(self, source: int, target: int, version: int, part: str) -> None:
        check_up(self._server.machine_of(source))
        if share := self._server.queue.held(source).shares.get(part):
            taken = (target, version, deepcopy(share))
            await self._server.call("moves", "take", taken, self._witness)


def check_up(machine: Machine) -> None:
    if machine.is_down:
        raise Unavailable(f"server {machine.number} is down")


def _finished(work: Coroutine[Any, Any, Any]) -> None:
    """Calls of the stores in memory never wait."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("a store in memory waited")
