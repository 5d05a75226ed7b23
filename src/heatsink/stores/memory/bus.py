"""Heat reports inside one process."""

from __future__ import annotations

from collections import deque

from heatsink.detect.heat import Report

REPORTS_MAX = 1_000


class MemoryBus:
    """Keeps the newest reports only: with no coordinator to read them they are no use later."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque(maxlen=REPORTS_MAX)

    async def send(self, report: Report) -> None:
        self._reports.append(report)

    async def receive(self) -> list[Report]:
        received = list(self._reports)
        self._reports.clear()
        return received
