"""An event loop whose time passes only when nothing else is left to do.

An hour of timeouts, retries and leases runs in as long as its computations take, and the same way
each time: the production code, unchanged, on virtual time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

ROUNDS_MAX = 10
Result = TypeVar("Result")


class Deadlock(RuntimeError):
    """Every task waits for something that will never happen."""


class _LeapingSelector(selectors.DefaultSelector):
    """Never waits: tells the loop how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("no task is ready and none will ever be")
        self.now_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _LeapingSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now_s

    def block(self, seconds: float) -> None:
        """As a handler does that computes or sleeps for so long without awaiting anything."""
        self._leaping.now_s += seconds


def run_on_virtual_time(work: Coroutine[Any, Any, Result]) -> Result:
    """Like `asyncio.run`, on virtual time. Threads and sockets do not work there."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(work)
        finally:
            with suppress(Deadlock):
                runner.run(_end_all())


async def _end_all() -> None:
    """Also what tasks start while they end, which nobody would ever run."""
    me = asyncio.current_task()
    for _ in range(ROUNDS_MAX):
        left = [task for task in asyncio.all_tasks() if task is not me]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
