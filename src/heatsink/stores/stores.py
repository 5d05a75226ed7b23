"""One object with all interfaces of a data store, and of the relay (Redis) beside it."""

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

NOTES_MAX = 65_536  # beyond that the oldest notes are dropped
Consumption = tuple[str, int, float, int | None]


async def _nothing() -> None:
    pass


class ConsumptionNotes:
    """Notes on puts that do not cost what the heat tracker assumes, for the tracker to read later.

    To be fast, a put only appends a tuple: the partition key, the size of the body, the consumed
    units, and the physical partition. Only Heatsink's emulator names the physical partition; with
    other stores it is None.
    """

    def __init__(self) -> None:
        self.notes: deque[Consumption] = deque(maxlen=NOTES_MAX)


@dataclass(frozen=True)
class Stores:
    """The interfaces of one data store, and of the relay beside it.

    If the log store has not completed a put after `answers_in_s`, it raises an error.
    """

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
