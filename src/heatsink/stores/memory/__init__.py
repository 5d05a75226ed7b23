"""The data store in this process's memory. It defines how all other stores must behave."""

from __future__ import annotations

from heatsink.primitives.clock import Clock
from heatsink.stores.stores import Stores

from .data import MemoryCounters, MemoryLog, MemoryRegistry
from .messages import MemoryBus


def memory_stores(clock: Clock) -> Stores:
    registry = MemoryRegistry(clock)
    counters = MemoryCounters()
    log = MemoryLog(clock, registry.layout_now, counters.erase)
    return Stores(log=log, counters=counters, registry=registry, lease=registry, bus=MemoryBus())
