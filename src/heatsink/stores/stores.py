"""One data store seen from the sides that need it, and what a relay beside it carries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from heatsink.absorb.invalidation import Wire
from heatsink.control.lease import LeaseStore
from heatsink.detect.bus import HeatBus
from heatsink.registry.news import NewsStore
from heatsink.registry.soft import SoftStore
from heatsink.spread.fsck import RepairStore
from heatsink.spread.store import CounterStore, LogStore


async def _nothing() -> None:
    pass


class Meter:
    """Where a store that is told what a write cost passes on what was not foreseen.

    `locate` is for stores that say in which partition of theirs it was: our engine does.
    """

    def __init__(self) -> None:
        self.report: Callable[[str, int], None] = lambda _key, _units: None
        self.locate: Callable[[str, int, int], None] = lambda _key, _partition, _units: None


@dataclass(frozen=True)
class Stores:
    log: LogStore
    counters: CounterStore
    registry: RepairStore
    lease: LeaseStore
    bus: HeatBus
    news: NewsStore | None = None
    soft: SoftStore | None = None
    wire: Wire | None = None
    meter: Meter = field(default_factory=Meter)
    open: Callable[[], Awaitable[None]] = _nothing
    close: Callable[[], Awaitable[None]] = _nothing
