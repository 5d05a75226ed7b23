"""Publish decisions to the log, and follow the log into this process's view."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from random import Random
from statistics import median

from msgspec import structs

from heatsink.errors import (
    Closed,
    HeatsinkError,
    InvalidId,
    InvalidSetting,
    Misconfigured,
    NoAccess,
    NoRegistry,
    NoTable,
    Outdated,
    Unavailable,
    WrongIncarnation,
)
from heatsink.primitives.clock import Clock, breathe, now_ms
from heatsink.primitives.words import duration

from . import closed_time as rules
from .closed_time import AHEAD_MS_MAX, RENEW_S, Timekeeper
from .decisions import (
    BUCKETS,
    FORMAT,
    PIN,
    Decision,
    LogEntry,
    Meta,
    Reading,
    RegistryStore,
    SpreadKeys,
    View,
)
from .layouts import EPOCHS_MAX, Layout
from .news import FOLLOW_S, News, NewsListener, NewsStore, Seal, Teller

SAMPLES = 5
FRESH_S = 1.0
PUBLISH_ATTEMPTS = 8
PER_VERSION_MAX = 45  # a DynamoDB transaction has room for two items a key
FUTURE_MS_MAX = 2_000
LOG_KEEP = 10_000
LAYOUTS_AT_ONCE = 5_000  # that are counted before other tasks run
REPLACED = "the data store was replaced by another incarnation: reconnect"
WIPED = "the data store was wiped: restore a backup, or start with an empty store, and reconnect"
SET_BACK = "the data store was set back to an older state, such as a backup: reconnect"
TOLD_S = 3.0  # a leader counts as leading for this long after its last news
BEHIND_MS_MAX = 10_000  # a clock that is further behind the horizon is wrong


def worth_publishing(decisions: Iterable[Decision], view: View) -> list[Decision]:
    """Return the decisions that would change the view.

    Each decision is in the form in which it is published: see `_settled`.
    """
    settled = (_settled(decision, view) for decision in decisions)
    return [decision for decision in settled if _is_news(decision, view)]


def _settled(decision: Decision, view: View) -> Decision:
    """Return the decision in the form in which it is published.

    A key can have `EPOCHS_MAX` epochs, and the last one can never be changed. So if the decision
    makes the last epoch, that epoch gets at least as many buckets as the key ever had.
    """
    layout = view.layout(decision.key)
    if decision.setting != BUCKETS or len(layout.epochs) != EPOCHS_MAX - 1:
        return decision
    assert decision.value is not None
    last = f"the last of {EPOCHS_MAX} epochs keeps the key's highest number of buckets"
    reason = f"{decision.reason}; {last}"
    return structs.replace(decision, value=max(layout.max_buckets, decision.value), reason=reason)


def _waits(layout: Layout, view: View) -> bool:
    """Whether no epoch may follow the key's last epoch yet, since it starts too far in the future.

    A decision about such a key is not published now, so that decisions about other keys need not
    wait for it.
    """
    return layout.epochs[-1].start_ms >= view.horizon_ms + AHEAD_MS_MAX


def _is_news(decision: Decision, view: View) -> bool:
    if decision.setting == BUCKETS:
        layout = view.layout(decision.key)
        return layout.buckets != decision.value and not layout.full and not _waits(layout, view)
    if decision.setting != PIN:  # of workers or advice: the log only keeps its history
        return True
    pinned = view.pins.get(decision.key)
    return pinned != decision if decision.value is not None else pinned is not None


class Latency:
    """How long the store takes to answer: the median of the last few requests.

    The median is used so that one stall of this process does not make the store look slow.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque([0.0], maxlen=SAMPLES)

    def note(self, seconds: float) -> None:
        self._last.append(seconds)

    @property
    def typical_s(self) -> float:
        return median(self._last)


class Registry:
    """One process's access to the registry: call `open`, keep `follow` running, and read `view`.

    With `news`, `follow` reads the store only about every 30 s. Calls that need the store's current
    state read the store even then.
    """

    def __init__(
        self,
        store: RegistryStore,
        clock: Clock,
        news: NewsStore | None = None,
        rng: Random | None = None,
    ) -> None:
        self.view = View()
        self._store = store
        self._clock = clock
        self._meta: Meta | None = None
        self.refusal = ""  # why the store must not be used any more; empty while it may
        self._listener = NewsListener(news, clock, rng or Random()) if news else None
        heard = self._listener
        self._teller = Teller(news, store, clock, heard) if news and heard else None
        self._latency = Latency()
        self.time = Timekeeper()
        self.behind_ms_max = BEHIND_MS_MAX
        self._renewed_s = self._asked_s = self._known_s = float("-inf")
        self._renewal: asyncio.Task[None] | None = None
        self._publishing = asyncio.Lock()
        self._changing = asyncio.Lock()
        """Held during an append or an advance. If both ran at once, this process could advance the
        closed time past the start of the epochs that it appends."""
        self._saying = b""

    @property
    def meta(self) -> Meta:
        if self._meta is None:
            raise Unavailable("the registry has not been read yet: retry")
        return self._meta

    async def open(self, founding: Meta) -> None:
        """Read the registry for the first time. If the store is new, create the registry."""
        reading = await self._store.found(founding)
        found = reading.meta
        if found.min_reader > FORMAT:
            raise WrongIncarnation(
                f"the registry has format {found.format}, which needs a newer release: "
                "upgrade Heatsink"
            )
        if found.id_scheme != founding.id_scheme:
            raise InvalidSetting(
                f"this store holds {found.id_scheme} ids, and ids= in connect() is "
                f"{founding.id_scheme}: pass the scheme {found.id_scheme}"
            )
        Seal(found)  # raises if META has no secret
        self._meta = found
        await self._load()
        await self._catch_up(reading)
        await self.keep_ahead(leads=False, reading=reading)
        if self._listener is not None:
            await self._listener.check()

    async def renew(self) -> Reading:
        """Read META, apply the log up to META's version, and adopt META's closed time.

        Returns META as it was read, with the store's time.
        """
        if self._listener is not None:
            self._listener.note_asked()
        reading = await self._ours(self._store.meta())
        await self._catch_up(reading)
        return reading

    async def _ours(self, question: Awaitable[Reading]) -> Reading:
        """Await a request for META, and return the result.

        Raises `WrongIncarnation` if the store was wiped, replaced or set back. `check` then raises
        the same error.
        """
        asked_s, known = self._clock.monotonic_s(), (self.view.version, self.view.horizon_ms)
        try:
            reading = structs.replace(await question, asked_s=asked_s)
            self._latency.note(self._clock.monotonic_s() - asked_s)
        except NoRegistry:
            self.refusal = WIPED
        except WrongIncarnation as error:
            self.refusal = str(error)
        else:
            self.refusal = self._refusal_of(reading.meta, *known)
        self.check()
        return reading

    def _refusal_of(self, meta: Meta, version: int, horizon_ms: int) -> str:
        """Return why a store with this META must not be used any more; empty if it may be used.

        `version` and `horizon_ms` are the view's values before META was read. If META has lower
        values, the store was set back to an older state. Then the refusal is permanent: the store
        will soon reach the same version again, but with other entries.
        """
        if meta.incarnation != self.meta.incarnation:
            return REPLACED
        if self.refusal == SET_BACK or meta.version < version or meta.closed_ms < horizon_ms:
            return SET_BACK
        return ""

    def check(self) -> None:
        """Raise if the store was wiped, replaced or set back since this process connected.

        `follow` notices such a change when it reads META. `check` itself makes no request.
        """
        if self.refusal:
            raise WrongIncarnation(self.refusal)

    async def _catch_up(self, reading: Reading) -> None:
        """Apply the log up to META's version, and only then adopt META's closed time."""
        meta, asked_s = reading.meta, self._clock.monotonic_s()
        self._meta = _newer(self._meta, meta)
        self.time.observe(now_ms(self._clock), reading.store_ms, asked_s, reading.verdict)
        self.behind_ms_max = max(BEHIND_MS_MAX, 2 * (meta.closed_ms - reading.store_ms))
        if self.view.version < meta.version:
            await self._apply_log(meta.version)
        self.view.adopt(meta.closed_ms, meta.version)
        self._renewed_s = self._asked_s = asked_s
        self._known_s = max(self._known_s, reading.asked_s)

    async def _apply_log(self, upto: int) -> None:
        entries = await self._store.log(self.view.version, upto)
        complete = all(self.view.apply(entry) for entry in entries)
        if not complete or self.view.version < upto:
            await self._load()

    async def _load(self) -> None:
        """Load a snapshot. Other tasks run while its spread keys are counted."""
        snapshot = await self._store.snapshot()
        spread, layouts = SpreadKeys({}), iter(snapshot.layouts.items())
        for _ in range(0, len(snapshot.layouts), LAYOUTS_AT_ONCE):
            spread.add(islice(layouts, LAYOUTS_AT_ONCE))
            await breathe()
        self.view.load(snapshot, spread)

    async def _hear(self) -> bool:
        """Adopt the newest news. Returns whether the horizon is then far enough ahead of now."""
        if self._listener is None:
            return False
        asked_s = self._clock.monotonic_s()
        store_ms = self.time.store_ms(asked_s)
        news = await self._listener.newest(self.view.version, self.meta, store_ms)
        if news is not None:
            moves = news.closed_ms > self.view.horizon_ms
            await self._adopt(news)
            self._renewed_s = asked_s if moves else self._renewed_s
        return self.view.horizon_ms - self.now_ms() >= self._thin_ms()

    async def _adopt(self, news: News) -> None:
        """Apply the log entries in the news, and only then adopt the closed time in the news.

        Entries that are missing in the news are read from the store.
        """
        complete = all(self.view.apply(entry) for entry in news.entries)
        if not complete or self.view.version < news.version:
            await self._apply_log(news.version)
        self.view.adopt(news.closed_ms, news.version)

    async def keep_ahead(self, leads: bool, reading: Reading | None = None) -> None:
        """Advance the closed time if it is no longer far enough ahead, and adopt the result.

        The leader (`leads`) advances the closed time earlier than other processes do. Without a
        `reading`, META is read first.
        """
        reading = reading or await self.renew()
        horizon_ms = self._horizon_ms(leads)
        enough_ms = horizon_ms if leads else self._thin_ms()
        steady_ms = self.time.steady_ms(self._clock.monotonic_s())
        closed_ms = rules.new_closed_time(reading, steady_ms, enough_ms, horizon_ms)
        if closed_ms is None and reading.verdict and reading.verdict.is_due:
            closed_ms = reading.meta.closed_ms  # to renew the evidence
        if closed_ms is not None:
            async with self._changing:
                await self._catch_up(await self._ours(self._store.advance(closed_ms)))

    def _horizon_ms(self, leads: bool = False) -> int:
        horizon_ms = rules.horizon_for(self._latency.typical_s)
        told_ms = self._listener.horizon_ms(self.servers, leads) if self._listener else 0
        return max(horizon_ms, told_ms)

    def _thin_ms(self) -> int:
        return rules.thin_ms(self._latency.typical_s)

    async def keep_up(self, urgent: bool) -> None:
        """Renew the view from news, and regularly from the store.

        If `urgent`, also read the store whenever the horizon, after the newest news, is not far
        enough ahead of now.
        """
        informed = await self._hear()
        due = self._listener is None or self._listener.should_ask(self.servers, informed)
        if due or (urgent and not informed) or self._should_testify():
            await self.keep_ahead(leads=False)

    def _should_testify(self) -> bool:
        """Whether to read the store in spite of news, in order to renew the evidence of the time.

        If no process renewed the evidence, processes would accept a wrong clock.
        """
        asked_s = self._clock.monotonic_s() - self._asked_s
        return self.meta.evidence is not None and asked_s >= RENEW_S

    async def follow(self) -> None:
        """Keep the view fresh until cancelled. Errors of the store are retried."""
        while True:
            with suppress(HeatsinkError):  # a call that needs the view renews it and raises
                await self.keep_up(urgent=False)
            pause_s = self._listener.pause_s(self.servers) if self._listener else FOLLOW_S
            await self._clock.sleep(pause_s)

    async def tell(self) -> None:
        """Publish commits as news, if the deployment has news. Only the leader calls this.

        Lost news does no harm.
        """
        if self._teller is not None:
            await self._teller.tell(self.meta, self._saying)

    def say(self, notice: bytes) -> None:
        """From now on, attach this notice to all news. Only the leader calls this."""
        self._saying = notice

    @property
    def notice(self) -> bytes:
        """The leader's last notice; empty if there is none, or if the last news is long ago."""
        return self._listener.notice if self._listener else b""

    @property
    def has_news(self) -> bool:
        return self._listener is not None

    def standby_s(self, at_least_s: float) -> float:
        """Return the seconds between two checks of the lease: with news, more in a large fleet."""
        return self._listener.standby_s(self.servers, at_least_s) if self._listener else at_least_s

    async def reach(self, time_ms: int, deadline_s: float) -> None:
        """Wait until this process may place ids of the time `time_ms`.

        `deadline_s` is on the monotonic clock. Raises `InvalidId` if the time is too far in the
        future, and `Unavailable` at the deadline.
        """
        while time_ms >= self.view.horizon_ms:
            await self.renew_shared()
            if time_ms < self.view.horizon_ms:
                return
            ahead_ms = time_ms - self.view.horizon_ms
            is_future = ahead_ms > FUTURE_MS_MAX and time_ms > self.now_ms() + FUTURE_MS_MAX
            if is_future and not self.time.doubt:
                ahead = duration(ahead_ms / 1000)
                raise InvalidId(wrong=f"is {ahead} from the future: check the clock that made it")
            pause_s = min(max(ahead_ms / 1000, 0.01), FOLLOW_S)
            if self._clock.monotonic_s() + pause_s >= deadline_s:
                cause = self.time.doubt or "the registry's closed time does not advance: retry"
                raise Unavailable(cause)
            await self._clock.sleep(pause_s)

    async def reach_buckets(self, key: str, buckets: int, deadline_s: float) -> None:
        """Wait until the key's new ids go to `buckets` buckets, as was decided.

        Raises `Unavailable` at the deadline. Does not wait if the key can get no more epochs.
        """
        while True:
            layout = self.view.layout(key)
            epoch = layout.epochs[-1]
            newest_ms = min(self.now_ms(), self.view.horizon_ms - 1)  # of an id minted now
            if layout.full or (epoch.buckets == buckets and epoch.start_ms <= newest_ms):
                return
            if self._clock.monotonic_s() + FOLLOW_S >= deadline_s:
                raise Unavailable(
                    f"the leader has not put the decision about {key!r} into effect: retry"
                )
            await self._clock.sleep(FOLLOW_S)
            await self.renew_shared()

    def is_fresh(self, within_s: float = FRESH_S) -> bool:
        """Return whether the view was renewed in the last `within_s` seconds."""
        return self._clock.monotonic_s() - self._renewed_s < within_s

    def is_current(self, within_s: float) -> bool:
        """Return whether the view shows the registry as it was in the last `within_s` seconds."""
        return self._clock.monotonic_s() - self._known_s < within_s

    async def renew_shared(self) -> None:
        """Renew the view. Concurrent callers share a renewal, which outlasts a cancelled caller."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.ensure_future(self.keep_up(urgent=True))
            self._renewal.add_done_callback(_retrieve)
        renewal = self._renewal
        try:
            await asyncio.shield(renewal)
        except asyncio.CancelledError:
            if not renewal.cancelled():
                raise
            raise Closed.meanwhile("the client") from None

    async def layout(self, key: str) -> Layout:
        """Read the key's layout from the store. Reads that reach past the horizon need this."""
        return await self._store.layout(key)

    async def history(self, limit: int, before: int | None = None) -> list[LogEntry]:
        """Return at most `limit` log entries with a version below `before`, newest first.

        The result lacks very old entries, since the registry deletes them.
        """
        newest = self.view.version if before is None else min(before - 1, self.view.version)
        entries = await self._store.log(max(newest - limit, 0), newest) if newest > 0 else []
        return entries[::-1]

    async def publish(self, decisions: Sequence[Decision], term: int | None) -> list[Decision]:
        """Commit decisions to the log, up to 45 in one version.

        Returns the decisions that changed something. `term` is None if the caller is not the
        leader. META is read before the first version and after the last one, but not in between. It
        is not needed there, since each commit is conditional on the version before it.
        """
        published: list[Decision] = []
        async with self._publishing:
            await self.renew()
            for first in range(0, len(decisions), PER_VERSION_MAX):
                together = decisions[first : first + PER_VERSION_MAX]
                try:
                    published += await self._publish(together, term)
                except Misconfigured as fault:
                    if len(together) == 1 or isinstance(fault, NoTable | NoAccess):
                        raise
                    published += await self._publish_apart(together, term)
            if published:
                await self.renew()
        return published

    async def replace_pin(
        self,
        seen: Decision | None,
        decision: Decision,
        provided: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Commit the pin `decision` if the current pin is `seen`, and `provided` returns True.

        Returns whether `decision` is the current pin afterwards.
        """
        async with self._publishing:
            await self.renew()
            await self._publish(
                [decision],
                None,
                lambda: self.view.pins.get(decision.key) == seen and provided(),
            )
            await self.renew()
        return self.view.pins.get(decision.key) == decision

    async def _publish_apart(
        self, decisions: Sequence[Decision], term: int | None
    ) -> list[Decision]:
        """Publish decisions one by one, so that a malformed item blocks only its own key.

        After the last decision, raise the first error.
        """
        published, faults = [], []
        for decision in decisions:
            try:
                published += await self._publish([decision], term)
            except Misconfigured as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return published

    async def _publish(
        self,
        decisions: Sequence[Decision],
        term: int | None,
        provided: Callable[[], bool] = lambda: True,
    ) -> list[Decision]:
        """Commit, in one version, those decisions that would change the view.

        The view was renewed a moment ago. `provided` is called before each attempt. If it returns
        False, nothing is committed.
        """
        takes_s = 0.0
        for _ in range(PUBLISH_ATTEMPTS):
            began_s = self._clock.monotonic_s()
            news = worth_publishing(decisions, self.view)
            if not news or not provided():
                return []
            try:
                async with self._changing:
                    entry = self._entry(news, takes_s)
                    await self._store.append(entry, term)
            except Outdated:
                takes_s = max(2 * takes_s, self._clock.monotonic_s() - began_s, FOLLOW_S)
                await self.renew()
                continue
            self.view.apply(entry)
            if self.meta.version < entry.version:
                self._meta = structs.replace(self.meta, version=entry.version)
            await self._trim()
            return news
        raise Unavailable(
            "another process changed the registry during each of "
            f"{PUBLISH_ATTEMPTS} attempts to write to it: retry"
        )

    def _entry(self, decisions: list[Decision], takes_s: float) -> LogEntry:
        """Return the next log entry, which starts its epochs as soon as the closed time allows.

        `takes_s` is 0 in the first attempt to commit. After an attempt that was too slow, `takes_s`
        is the expected duration of the next attempt. Then the epochs start later, so that the
        closed time does not pass their start during the commit.
        """
        layouts = [self.view.layout(d.key) for d in decisions if d.setting == BUCKETS]
        earliest_ms = self.now_ms()
        if takes_s:
            earliest_ms += self._horizon_ms() + int(takes_s * 1000)
        return LogEntry(
            version=self.view.version + 1,
            decided_ms=self.now_ms(),
            start_ms=rules.start_of_epochs(self.meta, earliest_ms, layouts),
            decisions=tuple(decisions),
        )

    async def _trim(self) -> None:
        if self.view.version % LOG_KEEP == 0:
            await self._store.trim(self.view.version - LOG_KEEP)

    def led_until_ms(self) -> int:
        """Return the end of the current leader's lease, in the store's time.

        Only a leader publishes news. So the lease lasts for at least `TOLD_S` seconds after the
        last news.
        """
        told_s = self._listener.told_s if self._listener else None
        if told_s is None:
            return self.meta.lease_ms
        silent_s = self._clock.monotonic_s() - told_s
        return max(self.meta.lease_ms, int((self.fleet_now_s() - silent_s + TOLD_S) * 1000))

    @property
    def servers(self) -> int:
        """The number of servers that report heat, as counted by the leader."""
        return self.meta.servers

    def now_ms(self) -> int:
        """Return the time now: this process's clock, or the store's time if that clock is wrong."""
        return int(self._clock.now_s() * 1000) + self.time.correction_ms

    def past_ms(self) -> int:
        """Return the time now or, if the horizon is earlier, the horizon."""
        return min(self.now_ms(), self.view.horizon_ms)

    def fleet_now_s(self) -> float:
        """Return the store's time now.

        All servers get the same time, even if their own clocks are wrong.
        """
        return self._clock.now_s() + self.time.offset_ms / 1000

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)


def _newer(known: Meta | None, read: Meta) -> Meta:
    """The newer of two states of META: responses to concurrent requests may come in any order."""
    if known is None or known.incarnation != read.incarnation:
        return read
    return max(read, known, key=lambda meta: (meta.version, meta.closed_ms, meta.term, meta.beat))


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve the task's error, so that asyncio does not log it if all waiters were cancelled."""
    if not task.cancelled():
        task.exception()
