"""How an ordinary client calls a store that may refuse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from heatsink.clock import Clock
from heatsink.errors import Throttled

TRIES = 3
T = TypeVar("T")


async def three_tries(call: Callable[[], Awaitable[T]], clock: Clock, rng: Random) -> T:
    """As in the "standard" mode of the AWS SDKs.

    A random pause of up to 1 s after the first try, up to 2 s after the second. Their retry quota,
    which would give up sooner, is left out.
    """
    for attempt in range(TRIES - 1):
        try:
            return await call()
        except Throttled:
            await clock.sleep(rng.random() * 2**attempt)
    return await call()
