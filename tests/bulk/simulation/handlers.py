"""Handlers as they are: quick, slow, failing, hanging, deaf to cancellation."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from heatsink.bulk import Actions, Context, Fail, Limit, Retry
from heatsink.bulk.actions import Action
from heatsink.stores.memory.queue import MemoryQueueServer
from tests.bulk.process import Process

from .audit import Audit

TIMEOUT_S = 2.5
DURATIONS_S = (0.0, 0.0, 0.001, 0.02, 0.02, 0.1, 0.5, 1.6)
OK, ERROR, AGAIN, NEVER, HANG, DEAF, EXIT, CANCELLED = range(8)
ENDS = (OK, ERROR, AGAIN, NEVER, HANG, DEAF, EXIT, CANCELLED)
TROUBLED = (70, 10, 6, 4, 1, 0.5, 1, 1)
MOST, EACH = Limit("most", running=3), Limit("each", running=2, per="tenant")
CALM = (1, 0, 0, 0, 0, 0, 0, 0)


class Handlers:
    """What the application of one process does to items, watched."""

    def __init__(
        self, process: Process, server: MemoryQueueServer, audit: Audit, rng: Random
    ) -> None:
        self.weights = TROUBLED
        self._process = process
        self._audit = audit
        self._server = server
        self._history = audit.history
        self._rng = rng

    def actions(self) -> Actions:
        """Return the actions. Like a thread, `work` is not cancelled before a lease ends."""
        actions = Actions()
        options: dict[str, Any] = {"max_attempts": 3, "timeout_s": TIMEOUT_S, "backoff_s": 0.1}
        actions.action("limited", **options)(self.one)
        actions = actions.and_also(Action("work", self.one, is_async=False, **options))
        actions.action("together", together=4, **options)(self.some)
        actions.action("placed", limits=[MOST, EACH], **options)(self.placed)
        actions.action("crowd", limits=[MOST], **options)(self.placed)
        actions.action("told", max_attempts=1_000, backoff_s=0.1, backoff_max_s=0.5)(self.told)
        return actions

    async def one(self, item: Any, context: Context) -> None:
        self._begin(item, context)
        await self._live(self._draw())
        self._succeed(context)

    async def placed(self, item: Any, context: Context) -> None:
        """Runs while it has a place at each of its limits."""
        self._begin(item, context)
        keys = [(MOST, ""), *([(EACH, context.tenant)] if context.action == "placed" else [])]
        run = self._audit.running.enter(self._process, keys)
        try:
            end = self._draw()
            await self._live(HANG if end == DEAF else end)
            self._succeed(context)
        finally:
            self._audit.running.leave(run)

    async def some(self, items: list[Any], contexts: list[Context]) -> Any:
        for item, context in zip(items, contexts, strict=True):
            self._begin(item, context)
        if self._rng.random() < 0.03:
            return ["not", "an", "answer"]
        await self._live(self._draw())
        return [self._answer(context) for context in contexts]

    def _answer(self, context: Context) -> BaseException | None:
        end = self._draw()
        if end in (ERROR, AGAIN, NEVER):
            return {ERROR: OSError("no"), AGAIN: Retry(0.2), NEVER: Fail("no use")}[end]
        self._succeed(context)
        return None

    async def told(self, outcome: dict[str, Any], context: Context) -> None:
        self._check_alive()
        if self._draw() != OK:
            raise OSError("the callback's own trouble")
        ended = sum(outcome[name] for name in ("done", "failed", "cancelled", "lost"))
        if ended != outcome["items"]:
            self._audit.complain(
                f"{outcome['batch']} ended with {ended} of {outcome['items']} items"
            )
        self._history.told[outcome["batch"]][context.batch] += 1
        self._succeed(context)

    def _draw(self) -> int:
        return self._rng.choices(ENDS, self.weights)[0]

    def _begin(self, item: Any, context: Context) -> None:
        self._check_alive()
        if item != [context.batch, context.index]:
            self._audit.complain(f"item {context.index} of {context.batch} ran as {item}")
        record = self._server.batches._batches.get(context.batch)
        is_unknown = record is None or record.state in ("open", "aborted")
        if is_unknown and context.batch not in self._history.broken:
            self._audit.complain(
                f"{context.batch} is not accepted and its item {context.index} ran"
            )
        self._history.starts[context.batch, context.index] += 1
        lane = f"{context.action}/{context.tenant}"
        self._history.lane_starts_s[lane].append(asyncio.get_running_loop().time())

    def _check_alive(self) -> None:
        """Tasks of a killed process may take a moment to end: they do nothing any more."""
        if self._process.is_dead:
            raise asyncio.CancelledError

    async def _live(self, end: int) -> None:
        await self._process.clock.sleep(self._rng.choice(DURATIONS_S))
        if end == HANG:
            await asyncio.sleep(1_000_000)
        if end == DEAF:
            await _ignore_cancellation(self._process)
        if end == EXIT:
            raise SystemExit(1)
        if end == CANCELLED:
            raise asyncio.CancelledError
        if error := {ERROR: OSError("no"), AGAIN: Retry(0.2), NEVER: Fail("no use")}.get(end):
            raise error

    def _succeed(self, context: Context) -> None:
        self._history.successes[context.batch, context.index] += 1


async def _ignore_cancellation(process: Process) -> None:
    for _ in range(40):
        try:
            await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            if process.is_dead:
                raise
