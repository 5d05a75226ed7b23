"""Changes of partitions at times that a test chooses instead of the policy."""

from __future__ import annotations

from heatsink.emulator.capacity.policy import Isolate, Merge, Split
from heatsink.emulator.capacity.table import SPACE
from heatsink.emulator.indexes import GlobalIndex
from heatsink.emulator.table import EngineTable

FORCED = "forced"


class ForcedChanges:
    """Each begins if it can: True, or False and nothing happens."""

    def __init__(self, table: EngineTable | GlobalIndex) -> None:
        self._adaptive = table.throughput.adaptive
        self._adaptation = table.adaptation

    def split(self, at: int) -> bool:
        partition = self._adaptive.map.find(at)
        possible = not partition.changing and at != partition.start
        return possible and self._begin(Split(partition.number, at, FORCED))

    def isolate(self, key: int) -> bool:
        partition = self._adaptive.map.find(key)
        possible = not partition.changing and not partition.is_one_key
        return possible and self._begin(Isolate(partition.number, key, FORCED))

    def merge(self, at: int) -> bool:
        """The partition that holds `at` with the next one."""
        left = self._adaptive.map.find(at)
        if left.end == SPACE or left.changing:
            return False
        right = self._adaptive.map.find(left.end)
        if right.changing:
            return False
        right.changing = True
        return self._begin(Merge(left.number, right.number, FORCED))

    def _begin(self, change: Split | Isolate | Merge) -> bool:
        self._adaptive.partition(change.partition).changing = True
        self._adaptation.begin(change)
        return True
