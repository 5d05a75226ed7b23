"""A loop that is turned beside the others: what it waits for holds up nobody but itself."""

from __future__ import annotations

import asyncio

from heatsink.registry.decision import Decision

from .coordinator import Turn


class Beside:
    """A queue that is away is waited for; hot keys and the lease must not wait along with it."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._running: asyncio.Task[list[Decision]] | None = None

    async def run_once(self) -> list[Decision]:
        """Start a turn if none is under way. Returns, or raises, what came of the last one."""
        last = self._running
        if last is not None and not last.done():
            return []
        self._running = asyncio.ensure_future(self._turn.run_once())
        self._running.add_done_callback(_take_error)
        return [] if last is None else last.result()

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def _take_error(turn: asyncio.Task[list[Decision]]) -> None:
    """Who loses the lease never asks what came of its last turn: asyncio would complain."""
    if not turn.cancelled():
        turn.exception()
