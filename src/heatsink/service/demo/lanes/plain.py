"""How an ordinary client calls a store that may refuse: one key, one partition, three tries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Generic, TypeVar

from heatsink.clock import Clock, now_ms
from heatsink.errors import Throttled
from heatsink.ids import TIME_MS_MAX, Uuid7, minter_of

from .lane import UNSPREAD, Spread
from .meter import Meter

TRIES = 3
T = TypeVar("T")
Store = TypeVar("Store")


class PlainClient(Generic[Store]):
    """What the plain contenders share."""

    def __init__(self, store: Store, key: str, meter: Meter, clock: Clock, rng: Random) -> None:
        self.meter = meter
        self._store = store
        self._key = key
        self._clock = clock
        self._rng = rng
        self._minter = minter_of(Uuid7(), rng)

    def _mint(self) -> tuple[bytes, int]:
        return self._minter.mint(now_ms(self._clock), TIME_MS_MAX)

    async def _try(self, call: Callable[[], Awaitable[T]]) -> T:
        """As in the "standard" mode of the AWS SDKs.

        A random pause of up to 1 s after the first try, up to 2 s after the second. Their retry
        quota, which would give up sooner, is left out.
        """
        for attempt in range(TRIES - 1):
            try:
                return await call()
            except Throttled:
                await self._clock.sleep(self._rng.random() * 2**attempt)
        return await call()

    async def spread(self) -> Spread:
        return UNSPREAD
