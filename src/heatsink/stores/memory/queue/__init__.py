"""The queue in memory, for tests, the lab and simulations. Other queue stores behave the same."""

from __future__ import annotations

from heatsink.bulk.limits import Offer
from heatsink.bulk.plan import founding
from heatsink.bulk.reconcile import routed
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import QueueStores
from heatsink.primitives.clock import Clock
from heatsink.primitives.slot_time import SlotWitness
from heatsink.registry.decisions import SoftDecision
from heatsink.stores.memory.messages import MemorySoft

from .homes import MemoryBarrier, MemoryBatches, MemoryBell, MemoryFleet, MemoryLimits
from .moves import MemoryMoves
from .places import MemoryPlaces
from .queue import MemoryQueue
from .singles import MemorySingles

FIRST = founding(BulkSettings(), "memory://")


class MemoryQueueServer:
    """The state that all processes of a simulated fleet share, as real processes share a Redis."""

    def __init__(self, clock: Clock) -> None:
        """`clock` is the server's clock, which may differ from the clocks of the processes."""
        self._clock = clock
        self.queue = MemoryQueue(clock)
        self.batches = MemoryBatches(clock)
        self.limits = MemoryLimits(clock)
        self.places = MemoryPlaces(clock, self._offer)
        self.fleet = MemoryFleet(clock, self.queue)
        self.singles = MemorySingles(clock, self.queue, self.batches, self.limits)
        self.barrier = MemoryBarrier(self.queue, self.batches, self.fleet)
        self.moves = MemoryMoves(self.queue)
        self._soft: list[SoftDecision] = []

    def _offer(self, offer: Offer) -> None:
        for bell in self.queue.bells:
            bell.offer(offer)

    def stores(self, clock: Clock | None = None) -> QueueStores:
        """Return the stores of one process, whose clock is `clock`.

        All processes share their data. Each process has its own bell, which wakes it, and its own
        copy of the plan.
        """
        return routed(self.unrouted(clock), FIRST)

    def unrouted(self, clock: Clock | None = None) -> QueueStores:
        """Return the stores below a process's router. Calls on partitions name their place."""
        bell, witness = MemoryBell(self._clock), SlotWitness(clock or self._clock)
        self.queue.bells.append(bell)
        bell.address = f"bell {len(self.queue.bells)}"
        queue = self.queue.seen_by(witness)
        return QueueStores(
            queue=queue,
            singles=self.singles.seen_by(witness),
            losses=queue,
            batches=self.batches,
            limits=self.limits.seen_by(witness),
            places=self.places.seen_by(witness),
            fleet=self.fleet.seen_by(witness),
            bell=bell,
            moves=self.moves,
            soft=MemorySoft(self._soft),
            barrier=self.barrier,
        )
