"""How reports travel from app servers to the coordinator."""

from __future__ import annotations

from typing import Protocol

from .heat import Report


class HeatBus(Protocol):
    """May lose, delay, repeat and reorder reports: they are telemetry."""

    async def send(self, report: Report) -> None: ...

    async def receive(self) -> list[Report]:
        """What came since the last call; an empty list if nothing did."""
