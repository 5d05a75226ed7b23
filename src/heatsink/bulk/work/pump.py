"""The pump of one partition: claims items for its workers and sends their outcomes to the store.

Claims, outcomes, lease renewals and bookings of rate-limited starts each have a loop of their own,
so that none of them waits for another. A `Nudge` wakes a loop before its timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random

from heatsink.bulk.actions import Actions
from heatsink.bulk.store import (
    BACK,
    DONE,
    FAILED,
    RETRY,
    Claimed,
    ClaimRequest,
    Outcome,
    QueueStores,
    Setback,
    Slice,
)
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import Clock

from .held import LATE_S, READY_S, Held, Lanes, Ledger
from .places import Places
from .pool import Terms, WorkerPool

logger = logging.getLogger("heatsink")
TICK_S = 1e-6  # the shortest wait: a shorter one may not advance the clock, and loop for ever
TENANTS_MAX = 50
OTHERS = "(others)"
AHEAD_S = 0.01  # seconds of work to claim ahead, and more if the store answers slowly
ANSWER_S_MAX = 0.1  # slower answers do not count: what is claimed ahead keeps others waiting
ANSWER_WEIGHT = 0.25
STARVED = 3  # answer times to claim ahead for in addition, if workers had to wait for a claim
CLAIM_MAX = 1_000
QUICK_MAX = 64  # quick items to claim ahead before the pace is known
FLUSH_S, FLUSH_S_MAX = 0.005, 0.1  # pause between flushes; longer if the store is slow
RUN_SHARE = 8  # starts in a row: 1, and 1 more for each 8 workers
POLL_S = 1.0  # how often a partition is polled
REST_S = 60.0  # how often one is polled that the consumer asks whether it is idle
MIND_S = 0.25
PAUSE_S = 0.2  # after a failed call
UNANSWERED_S = 120.0  # how long an unanswered claim may still be applied
PACE_S = 0.05
PACE_WEIGHT = 0.5
UNGROUPED_MAX = 64  # items of batches that are not grouped by limits, and wait here for places
POSTPONED_MS = (500.0, 2_000.0)
UNGROUPED = "waits for a place at a limit"


class Pump:
    """Keeps the workers of one partition busy. `run` returns after `hand_off` or `stop`."""

    def __init__(
        self,
        partition: int,
        stores: QueueStores,
        actions: Actions,
        terms: Terms,
        meter: WorkMeter,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.partition = partition
        self._stores = stores
        self._owner = terms.owner
        self._lease_s = terms.lease_s
        self._hooks = terms.hooks
        self._clock = clock
        self._rng = rng
        self._ledger = Ledger()
        self._seats, self._guard = Nudge(), Nudge()
        self._book = terms.book
        self._places: Places | None = None
        if not terms.book.is_empty:
            about = (terms.owner, partition, terms.lease_s)
            self._places = Places(stores.places, terms.book, *about, clock, rng, self._seats)
        self._lanes = Lanes(stores.limits, clock, self._places)
        self._nudge, self._news = Nudge(), Nudge()
        self._depths, self._ready, self._holding = Nudge(), Nudge(), Nudge()
        self._pace = Pace()
        self._answers = AnswerTime()
        self.meter = meter
        self.pool = WorkerPool(
            actions,
            self._ledger,
            self._lanes,
            self._on_change,
            self._on_refused,
            terms,
            clock,
            rng,
        )
        self._refusals: set[asyncio.Task[None]] = set()
        self._unanswered: dict[str, float] = {}
        self._together = 1  # items per worker call, as of the last claim
        self._has_more = True  # whether the store may have items to claim
        self._was_starved = False  # whether workers were idle when the last claim was answered
        self._look_s = 0.0
        self.rests = False
        self._beat_s = clock.monotonic_s()
        self._stopping = False

    def ring(self) -> None:
        """Make the pump claim soon, because the store may have new items."""
        self._has_more = True
        self.rests = False
        self._nudge()

    def rest(self) -> None:
        """Poll rarely until `ring`: the partition is idle, and the consumer asks about it."""
        self.rests = True

    def offered(self, limit: str, key: str) -> None:
        """Ask a limit again: it has offered this partition a place."""
        if self._places is not None:
            self._places.offered(limit, key)

    def ask_again(self) -> None:
        """Ask all limits again: an operator has changed one."""
        if self._places is not None:
            self._places.ask_again()

    def _on_change(self) -> None:
        self._news()
        if self._places is not None:
            self._seats()
            self._depths()
        if self._has_more and self.pool.backlog <= self._ahead // 2:
            self._nudge()

    # -- claiming --------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim items while workers have room.

        After `hand_off` or `stop`, wait until the store has the outcomes of all claimed items.
        """
        duties: list[Callable[[], Awaitable[None]]]
        duties = [self._send_outcomes, self._mind, self._book_starts, self._call_workers]
        if self._places is not None:
            duties.append(partial(self._keep_places, self._places))
            duties.append(partial(self._guard_places, self._places))
        others = [asyncio.ensure_future(self._always(duty)) for duty in duties]
        try:
            while not self._stopping:
                await self._nudge.wait(await self._turn())
            while not self.is_empty:
                await self._clock.sleep(PAUSE_S)
            if self._places is not None:
                with suppress(HeatsinkError):
                    await self._places.leave()
        finally:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _always(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a loop, and restart it when it fails: without the loops, no item would end."""
        while True:
            try:
                await work()
            except Exception as error:
                self._hooks.failed(f"a pump task of partition {self.partition}", error)
                await self._clock.sleep(PAUSE_S)
                self._news()

    async def _turn(self) -> float:
        """Claim once if workers have room. Returns the seconds to wait before the next call."""
        now_s = self._clock.monotonic_s()
        self._pace.learn(self.pool.finished, now_s)
        lacking, want = self._lanes.lacking(self._room() - self._lanes.startable), self._want()
        is_worth_it = want > 0 and (self._has_more or now_s >= self._look_s)
        if not lacking and not is_worth_it:
            return self._until_next() or self._until_room()
        if not await self._keep_leases(self._lease_s * 2 / 3):
            return PAUSE_S
        try:
            claimed = await self._claim(want, lacking)
        except HeatsinkError as error:
            logger.info("partition %s: a claim failed: %s", self.partition, error)
            return PAUSE_S
        self._start(claimed)
        if claimed.more and self._want() > 0 and claimed.slices:
            return 0.0
        return self._until_next()

    def _until_next(self) -> float:
        next_s = min(self._lanes.claim_s, self._look_s)
        return max(next_s - self._clock.monotonic_s(), 0.0)

    def _until_room(self) -> float:
        """Return how long to wait while no worker has room. A finished item ends the wait early."""
        self._has_more = True
        return POLL_S

    def _room(self) -> int:
        """Return how many items workers can start now or within `READY_S`."""
        return self.pool.free * self._together + int(self._pace.per_s * READY_S)

    def _run(self) -> int:
        """Return for how many items to book start times at a time: few for the number of workers.

        If this partition booked start times for all its workers, they would still be busy at its
        next booking, while workers of other partitions are idle. Items that workers finish within
        `LATE_S`, the allowed lateness of a start, are added to the number.
        """
        share = (1 + self.pool.size // RUN_SHARE) * self._together
        return share + int(self._pace.per_s * LATE_S)

    @property
    def _ahead(self) -> int:
        """How many items to hold for the workers. Further claimed items would only wait.

        The pump claims again when half of them are left. That half must last until the store
        answers. Otherwise workers would wait for claims, finish fewer items per second, and the
        pump would claim even fewer. The number does not only follow the items per second so far:
        while few items came, these figures are low, although a worker may be quick.
        """
        by_pace = int(self._pace.per_s * (AHEAD_S + 2 * self._answers.mean_s))
        by_time = min(int(AHEAD_S / max(self.pool.item_s, TICK_S)), QUICK_MAX)
        return max(by_pace, by_time)

    def _want(self) -> int:
        if self._stopping or self.pool.backlog > self._ahead // 2:
            return 0
        lacking = self._ahead - self.pool.backlog
        if self._was_starved:  # the pace was too low, for want of items
            lacking += STARVED * int(self._pace.per_s * self._answers.mean_s)
        return min(self.pool.free * self._together + lacking, CLAIM_MAX)

    async def _claim(self, want: int, granted: dict[str, int]) -> Claimed:
        """Claim items under a new attempt id.

        If the server executes an earlier claim late, that claim has another id. So it cannot take
        items that are running.
        """
        now_s = self._clock.monotonic_s()
        unanswered = [name for name, until_s in self._unanswered.items() if until_s > now_s]
        attempt = f"{self._rng.getrandbits(96):024x}"
        self._unanswered = {name: self._unanswered[name] for name in unanswered}
        self._unanswered[attempt] = now_s + UNANSWERED_S
        lease_ms = int(self._lease_s * 1000)
        request = ClaimRequest(self._owner, attempt, want, lease_ms, granted, unanswered)
        claimed = await self._stores.queue.claim(self.partition, request)
        self._answers.learn(self._clock.monotonic_s() - now_s)
        del self._unanswered[attempt]
        return claimed

    def _start(self, claimed: Claimed) -> None:
        self._has_more = claimed.more
        self._was_starved = claimed.more and not self.pool.backlog and self.pool.free > 0
        poll_s = REST_S if self.rests else POLL_S
        wake_s = poll_s if claimed.wake_ms is None else claimed.wake_ms / 1000 + 0.001
        self._look_s = self._clock.monotonic_s() + min(wake_s, poll_s)
        self.meter.claimed(claimed.slices, self._clock.now_s())
        takes = [self.pool.together(each.action) for each in claimed.slices]
        self._together = min(takes, default=self._together)
        for held in self._ledger.take(claimed.slices):
            if (self._places and self._needs_places(held)) or held.slice.limited:
                self._lanes.put(held)
            else:
                self.pool.put(held)
        if self._ledger.has_news:
            self._news()
        self._lanes.learn(claimed.lanes)
        if self._stopping:  # stopped during the claim
            self.pool.give_back_waiting()
        self._depths()
        self._ready()
        self._holding()
        if self._places is not None:
            self._seats()

    def _needs_places(self, held: Held) -> bool:
        """Find out which limits the items need places at. Returns whether they need any.

        If a batch was submitted before any worker announced the limits of its action, its
        items are not grouped by limits. A few of these items wait here for places; the
        others are postponed.
        """
        claimed, book = held.slice, self._book
        if not book.has_limits(claimed.action):
            return False
        names = [
            book.lane_for(claimed.lane, claimed.action, claimed.tenant, item) for item in held.items
        ]
        held.lanes = names
        is_grouped = all(name == claimed.lane for name in names)
        if not is_grouped and self._lanes.held >= UNGROUPED_MAX:
            for offset in range(len(names)):
                delay_ms = int(self._rng.uniform(*POSTPONED_MS))
                held.mark(offset, ord(RETRY), 0.0, Setback(offset, UNGROUPED, delay_ms, False))
            held.items = []
            self._ledger.changed(held)
        return True

    async def _keep_places(self, places: Places) -> None:
        """Take, renew and give back places at limits."""
        while True:
            now_s, room = self._clock.monotonic_s(), self._room()
            await self._seats.wait(places.due_s(self._lanes.placed, room) - now_s)
            has_more = await places.turn(self._lanes.placed, self._room())
            self._guard()
            if has_more:
                self._depths()

    async def _guard_places(self, places: Places) -> None:
        """Cancel handlers before the lease of their places ends, even while a renewal waits."""
        while True:
            await self._guard.wait(places.stop_s - self._clock.monotonic_s())
            if cut := places.cut_off():
                self.pool.cut_off(cut)

    async def _book_starts(self) -> None:
        """Book start times, in a separate loop: claims must not wait for servers of rate limits."""
        while True:
            await self._depths.wait(self._lanes.book_s - self._clock.monotonic_s())
            if self._lanes.book_s <= self._clock.monotonic_s():
                await self._lanes.book(self._room(), self._run())
                self._nudge()
                self._ready()

    async def _call_workers(self) -> None:
        """Wake idle workers when items of rate-limited lanes may start.

        Busy workers look for such items whenever they finish an item.
        """
        while True:
            count, next_s = self._lanes.due()
            self.pool.wake(count)
            await self._ready.wait(next_s - self._clock.monotonic_s())

    # -- outcomes and leases ---------------------------------------------------------------

    async def _send_outcomes(self) -> None:
        took_s = 0.0
        while True:
            await self._news.wait(float("inf"))
            await self._clock.sleep(max(FLUSH_S, 2 * took_s))
            began_s = self._clock.monotonic_s()
            is_sent = await self.flush()
            took_s = min(self._clock.monotonic_s() - began_s, FLUSH_S_MAX / 2)
            if not is_sent:
                await self._clock.sleep(PAUSE_S)
            if self._ledger.has_news:
                self._news()

    async def flush(self, beats: list[str] | None = None) -> bool:
        """Send new outcomes to the store, and renew the leases of the attempts in `beats`.

        Returns False if the call failed and must be repeated.
        """
        news = self._ledger.take_news()
        if not news and not beats:
            return True
        outcomes = [outcome for _, outcome in news]
        lease_ms = int(self._lease_s * 1000)
        try:
            lost = await self._stores.queue.settle(self.partition, outcomes, beats or [], lease_ms)
        except HeatsinkError as error:
            logger.info("partition %s: sending outcomes failed: %s", self.partition, error)
            self._ledger.put_back(news)
            return False
        except Exception as error:
            self._hooks.failed(f"sending outcomes of partition {self.partition}", error)
            for held, _ in news:
                held.mend()
            self._ledger.put_back(news)
            return False
        if count := self._ledger.lose(lost):
            self.meter.fenced += count
            logger.warning(
                "partition %s: %s leases expired and other workers took their items",
                self.partition,
                count,
            )
        for held, outcome in news:
            self.meter.sent(held.slice, held.sent, outcome)
        self._ledger.sent(news)
        if any(outcome.setbacks or BACK in outcome.marks for outcome in outcomes):
            self.ring()  # a claim returns when the first of them is due again
        return True

    async def _mind(self) -> None:
        """Renew leases, check timeouts, and notice a blocked event loop."""
        while True:
            while self.is_empty:
                await self._holding.wait(float("inf"))
            slept_s = self._clock.monotonic_s()
            await self._clock.sleep(MIND_S)
            self._warn_if_blocked(self._clock.monotonic_s() - slept_s - MIND_S)
            self.pool.check_times()
            await self._keep_leases(self._lease_s / 3)

    async def _keep_leases(self, age_s: float) -> bool:
        """Renew leases older than `age_s`. Returns False if the call to the store failed.

        The pump also calls this before a claim, since a claim takes back items whose lease has
        expired.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._beat_s < age_s or not len(self._ledger):
            return True
        if is_sent := await self.flush(self._ledger.attempts):
            self._beat_s = now_s
        return is_sent

    def _warn_if_blocked(self, late_s: float) -> None:
        if late_s > self._lease_s / 3:
            logger.warning(
                "the event loop was blocked for %.1f s, probably by a handler of %s: "
                "make the handler a plain function (def), which runs in a thread",
                late_s,
                ", ".join(self.pool.running_actions()) or "some action",
            )

    def _on_refused(self, held: Held, retry_after_s: float) -> None:
        task = asyncio.ensure_future(self._slow_down(held, retry_after_s))
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    async def _slow_down(self, held: Held, retry_after_s: float) -> None:
        claimed, stores = held.slice, self._stores
        try:
            after_ms = int(min(retry_after_s, 3600.0) * 1000)
            await stores.limits.refused(claimed.lane, self._pace.per_s, after_ms)
            if not claimed.limited:
                await stores.queue.steer(self.partition, claimed.part, "limit")
        except HeatsinkError as error:
            logger.info("the queue did not record that a handler raised RateLimited: %s", error)

    # -- ending ----------------------------------------------------------------------------

    def hand_off(self) -> None:
        """Stop claiming, and give back items that have not started. Running items may finish."""
        self._stopping = True
        self.pool.give_back_waiting()
        self._nudge()

    async def stop(self, grace_s: float) -> None:
        self.hand_off()
        await self.pool.stop(grace_s)
        if not await self.flush():
            await self.flush()

    @property
    def is_empty(self) -> bool:
        """Whether this process holds no items of the partition, and none of its handlers runs.

        The handler of an item whose lease was lost still has its places at limits.
        """
        return not len(self._ledger) and not self.pool.busy


class Pace:
    """How many items per second this partition's workers finish, as a moving average."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._seen = 0
        self._seen_s = float("-inf")

    def learn(self, finished: int, now_s: float) -> None:
        passed_s = now_s - self._seen_s
        if passed_s < PACE_S:
            return
        latest = (finished - self._seen) / passed_s
        weight = 1.0 if latest > self.per_s else PACE_WEIGHT
        self.per_s += weight * (latest - self.per_s)
        self._seen, self._seen_s = finished, now_s


class AnswerTime:
    """How long the store takes to answer a claim, as a moving average."""

    def __init__(self) -> None:
        self.mean_s = 0.0

    def learn(self, took_s: float) -> None:
        self.mean_s += ANSWER_WEIGHT * (min(took_s, ANSWER_S_MAX) - self.mean_s)


class Nudge:
    """An event for one waiter. Calling the object ends the current `wait`, or else the next one."""

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


@dataclass
class Tally:
    """Totals since the process started. `waited_s` is how long items waited, summed over all items.

    An item waits from the submission of its batch until its claim.
    """

    claimed: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0
    given_back: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0


class WorkMeter:
    """Counts of a consumer's work by action and tenant, for metrics.

    The first `TENANTS_MAX` tenants get a label each. All other tenants share one label.
    """

    def __init__(self) -> None:
        self.tallies: dict[tuple[str, str], Tally] = {}
        self.claims = 0
        self.fenced = 0
        self._tenants: set[str] = set()

    def claimed(self, slices: Iterable[Slice], now_s: float) -> None:
        self.claims += 1
        for each in slices:
            tally = self._tally(each)
            tally.claimed += each.count
            tally.waited_s += max(now_s - each.submitted_ms / 1000, 0.0) * each.count

    def sent(self, claimed: Slice, before: Outcome | None, now: Outcome) -> None:
        """Count the items that have an outcome in `now` but had none in `before`, sent earlier."""
        tally = self._tally(claimed)
        old = before.marks if before else ""
        tally.done += now.marks.count(DONE) - old.count(DONE)
        tally.failed += now.marks.count(FAILED) - old.count(FAILED)
        tally.retried += now.marks.count(RETRY) - old.count(RETRY)
        tally.given_back += now.marks.count(BACK) - old.count(BACK)
        tally.busy_s += now.used_us / 1e6

    def _tally(self, claimed: Slice) -> Tally:
        label = claimed.action, self._label(claimed.tenant)
        if label not in self.tallies:
            self.tallies[label] = Tally()
        return self.tallies[label]

    def _label(self, tenant: str) -> str:
        if tenant in self._tenants:
            return tenant
        if len(self._tenants) >= TENANTS_MAX:
            return OTHERS
        self._tenants.add(tenant)
        return tenant
