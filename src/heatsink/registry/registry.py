"""Publish decisions to the log, and follow the log into this process's view."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
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
from heatsink.primitives.clock import Clock, now_ms

from . import closed_time as rules
from .closed_time import AHEAD_MS_MAX, RENEW_S, Timekeeper
from .decisions import BUCKETS, FORMAT, Decision, LogEntry, Meta, Reading, RegistryStore, View
from .layouts import EPOCHS_MAX, Layout
from .news import FOLLOW_S, News, NewsListener, NewsStore, Seal, Teller

SAMPLES = 5
FRESH_S = 1.0
PUBLISH_ATTEMPTS = 8
PER_VERSION_MAX = 45  # a DynamoDB transaction has room for two items a key
FUTURE_MS_MAX = 2_000
LOG_KEEP = 10_000
REPLACED = "the data store was replaced by another incarnation: reconnect"
WIPED = "the data store was wiped: restore a backup of it, or begin anew, and reconnect"
SET_BACK = "the data store was set back to an older state, as by a backup: reconnect"
TOLD_S = 3.0  # who told news so long ago still leads, for all that is known
BEHIND_MS_MAX = 10_000  # a clock further behind the horizon than this is wrong


def worth_publishing(decisions: Iterable[Decision], view: View) -> list[Decision]:
    """Without those that hold already."""
    settled = (_settled(decision, view) for decision in decisions)
    return [decision for decision in settled if _is_news(decision, view)]


def _settled(decision: Decision, view: View) -> Decision:
    """The last epoch that a key may have is its high-water mark."""
    layout = view.layout(decision.key)
    if decision.setting != BUCKETS or len(layout.epochs) != EPOCHS_MAX - 1:
        return decision
    assert decision.value is not None
    reason = f"{decision.reason}; the last of {EPOCHS_MAX} epochs keeps the high-water mark"
    return structs.replace(decision, value=max(layout.max_buckets, decision.value), reason=reason)


def _waits(layout: Layout, view: View) -> bool:
    """Its last epoch is so far ahead that none may follow yet: others need not wait for it."""
    return layout.epochs[-1].start_ms >= view.horizon_ms + AHEAD_MS_MAX


def _is_news(decision: Decision, view: View) -> bool:
    if decision.setting == BUCKETS:
        layout = view.layout(decision.key)
        return layout.buckets != decision.value and not layout.full and not _waits(layout, view)
    pinned = view.pins.get(decision.key)
    return pinned != decision if decision.value is not None else pinned is not None


class Latency:
    """The median of the last few answers: a stall of ours is not yet a slow store."""

    def __init__(self) -> None:
        self._last: deque[float] = deque([0.0], maxlen=SAMPLES)

    def note(self, seconds: float) -> None:
        self._last.append(seconds)

    @property
    def typical_s(self) -> float:
        return median(self._last)


class Registry:
    """One process's way to the registry: `open` it, keep `follow` running, read `view`.

    With `news`, following costs the store next to nothing; what needs the truth still asks it.
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
        self.refusal = ""  # why the store is not ours any more; empty while it is
        self._listener = NewsListener(news, clock, rng or Random()) if news else None
        self._teller = Teller(news, store, clock) if news else None
        self._latency = Latency()
        self.time = Timekeeper()
        self.behind_ms_max = BEHIND_MS_MAX
        self._renewed_s = self._asked_s = float("-inf")
        self._renewal: asyncio.Task[None] | None = None
        self._publishing = asyncio.Lock()

    @property
    def meta(self) -> Meta:
        if self._meta is None:
            raise Unavailable("the registry has not been read yet")
        return self._meta

    async def open(self, founding: Meta) -> None:
        """Read the registry for the first time; found it if the store is new."""
        reading = await self._store.found(founding)
        found = reading.meta
        if found.min_reader > FORMAT:
            raise WrongIncarnation(f"the registry has format {found.format}: upgrade Heatsink")
        if found.id_scheme != founding.id_scheme:
            raise InvalidSetting(
                f"this store holds {found.id_scheme} ids: connect with that scheme, "
                f"not {founding.id_scheme}"
            )
        Seal(found)  # a registry without a secret is refused
        self._meta = found
        self.view.load(await self._store.snapshot())
        await self._catch_up(reading)
        await self.keep_ahead(leads=False, reading=reading)
        if self._listener is not None:
            await self._listener.check()

    async def renew(self) -> Reading:
        """Bring the view up to the store's closed time."""
        if self._listener is not None:
            self._listener.note_asked()
        reading = await self._ours(self._store.meta())
        await self._catch_up(reading)
        return reading

    async def _ours(self, question: Awaitable[Reading]) -> Reading:
        """META, if it is of our incarnation. If not, `check` refuses from now on."""
        asked_s, known = self._clock.monotonic_s(), (self.view.version, self.view.horizon_ms)
        try:
            reading = await question
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
        """`version` and `horizon_ms` were known before META was asked for, and never go back.

        That it was set back once is for ever: it will soon be as far again, with another past.
        """
        if meta.incarnation != self.meta.incarnation:
            return REPLACED
        if self.refusal == SET_BACK or meta.version < version or meta.closed_ms < horizon_ms:
            return SET_BACK
        return ""

    def check(self) -> None:
        """Refuse what would read or write in a store that is not ours any more.

        It costs no request: whoever follows the registry learns of it from META.
        """
        if self.refusal:
            raise WrongIncarnation(self.refusal)

    async def _catch_up(self, reading: Reading) -> None:
        """The pair first, then the log up to its version, and only then the closed time."""
        meta, asked_s = reading.meta, self._clock.monotonic_s()
        self._meta = meta
        self.time.observe(now_ms(self._clock), reading.store_ms, asked_s, reading.verdict)
        self.behind_ms_max = max(BEHIND_MS_MAX, 2 * (meta.closed_ms - reading.store_ms))
        if self.view.version < meta.version:
            await self._apply_log(meta.version)
        self.view.adopt(meta.closed_ms, meta.version)
        self._renewed_s = self._asked_s = asked_s

    async def _apply_log(self, upto: int) -> None:
        entries = await self._store.log(self.view.version, upto)
        complete = all(self.view.apply(entry) for entry in entries)
        if not complete or self.view.version < upto:
            self.view.load(await self._store.snapshot())

    async def _hear(self) -> bool:
        """Take news in. True if the horizon is well ahead of now, so that the store can rest."""
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
        """The same order as in `_catch_up`; what is missing in the news is read in the store."""
        complete = all(self.view.apply(entry) for entry in news.entries)
        if not complete or self.view.version < news.version:
            await self._apply_log(news.version)
        self.view.adopt(news.closed_ms, news.version)

    async def keep_ahead(self, leads: bool, reading: Reading | None = None) -> None:
        """Advance the closed time if it falls to this process, and adopt what came of it."""
        reading = reading or await self.renew()
        horizon_ms = self._horizon_ms()
        enough_ms = horizon_ms if leads else self._thin_ms()
        steady_ms = self.time.steady_ms(self._clock.monotonic_s())
        closed_ms = rules.new_closed_time(reading, steady_ms, enough_ms, horizon_ms)
        if closed_ms is None and reading.verdict and reading.verdict.is_due:
            closed_ms = reading.meta.closed_ms  # to renew the evidence
        if closed_ms is not None:
            await self._catch_up(await self._ours(self._store.advance(closed_ms)))

    def _horizon_ms(self) -> int:
        horizon_ms = rules.horizon_for(self._latency.typical_s)
        if self._listener is not None:
            return max(horizon_ms, self._listener.horizon_ms(self.servers))
        return horizon_ms

    def _thin_ms(self) -> int:
        return rules.thin_ms(self._latency.typical_s)

    async def keep_up(self, urgent: bool) -> None:
        """Keep the view fresh, by news if there is any; if it is urgent, by all means."""
        informed = await self._hear()
        due = self._listener is None or self._listener.should_ask(self.servers, informed)
        if due or (urgent and not informed) or self._should_testify():
            await self.keep_ahead(leads=False)

    def _should_testify(self) -> bool:
        """A wrong clock is believed if nobody contradicts it: so look, though there is news."""
        asked_s = self._clock.monotonic_s() - self._asked_s
        return self.meta.evidence is not None and asked_s >= RENEW_S

    async def follow(self) -> None:
        """Keep the view fresh for ever; a store that does not answer is asked again."""
        while True:
            with suppress(HeatsinkError):  # whoever needs the view renews it and is told
                await self.keep_up(urgent=False)
            pause_s = self._listener.pause_s(self.servers) if self._listener else FOLLOW_S
            await self._clock.sleep(pause_s)

    async def tell(self) -> None:
        """Spread the news of what is committed. For the leader; costs nobody anything if lost."""
        if self._teller is not None:
            await self._teller.tell(self.meta)

    @property
    def has_news(self) -> bool:
        return self._listener is not None

    def standby_s(self, at_least_s: float) -> float:
        """How long a coordinator that does not lead waits: longer in a larger fleet with news."""
        return self._listener.standby_s(self.servers, at_least_s) if self._listener else at_least_s

    async def reach(self, time_ms: int, deadline_s: float) -> None:
        """Return when ids of this time may be placed. `deadline_s` is on the monotonic clock."""
        while time_ms >= self.view.horizon_ms:
            await self.renew_shared()
            if time_ms < self.view.horizon_ms:
                return
            ahead_ms = time_ms - self.view.horizon_ms
            is_future = ahead_ms > FUTURE_MS_MAX and time_ms > self.now_ms() + FUTURE_MS_MAX
            if is_future and not self.time.doubt:
                raise InvalidId(
                    f"id is {ahead_ms / 1000:.1f} s from the future: check the clock that made it"
                )
            pause_s = min(max(ahead_ms / 1000, 0.01), FOLLOW_S)
            if self._clock.monotonic_s() + pause_s >= deadline_s:
                cause = self.time.doubt or "the registry's closed time does not advance: retry"
                raise Unavailable(cause)
            await self._clock.sleep(pause_s)

    def is_fresh(self) -> bool:
        """Whether the view was renewed so lately that renewing it again would bring nothing."""
        return self._clock.monotonic_s() - self._renewed_s < FRESH_S

    async def renew_shared(self) -> None:
        """One renewal serves all who wait; it goes on if one of them is cancelled."""
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
        """The key's layout as the store has it now: for reads that reach past the horizon."""
        return await self._store.layout(key)

    async def history(self, limit: int, before: int | None = None) -> list[LogEntry]:
        """The newest entries first, from below a version; very old ones are trimmed away."""
        newest = self.view.version if before is None else min(before - 1, self.view.version)
        entries = await self._store.log(max(newest - limit, 0), newest) if newest > 0 else []
        return entries[::-1]

    async def publish(self, decisions: Sequence[Decision], term: int | None) -> list[Decision]:
        """Commit decisions, many as one version. Returns those that were news, possibly none."""
        published: list[Decision] = []
        async with self._publishing:
            for first in range(0, len(decisions), PER_VERSION_MAX):
                together = decisions[first : first + PER_VERSION_MAX]
                try:
                    published += await self._publish(together, term)
                except Misconfigured as fault:
                    if len(together) == 1 or isinstance(fault, NoTable | NoAccess):
                        raise
                    published += await self._publish_apart(together, term)
        return published

    async def _publish_apart(
        self, decisions: Sequence[Decision], term: int | None
    ) -> list[Decision]:
        """An item in the way of one of them must not be in the way of all; then it is told."""
        published, faults = [], []
        for decision in decisions:
            try:
                published += await self._publish([decision], term)
            except Misconfigured as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return published

    async def _publish(self, decisions: Sequence[Decision], term: int | None) -> list[Decision]:
        takes_s = 0.0
        for _ in range(PUBLISH_ATTEMPTS):
            await self.renew()
            renewed_s = self._clock.monotonic_s()
            news = worth_publishing(decisions, self.view)
            if not news:
                return []
            try:
                await self._store.append(self._entry(news, takes_s), term)
            except Outdated:
                takes_s = max(2 * takes_s, self._clock.monotonic_s() - renewed_s, FOLLOW_S)
                continue
            await self.renew()
            await self._trim()
            return news
        raise Unavailable("the registry changes too fast to be written: retry")

    def _entry(self, decisions: list[Decision], takes_s: float) -> LogEntry:
        """Aim at where the closed time is now, or, if that is too slow, where it will be."""
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
        """Until when somebody leads: by the lease in META, or as news shows, which leaders tell."""
        told_s = self._listener.told_s if self._listener else None
        if told_s is None:
            return self.meta.lease_ms
        silent_s = self._clock.monotonic_s() - told_s
        return max(self.meta.lease_ms, int((self.fleet_now_s() - silent_s + TOLD_S) * 1000))

    @property
    def servers(self) -> int:
        """How many servers report heat, as the leader counts them."""
        return self.meta.servers

    def now_ms(self) -> int:
        """Now by our own clock, or by the store's if ours is far off."""
        return now_ms(self._clock) + self.time.correction_ms

    def past_ms(self) -> int:
        """Up to here time has passed for us, and is closed: also where the closed time is ahead."""
        return min(self.now_ms(), self.view.horizon_ms)

    def fleet_now_s(self) -> float:
        """Now by the store's clock: what servers agree on, however wrong their own clocks are."""
        return self._clock.now_s() + self.time.offset_ms / 1000

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Everybody who waited may have been cancelled: then nobody else takes the error."""
    if not task.cancelled():
        task.exception()
