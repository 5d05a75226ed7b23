"""An event that wakes one waiter, or its next wait."""

from __future__ import annotations

import asyncio

TICK_S = 1e-6  # the shortest wait: a shorter one may not advance the clock, and loop for ever


class Nudge:
    """An event for one waiter.

    Calling it ends the present `wait`; if there is none, the next one.
    """

    def __init__(self) -> None:
        self._nudged = False
        self._waiter: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        self._nudged = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a nudge or the timeout; return whether there was a nudge."""
        if not self._nudged and timeout_s > 0:
            loop = asyncio.get_running_loop()
            self._waiter = waiter = loop.create_future()
            handle = None
            if timeout_s < float("inf"):
                handle = loop.call_later(max(timeout_s, TICK_S), _finish, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if handle is not None:
                    handle.cancel()
        nudged, self._nudged = self._nudged, False
        return nudged


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
