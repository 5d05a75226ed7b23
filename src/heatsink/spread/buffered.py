"""Adds at any rate: a process keeps its own running totals and writes them now and then.

The totals of one process for one counter only grow (what was added and what was taken away
apart), so "set them if they are smaller" is idempotent: thousands of adds are one write that may be
repeated at will. An add is acknowledged when a write that contains it is.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from heatsink.checks import check_number
from heatsink.errors import Closed, HeatsinkError, Retryable, TokenExpired
from heatsink.keys import check_key

from .store import SHARE_MAX, Running, past_the_bound
from .totals import TotalsStore, Writer, check_amount

FLUSH_S = 0.1
CELLS_MAX = 10_000


class _Cell:
    """One counter here: what is written under which writer's name, and what is not yet."""

    def __init__(self) -> None:
        self.writer: Writer | None = None
        self.unsure = False
        self.pending = Running()
        self.owed = Running()  # taken from pending, and not known to be written
        self.acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.flushing = asyncio.Lock()

    def has_room(self, more: Running) -> bool:
        """Refused one by one: an add past the bound must take none along that fits."""
        written = self.writer.written if self.writer else Running()
        total = written + self.owed + self.pending + more
        return max(total.raised, total.lowered) <= SHARE_MAX

    def take(self) -> asyncio.Future[None]:
        """Owe what is pending to those who wait for it."""
        self.owed, self.pending = self.pending, Running()
        waiting, self.acknowledged = self.acknowledged, self.acknowledged.get_loop().create_future()
        return waiting

    def give_back(self, error: Exception) -> None:
        """After a write that failed. It may have landed, so its writer must finish it first."""
        if isinstance(error, Retryable):
            self.pending, self.unsure = self.pending + self.owed, True
        elif isinstance(error, TokenExpired):  # too late to ever know: those who wait are told so
            self.writer, self.unsure = None, False
        self.owed = Running()


class BufferedCounters:
    """`async with hs.counters.buffered() as counts: await counts.add(key)`; leaving it flushes."""

    def __init__(self, totals: TotalsStore, flush_s: float = FLUSH_S) -> None:
        check_number("flush_s", flush_s, 0.001, 60)
        self._totals = totals
        self._flush_s = flush_s
        self._cells: dict[str, _Cell] = {}
        self._dirty: dict[str, _Cell] = {}
        self._flusher: asyncio.Task[None] | None = None
        self._writing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> BufferedCounters:
        self._flusher = asyncio.ensure_future(self._flush_now_and_then())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._totals.owner.is_forked:
            return  # what is pending is the parent's to write
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
            self._flusher = None
        await self.flush()

    def add_soon(self, key: str, amount: int = 1) -> asyncio.Future[None]:
        """Count now, write later. The future is done when the add is durable."""
        if self._flusher is None:
            raise Closed("buffered counters are open only inside `async with`")
        self._totals.owner.check()
        key = check_key(key)
        check_amount(amount)
        if amount == 0:
            return _done()
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell()
        more = Running(amount, 0) if amount > 0 else Running(0, -amount)
        if not cell.has_room(more):
            raise past_the_bound(amount)
        cell.pending += more
        self._dirty[key] = cell
        return cell.acknowledged

    async def add(self, key: str, amount: int = 1) -> None:
        """Add, and return when a write that contains it is acknowledged.

        After an error it may still be counted, once, by a later flush.
        """
        await asyncio.shield(self.add_soon(key, amount))

    async def flush(self) -> None:
        """Write what is pending. The first error is raised; what it left out stays pending.

        Writes that are under way are finished, also when whoever asked for them is cancelled.
        """
        dirty, self._dirty = self._dirty, {}
        for key, cell in dirty.items():
            writing = asyncio.ensure_future(self._flush_cell(key, cell))
            self._writing.add(writing)
            writing.add_done_callback(self._forget)
        under_way = asyncio.gather(*self._writing, return_exceptions=True)
        for result in await asyncio.shield(under_way):
            if isinstance(result, BaseException):
                raise result

    def _forget(self, writing: asyncio.Task[None]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            writing.exception()  # whoever waits for the adds was told

    async def _flush_now_and_then(self) -> None:
        while True:
            await self._totals.clock.sleep(self._flush_s)
            with suppress(HeatsinkError):  # those who wait are told; the next flush tries again
                await self.flush()

    async def _flush_cell(self, key: str, cell: _Cell) -> None:
        async with cell.flushing:
            if not cell.pending:
                return
            waiting = cell.take()
            try:
                await self._write(key, cell)
            except Exception as error:
                cell.give_back(error)
                if cell.pending:
                    self._dirty[key] = cell
                waiting.set_exception(error)
                waiting.exception()  # nobody may be waiting
                raise
            waiting.set_result(None)
            self._forget_idle(key, cell)

    def _forget_idle(self, key: str, cell: _Cell) -> None:
        """Memory is bounded: a counter that is added to again later starts with a new name."""
        if len(self._cells) > CELLS_MAX and not cell.pending:
            self._cells.pop(key, None)

    async def _write(self, key: str, cell: _Cell) -> None:
        totals, writer, deadline_s = self._totals, cell.writer, self._totals.begin()
        if writer is None or not (cell.unsure or totals.is_good(key, writer)):
            writer = cell.writer = await totals.new_writer(key, deadline_s)
        goal = writer.written + cell.owed
        while (counted := await totals.write(key, writer, goal, deadline_s)) is not None:
            goal = cell.owed = goal - counted  # the writer was folded: a new one takes the rest
            cell.unsure = False
            writer = cell.writer = await totals.new_writer(key, deadline_s)
        writer.written, cell.unsure, cell.owed = goal, False, Running()


def _done() -> asyncio.Future[None]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
