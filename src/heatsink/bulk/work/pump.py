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
from heatsink.bulk.controls import NO_CONTROLS, Controls
from heatsink.bulk.store import (
    BACK,
    DONE,
    FAILED,
    RETRY,
    Claimed,
    ClaimRequest,
    Handover,
    Outcome,
    QueueStores,
    Setback,
    Slice,
)
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import Clock
from heatsink.primitives.nudge import TICK_S, Nudge

from .calling import NotHandedOver
from .handler_errors import slow_down, warn_of_blocking
from .held import NEVER, READY_S, Held, Lanes, Ledger
from .home_clock import LATE_S, Standing
from .places import LimitPlaces
from .pool import AnswerTime, Pace, Terms, WorkerPool

logger = logging.getLogger("heatsink")
TENANTS_MAX, OTHERS = 50, "(others)"
AHEAD_S = 0.01  # seconds of work to claim ahead, and more if the store answers slowly
STARVED = 3  # answer times to claim ahead for in addition, if workers had to wait for a claim
CLAIM_MAX = 1_000
QUICK_MAX = 64  # quick items to claim ahead before the pace is known
FLUSH_S, FLUSH_S_MAX = 0.005, 0.1  # pause between flushes; longer if the store is slow
RUN_SHARE = 8  # starts in a row: 1, and 1 more for each 8 workers
EMPTY_S = 0.02  # pause after a claim that got nothing
POLL_S = 1.0  # how often a partition is polled
REST_S = 60.0  # how often one is polled that the consumer asks whether it is idle
MIND_S = 0.25
SAFE_SHARE = 0.9  # of a lease: then handlers are cancelled
PAUSE_S = 0.2  # after a failed call
UNANSWERED_S = 120.0  # how long an unanswered claim may still be applied
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
        self._owner, self._mark = terms.owner, terms.mark
        self._lease_s = terms.lease_s
        self._hooks = terms.hooks
        self._elsewhere = terms.elsewhere
        self._watchers = terms.room.watchers if terms.room else set()
        self._clock = clock
        self._rng = rng
        self._ledger = Ledger()
        self._seats, self._guard = Nudge(), Nudge()
        self._book = terms.book
        self._places: LimitPlaces | None = None
        if not terms.book.is_empty:
            about = (terms.owner, partition, terms.lease_s)
            self._places = LimitPlaces(stores.places, terms.book, *about, clock, rng, self._seats)
        self._lanes = Lanes(stores.limits, clock, self._places)
        self._nudge, self._news = Nudge(), Nudge()
        self._depths, self._ready, self._holding, self._leased = Nudge(), Nudge(), Nudge(), Nudge()
        self._pace, self._answers = Pace(), AnswerTime()
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
        self.pool.hand_over, self.pool.lacks = self._hand_over, partial(terms.lacks, partition)
        self._controls, self._is_controlled = NO_CONTROLS, True
        self._refusals: set[asyncio.Task[None]] = set()
        self._unanswered: dict[str, float] = {}
        self._standing: Standing | None = None
        self._together = 1  # items per worker call, as of the last claim
        self._has_more = True  # whether the store may have items to claim
        self._was_starved = False  # whether workers were idle when the last claim was answered
        self._look_s = 0.0
        self.rests = False
        self._beat_s = self._leased_s = clock.monotonic_s()
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
        if self._places:
            self._places.offered(limit, key)

    def ask_again(self) -> None:
        """Ask all limits again: an operator has changed one."""
        if self._places:
            self._places.ask_again()

    def obey(self, controls: Controls) -> None:
        """Make the partition follow these controls.

        Claimed items of paused tenants and actions that have not started go back to the queue.
        """
        if controls is self._controls:
            return
        self._controls, self._is_controlled = controls, False
        self.pool.give_back_waiting(lambda each: controls.pauses(each.tenant, each.action))
        self.ring()

    def _on_room(self) -> None:
        """Note that items may start or be claimed now, or that nobody waits for any."""
        for nudge in (self._nudge, self._depths, self._seats):
            nudge()

    def _on_change(self) -> None:
        self._news()
        if self._places is not None:
            self._on_room()
        elif self._has_more and self.pool.backlog <= self._ahead // 2:
            self._nudge()

    # -- claiming --------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim items; after `hand_off` or `stop`, wait until the store has all outcomes."""
        duties: list[Callable[[], Awaitable[None]]] = [self._send_outcomes, self._mind]
        duties += [self._guard_leases, self._book_starts, self._call_workers]
        if self._places is not None:
            duties.append(partial(self._keep_places, self._places))
            duties.append(partial(self._guard_places, self._places))
        others = [asyncio.ensure_future(self._always(duty)) for duty in duties]
        self._watchers.add(self._on_room)
        try:
            while not self._stopping:
                await self._nudge.wait(await self._turn())
            while not self.is_empty:
                await self._clock.sleep(PAUSE_S)
            if self._places is not None:
                with suppress(HeatsinkError):
                    await self._places.leave()
        finally:
            self._watchers.discard(self._on_room)
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
        if not self._is_controlled and not await self._control():
            return PAUSE_S
        wait_s = await self._fill()
        return wait_s if self._is_controlled else 0.0

    async def _control(self) -> bool:
        """Tell the partition its controls. Returns False if the call failed."""
        try:
            has_more = await self._stores.queue.control(self.partition, self._controls)
        except HeatsinkError as error:
            logger.info("partition %s: changing its controls failed: %s", self.partition, error)
            return False
        self._has_more, self._is_controlled = True, not has_more
        return True

    async def _fill(self) -> float:
        now_s = self._clock.monotonic_s()
        self._pace.learn(self.pool.finished, now_s)
        self._lanes.ending = self._claim_s / max(self.pool.item_s, TICK_S)
        lacking, want = self._lanes.lacking(self._room() - self._lanes.startable), self._want()
        is_worth_it = want > 0 and (self._has_more or now_s >= self._look_s)
        if not lacking and not is_worth_it:
            return self._until_next() or self._until_room()
        if not await self._keep_leases(self._lease_s * 2 / 3):
            return PAUSE_S
        if not len(self._ledger):
            self._leased_s = now_s
        try:
            claimed = await self._claim(want, lacking)
        except HeatsinkError as error:
            logger.info("partition %s: a claim failed: %s", self.partition, error)
            return PAUSE_S
        self._start(claimed)
        if self._stopping:  # stopped during the claim
            await self.recall()
        if claimed.more and self._want() > 0 and claimed.slices:
            return 0.0
        return self._until_next() if claimed.slices else max(self._until_next(), EMPTY_S)

    def _until_next(self) -> float:
        next_s = min(self._lanes.claim_s, self._look_s)
        return max(next_s - self._clock.monotonic_s(), 0.0)

    def _until_room(self) -> float:
        """Return how long to wait while no worker has room. An item that ends wakes the pump."""
        self._has_more = True
        return POLL_S

    def _room(self) -> int:
        """Return how many items workers can start now or within `READY_S`."""
        return self.pool.free * self._together + int(self._pace.per_s * READY_S)

    def _run(self) -> int:
        """Return how many start times to book at a time: few, compared with the number of workers.

        If this partition booked start times for all its workers, they would still be busy at its
        next booking, while workers of other partitions are idle. A start may be late by `LATE_S`,
        so the items that workers finish in this time are added.
        """
        share = (1 + self.pool.size // RUN_SHARE) * self._together
        return share + int(self._pace.per_s * LATE_S)

    @property
    def _ahead(self) -> int:
        """Return how many claimed items to hold for the workers. More would only wait here.

        The pump claims again when half of them are left. That half must last until the store
        answers: else workers would wait, finish fewer items per second, and get even fewer. If few
        items arrive, workers finish few, however quick they are.
        """
        by_pace = int(self._pace.per_s * self._claim_s)
        by_time = min(int(AHEAD_S / max(self.pool.item_s, TICK_S)), QUICK_MAX)
        return max(by_pace, by_time)

    @property
    def _claim_s(self) -> float:
        """How long it takes until workers have the items of a claim."""
        return AHEAD_S + 2 * self._answers.mean_s

    def _want(self) -> int:
        if self._stopping or self.pool.backlog > self._ahead // 2:
            return 0
        lacking = self._ahead - self.pool.backlog
        if self._was_starved:  # the pace was too low, for want of items
            lacking += STARVED * int(self._pace.per_s * self._answers.mean_s)
        return min(self.pool.free * self._together + lacking, CLAIM_MAX)

    async def _claim(self, want: int, granted: dict[str, int]) -> Claimed:
        """Claim items under a new attempt id: a claim that comes late cannot take running items."""
        now_s = self._clock.monotonic_s()
        standing, self._standing = self._standing, None
        if standing is not None:  # its handover may be lost
            self._unanswered[standing.attempt] = now_s + UNANSWERED_S
        unanswered = [name for name, until_s in self._unanswered.items() if until_s > now_s]
        attempt = f"{self._mark}{self._rng.getrandbits(96):024x}"
        self._unanswered = {name: self._unanswered[name] for name in unanswered}
        self._unanswered[attempt] = now_s + UNANSWERED_S
        known = granted, unanswered, self._controls
        each_max = 0 if self._elsewhere is None else 1  # an item that is handed over needs a lease
        about = self._owner, attempt, want, int(self._lease_s * 1000)
        may_stand = self._elsewhere is None and not self._stopping
        bell = self._stores.bell.address if may_stand else ""
        request = ClaimRequest(*about, *known, each_max, bell)
        claimed = await self._stores.queue.claim(self.partition, request)
        self._answers.learn(self._clock.monotonic_s() - now_s)
        del self._unanswered[attempt]
        if standing is not None and claimed.owned:  # it stands no more
            del self._unanswered[standing.attempt]
        if claimed.kept_ms:
            self._standing = Standing(attempt, now_s, claimed.kept_ms)
        return claimed

    def take_over(self, handover: Handover) -> bool:
        """Run a single that the standing claim has got. Returns False if it came too late."""
        standing, taken, now_s = self._standing, handover.slice, self._clock.monotonic_s()
        if standing is None or taken.attempt != f"{standing.attempt}:{taken.part}":
            return False
        leased_s = standing.local_s(handover.now_ms, now_s)
        if self._stopping or now_s - leased_s > self._lease_s / 3:
            return False  # the next claim names it, too
        self._standing = None
        if not len(self._ledger):
            self._leased_s = leased_s
        self.meter.claimed([taken], self._clock.now_s())
        self._hold([taken])
        self.ring()  # for what waits behind it, and to make another claim the standing one
        return True

    async def recall(self) -> None:
        """Take the standing claim back, and what it may have got meanwhile."""
        with suppress(HeatsinkError):
            if self._standing is not None:
                await self._claim(0, {})

    def _start(self, claimed: Claimed) -> None:
        self._has_more = claimed.more
        self._is_controlled = claimed.controlled or not claimed.owned
        self._was_starved = claimed.more and not self.pool.backlog and self.pool.free > 0
        poll_s = REST_S if self.rests else POLL_S
        wake_s = poll_s if claimed.wake_ms is None else claimed.wake_ms / 1000 + 0.001
        self._look_s = self._clock.monotonic_s() + min(wake_s, poll_s)
        self.meter.claimed(claimed.slices, self._clock.now_s())
        takes = [self.pool.together(each.action) for each in claimed.slices]
        self._together = min(takes, default=self._together)
        self._hold(claimed.slices)
        self._lanes.learn(claimed.lanes)
        if self._stopping:
            self.pool.give_back_waiting()
        self._depths()
        self._ready()
        if self._places is not None:
            self._seats()

    def _hold(self, slices: list[Slice]) -> None:
        for held in self._ledger.take(slices):
            if (self._places and self._needs_places(held)) or held.slice.limited:
                self._lanes.put(held)
            else:
                self.pool.put(held)
        if self._ledger.has_news:
            self._news()
        self._holding()
        self._leased()

    def _needs_places(self, held: Held) -> bool:
        """Find out at which limits the items need places. Returns whether they need any.

        If a batch was submitted before any worker announced the limits of its action, its
        items are not grouped by limits. A few of these items wait here for places; the
        others are postponed.
        """
        claimed, book = held.slice, self._book
        if not book.has_limits(claimed.action):
            return False
        about = claimed.lane, claimed.action, claimed.tenant
        names = [book.lane_for(*about, item) for item in held.items]
        held.lanes = names
        is_grouped = all(name == claimed.lane for name in names)
        if not is_grouped and self._lanes.held >= UNGROUPED_MAX:
            for offset in range(len(names)):
                delay_ms = int(self._rng.uniform(*POSTPONED_MS))
                held.mark(offset, ord(RETRY), 0.0, Setback(offset, UNGROUPED, delay_ms, False))
            held.items = []
            self._ledger.changed(held)
        return True

    async def _keep_places(self, places: LimitPlaces) -> None:
        """Take, renew and give back places at limits."""
        while True:
            now_s, room = self._clock.monotonic_s(), self._room()
            await self._seats.wait(places.due_s(self._lanes.placed, room) - now_s)
            for lane in () if self.pool.may_start else self._lanes.placed:
                lane.permits = 0  # nobody waits for these items
            has_more = await places.turn(self._lanes.placed, self._room())
            self._guard()
            if has_more:
                self._lanes.idle_until_s = 0.0
                for nudge in (self._nudge, self._depths, self._ready):
                    nudge()

    async def _guard_places(self, places: LimitPlaces) -> None:
        """Cancel handlers before the lease of their places ends, even while a renewal waits."""
        while True:
            await self._guard.wait(places.stop_s - self._clock.monotonic_s())
            if cut := places.cut_off():
                self.pool.cut_off(cut)

    async def _guard_leases(self) -> None:
        """Cancel handlers before the lease of their items ends, even while a renewal waits."""
        while True:
            while self.is_empty:
                await self._leased.wait(float("inf"))
            safe_s = self._leased_s + SAFE_SHARE * self._lease_s - self._clock.monotonic_s()
            if safe_s <= 0:
                self.pool.cut_off_items()
            await self._clock.sleep(max(safe_s, MIND_S))

    async def _book_starts(self) -> None:
        """Book start times, in a separate loop: claims must not wait for servers of rate limits."""
        while True:
            book_s = self._lanes.book_s if self.pool.may_start else NEVER
            await self._depths.wait(book_s - self._clock.monotonic_s())
            if self.pool.may_start and self._lanes.book_s <= self._clock.monotonic_s():
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

    async def _hand_over(self, held: Held) -> NotHandedOver | None:
        """Give the only item of a slice to a worker outside this process."""
        assert self._elsewhere is not None
        needs = tuple(sorted(self._lanes.needs_of([(held, 0)])))
        return await self._elsewhere.hand_over(self.partition, held, needs, self._pace.per_s)

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
            if (late_s := self._clock.monotonic_s() - slept_s - MIND_S) > self._lease_s / 3:
                warn_of_blocking(late_s, self.pool.running_actions())
            self.pool.check_times()
            await self._keep_leases(self._lease_s / 3)

    async def _keep_leases(self, age_s: float) -> bool:
        """Renew leases older than `age_s`. Returns False if the call to the store failed.

        A claim takes back items whose lease has expired, so the pump calls this before.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._beat_s < age_s or not len(self._ledger):
            return True
        if is_sent := await self.flush(self._ledger.attempts):
            self._beat_s = self._leased_s = now_s
        return is_sent

    def _on_refused(self, held: Held, retry_after_s: float) -> None:
        about = self.partition, held.slice, self._pace.per_s, retry_after_s
        task = asyncio.ensure_future(slow_down(self._stores, *about))
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    # -- ending ----------------------------------------------------------------------------

    def hand_off(self) -> None:
        """Stop claiming, and give back items that have not started. Running items may finish."""
        self._stopping = True
        self.pool.give_back_waiting()
        self._nudge()

    async def stop(self, grace_s: float) -> None:
        self.hand_off()
        await self.recall()
        await self.pool.stop(grace_s)
        if not await self.flush():
            await self.flush()

    @property
    def is_empty(self) -> bool:
        """Whether this process holds no items of the partition, and none of its handlers runs.

        A handler may still run, with its places at limits, after its item's lease was lost.
        """
        return not len(self._ledger) and not self.pool.busy


@dataclass
class Tally:
    """Totals since the process started. `waited_s` sums the times from submission to claim."""

    claimed: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0
    given_back: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0


class WorkMeter:
    """Counts of work by action and tenant. All tenants after `TENANTS_MAX` share one label."""

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
        """Count the outcomes of a slice that are new in `now`: `before` was sent earlier."""
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
