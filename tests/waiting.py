"""Waiting for a condition: the one way in which a test waits.

A fixed sleep is too short on a busy machine and too long on every other. These functions look
again and again, and fail with the condition's name if it never holds. A plugin
(`tests/plugins/sleeps.py`) fails tests that sleep in any other way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from inspect import isawaitable

LOOK_S = 0.02
PATIENCE_S = 60.0
"""Far more than anything takes; only a test that fails waits so long."""


def until(holds: Callable[[], object], what: str = "", look_s: float = LOOK_S) -> None:
    """Blocks until `holds()` returns something true."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_s, f"{named(holds, what)} never came true"
        time.sleep(look_s)


async def soon(holds: Callable[[], object], what: str = "", look_s: float = LOOK_S) -> None:
    """The same for asyncio; `holds` may also be a coroutine function."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not (await seen if isawaitable(seen := holds()) else seen):
        assert time.monotonic() < give_up_s, f"{named(holds, what)} never came true"
        await asyncio.sleep(look_s)


def named(holds: Callable[[], object], what: str) -> str:
    return what or str(getattr(holds, "__qualname__", holds))
