"""What the leader knows of the fleet's heat, and where it shows it to all others."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec.structs import replace

from .heat import PartitionHeat, WindowHeat

LASTS_S = 5.0


class FleetHeat(msgspec.Struct, frozen=True):
    """The last complete window, as its leader saw it. `partitions` are the hottest first."""

    leader: str
    window_s: float
    window: WindowHeat
    partitions: tuple[PartitionHeat, ...] = ()

    @property
    def lasts_s(self) -> float:
        """For how long after the window's beginning this says how hot the fleet is."""
        return 2 * self.window_s + LASTS_S

    def is_recent(self, now_s: float) -> bool:
        """By the fleet's time. When no window follows, nobody knows the heat any more."""
        return now_s - self.window.start_s <= self.lasts_s

    def hottest(self, limit: int) -> FleetHeat:
        """Only so many keys and partitions."""
        return replace(self, window=self.window.hottest(limit), partitions=self.partitions[:limit])

    def partition(self, number: int | None) -> PartitionHeat | None:
        return next((each for each in self.partitions if each.partition == number), None)


class HeatBoard(Protocol):
    """Telemetry: what it shows may be old or gone, and decides nothing."""

    async def show(self, heat: FleetHeat) -> None: ...

    async def look(self) -> FleetHeat | None: ...
