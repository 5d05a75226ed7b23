"""Completes the adoption of a table, as `heatsink adopt --complete` does."""

from __future__ import annotations

import asyncio

from heatsink.primitives.clock import SystemClock
from heatsink.server.adoption.steps import complete, registry_at


def complete_adoption(registry: str, table: str) -> None:
    """Record that all programs write to a table through Heatsink from now on."""

    async def record() -> None:
        async with registry_at(registry, SystemClock()) as opened:
            await complete(opened, table)

    asyncio.run(record())
