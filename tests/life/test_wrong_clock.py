"""A wrong clock on one machine: it must not move the closed time, which never comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from heatsink import Heatsink, connect
from heatsink.clock import SystemClock
from tests.spread.test_log import spread

TWO_DAYS_S = 2 * 86_400.0
IN_FORCE_S = 8.0


class AheadClock(SystemClock):
    """This machine's, with a wall clock that is two days ahead."""

    def now_s(self) -> float:  # type: ignore[override]
        return SystemClock.now_s() + TWO_DAYS_S


def ahead_s(hs: Heatsink) -> float:
    return hs._registry.meta.closed_ms / 1000 - SystemClock.now_s()


async def test_half_a_second_two_days_ahead_leaves_the_closed_time_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with connect(url) as hs:
        first = await hs.log.append("conv", b"first")
    async with connect(url, clock=AheadClock()) as wrong:
        second = await wrong.log.append("conv", b"second")
        await asyncio.sleep(0.5)
        third = await wrong.log.append("conv", b"third")
    async with connect(url) as hs:
        assert ahead_s(hs) < 10
        async with asyncio.timeout(IN_FORCE_S):
            await spread(hs, "conv", 3)
        page = await hs.log.page("conv")
        assert [entry.id for entry in page.entries] == [third.id, second.id, first.id]
