"""One data store seen from the sides that need it, and what a relay beside it carries."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from heatsink.heat.fleet import HeatBoard
from heatsink.heat.report import HeatBus
from heatsink.reads.invalidation import Wire
from heatsink.registry.decisions import LeaseStore, SoftStore
from heatsink.registry.news import NewsStore
from heatsink.spread.fsck import RepairStore
from heatsink.spread.store import CounterStore, LogStore

NOTES_MAX = 65_536  # where nobody takes them away
Consumption = tuple[str, int, float, int | None]


async def _nothing() -> None:
    pass


class ConsumptionNotes:
    """Where a store that is told what a put cost leaves it, if it is not what one would expect.

    The hot path only leaves a note: the partition key, the bytes of the body, the units consumed,
    and in which of its partitions the store put it, if it tells, as our engine does.
    """

    def __init__(self) -> None:
        self.notes: deque[Consumption] = deque(maxlen=NOTES_MAX)


@dataclass(frozen=True)
class Stores:
    """`answers_in_s` is by when the log ends a call by itself, whatever happens."""

    log: LogStore
    counters: CounterStore
    registry: RepairStore
    lease: LeaseStore
    bus: HeatBus
    board: HeatBoard | None = None
    news: NewsStore | None = None
    soft: SoftStore | None = None
    wire: Wire | None = None
    meter: ConsumptionNotes = field(default_factory=ConsumptionNotes)
    answers_in_s: float = math.inf
    open: Callable[[], Awaitable[None]] = _nothing
    close: Callable[[], Awaitable[None]] = _nothing
