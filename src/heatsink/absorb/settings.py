"""What a cache of reads may be told, what it counts, and what it is told by others."""

from __future__ import annotations

from typing import Protocol

import msgspec

from heatsink.checks import check_number, check_whole
from heatsink.errors import InvalidSetting

from .near_cache import CAPACITY, Weigh


class ReadSettings(msgspec.Struct, frozen=True):
    """The cache of one process: how much it keeps, and how long it waits for a load."""

    capacity: int = CAPACITY
    """In entries, or in whatever `weigh` counts."""
    weigh: Weigh | None = None
    """A function of a value: its bytes, its rows. None counts entries."""
    patience_s: float = 30.0
    """How long a load may take before its readers are told to retry."""
    jitter: float = 0.1
    """Entries count as older than they are, by up to `jitter` × `fresh_for`."""

    def __post_init__(self) -> None:
        check_whole("capacity", self.capacity, 1, 10**12)
        if self.weigh is not None and not callable(self.weigh):
            raise InvalidSetting("weigh must be a function of a value that returns an int")
        check_number("patience_s", self.patience_s, 0.001, 86_400)
        check_number("jitter", self.jitter, 0, 1)


class ReadStats(msgspec.Struct, frozen=True):
    """Since the beginning. `coalesced` readers waited for somebody else's load."""

    hits: int
    stale_hits: int
    loads: int
    coalesced: int
    failures: int
    evictions: int
    entries: int


class ReadHeat(Protocol):
    """Where reads are counted, and what became of the counts."""

    def note(self, key: str, reads: int) -> None: ...

    def near_s(self, key: str) -> float:
        """How long the fleet shall keep the key; 0 if it is not read-hot."""


class NoHeat:
    """Nobody counts, nobody decides."""

    def note(self, key: str, reads: int) -> None:
        pass

    def near_s(self, _key: str) -> float:
        return 0.0
