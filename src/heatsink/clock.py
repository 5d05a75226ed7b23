"""Time as a parameter. Nothing else in Heatsink asks what time it is or waits."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What a process believes about time. The wall clock may be wrong and may jump."""

    def now_s(self) -> float: ...

    def monotonic_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of this machine."""

    now_s = staticmethod(time.time)
    monotonic_s = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def now_ms(clock: Clock) -> int:
    return int(clock.now_s() * 1000)
