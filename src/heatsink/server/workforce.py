"""The worker of a server: its own one, or one that hands items over to remote workers.

All workers of a queue should have the same actions. So while remote workers are connected, the
server's own worker, which has no actions, does not run. A consumer with the actions of the remote
workers takes its place. It ends `IDLE_S` after the last call of a remote worker, and its partitions
then go to other processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from heatsink.bulk.actions import Action
from heatsink.bulk.work.consumer import Consumer
from heatsink.bulk.work.pump import WorkMeter
from heatsink.bulk.work.remote import (
    Desk,
    Handed,
    ItemOutcome,
    WaitingClaim,
    merged,
    remote_actions,
)
from heatsink.client.heatsink import Heatsink
from heatsink.errors import Conflict, HeatsinkError, Overloaded
from heatsink.primitives.clock import Clock

logger = logging.getLogger("heatsink")
IDLE_S = 5.0
LOOK_S = 0.5
CLAIMS_MAX = 500


class Workforce:
    """Runs at most one consumer at a time. `own` makes the server's own one, if it has a worker.

    With `has_actions`, the own worker has actions, and remote workers are refused.
    """

    def __init__(
        self,
        hs: Heatsink,
        clock: Clock,
        own: Callable[[], Consumer] | None = None,
        has_actions: bool = False,
    ) -> None:
        self.meter = WorkMeter()
        self._hs = hs
        self._clock = clock
        self._own = own
        self._has_actions = has_actions
        self._actions: dict[str, Action] = {}
        self._made_desk: Desk | None = None
        self._consumer: Consumer | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._error: HeatsinkError | None = None
        self._called_s = 0.0
        self._claims = 0
        self._is_closed = False

    # -- what metrics show -----------------------------------------------------------------

    @property
    def workers(self) -> dict[int, int]:
        """The number of workers in each partition of this process."""
        return self._consumer.workers if self._consumer else {}

    @property
    def lost_items(self) -> int:
        """The number of items that batches have lost, as of the last check."""
        return self._consumer.lost_items if self._consumer else 0

    @property
    def works(self) -> bool:
        """Whether this process runs items, or hands them over."""
        return self._consumer is not None

    # -- the calls of remote workers -------------------------------------------------------

    async def claim(
        self,
        actions: Mapping[str, Action],
        most: int,
        lease_s: float,
        wait_s: float,
        gone: Callable[[], Awaitable[object]],
    ) -> list[Handed]:
        """Return up to `most` items of these actions; none if none came within `wait_s`.

        When `gone()` ends, the worker has disconnected, and its items go back to the queue.
        """
        if self._has_actions:
            raise Conflict(
                "this server runs the actions of its option --actions itself: connect remote "
                "workers to a server without this option"
            )
        if self._claims >= CLAIMS_MAX:
            raise Overloaded(f"{CLAIMS_MAX} claims wait at this server: retry later")
        self._serve(actions)
        self._claims += 1
        try:
            waiting = WaitingClaim(actions, most, int(lease_s * 1000))
            return await self._desk.claim(waiting, 0.0 if self._is_closed else wait_s, gone)
        finally:
            self._claims -= 1
            self._called_s = self._clock.monotonic_s()

    async def renew(self, tokens: Sequence[str]) -> list[str]:
        """Renew leases. Returns the tokens that are stale."""
        self._called_s = self._clock.monotonic_s()
        return await self._desk.renew(tokens)

    async def report(self, reports: Sequence[ItemOutcome]) -> list[str]:
        """Record outcomes. Returns the tokens that are stale."""
        self._called_s = self._clock.monotonic_s()
        return await self._desk.report(reports)

    @property
    def _desk(self) -> Desk:
        if self._made_desk is None:
            self._made_desk = self._hs.parts.queue.queue.desk()
            self._made_desk.meter = self.meter
        return self._made_desk

    def _serve(self, actions: Mapping[str, Action]) -> None:
        """Make sure that a consumer with these actions runs. Raises `Conflict` if none can."""
        if self._error is not None:
            error, self._error = self._error, None
            raise Conflict(str(error))
        known = merged(self._actions, actions)
        if known.keys() == self._actions.keys():
            return
        self._actions = known
        self._desk.offer(known)
        queue = self._hs.parts.queue.queue
        self._run(queue.worker(remote_actions(known.values()), desk=self._desk))
        self._watching = self._watching or asyncio.ensure_future(self._watch())

    # -- which consumer runs ---------------------------------------------------------------

    def start(self) -> None:
        """Start the server's own worker, if it has one."""
        if self._own is not None and not self._is_closed:
            self._run(self._own())

    def _run(self, consumer: Consumer) -> None:
        """Run a consumer in place of the one that runs now, which ends by itself."""
        if self._consumer is not None:
            self._consumer.stop()
        consumer.meter = self.meter
        self._consumer = consumer
        task = asyncio.ensure_future(self._run_to_end(consumer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run_to_end(self, consumer: Consumer) -> None:
        try:
            await consumer.run()
        except HeatsinkError as error:
            logger.error("the worker of this server ended: %s", error)
            if consumer is self._consumer and self._actions:
                self._error = error
                self._dismiss()

    async def _watch(self) -> None:
        """Dismiss the consumer of remote workers when no one calls any more."""
        while True:
            await self._clock.sleep(LOOK_S)
            idle_s = self._clock.monotonic_s() - self._called_s
            if self._actions and not self._claims and idle_s > IDLE_S:
                self._dismiss()

    def _dismiss(self) -> None:
        self._actions = {}
        self._desk.offer(())
        if self._consumer is not None:
            self._consumer.stop()
            self._consumer = None
        self.start()

    # -- ending ----------------------------------------------------------------------------

    def end_claims(self) -> None:
        """Answer the claims that wait, and let later ones wait no more."""
        self._is_closed = True
        if self._made_desk is not None:
            self._made_desk.end_claims()

    async def close(self) -> None:
        """Stop the consumer. It finishes its own items, and gives back the others."""
        self.end_claims()
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        if self._consumer is not None:
            self._consumer.stop()
        await asyncio.gather(*self._running)
