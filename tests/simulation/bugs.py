"""Bugs that somebody might write, each planted into the production code for one run.

They show that the simulation bites: every one of them must be found within 200 seeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import msgspec
from msgspec import structs

from heatsink.errors import Retryable
from heatsink.primitives.clock import now_ms
from heatsink.primitives.keys import partition_of
from heatsink.registry import closed_time as rules
from heatsink.registry.closed_time import StoreTime, Timekeeper, evidence_of
from heatsink.registry.decisions import Evidence, LogEntry, Meta, Reading, Verdict, View
from heatsink.registry.layouts import Layout
from heatsink.registry.news import ENTRY, MAC_BYTES, PAIR, News, NewsListener, Seal, Teller
from heatsink.registry.registry import Registry
from heatsink.spread import fsck, log
from heatsink.spread.counters import _Cell
from heatsink.spread.gather import Gather
from heatsink.spread.log import Log, Receipt, entry_of
from heatsink.spread.routing import PastHorizon, Router
from heatsink.spread.store import Row
from heatsink.stores.memory import data as memory_registry
from heatsink.stores.memory.data import MemoryCounters, MemoryLog
from heatsink.stores.sqlite.alone import SqliteAlone
from tests.planted import Bugs

BUGS = bug = Bugs()
MACHINE_BUGS = machine_bug = Bugs()  # found on one machine, with SQLite's stores
CURE_BUGS = cure_bug = Bugs()  # found where a store that was moved ahead is cured
FLEET_CURE_BUGS = fleet_cure_bug = Bugs()  # the same, in a large fleet that gets news from Redis


@bug
def routing_by_the_count_of_now() -> Iterator[None]:
    """The seeds' `id % N`: a retry after a change of N goes elsewhere."""

    def place(self: Router, key: str, raw: bytes, _time_ms: int) -> Any:
        layout = self._view.layout(key)
        epoch = layout.epochs[-1]
        bucket = None if epoch.buckets == 1 else int.from_bytes(raw, "big") % epoch.buckets
        return partition_of(key, bucket), epoch

    with patch.object(Router, "place", place):
        yield


@bug
def the_bare_key_forgotten() -> Iterator[None]:
    """Once a key has buckets, nobody reads what was written before it had any."""
    learn = Gather.learn

    def forget(self: Gather, layout: Layout) -> None:
        learn(self, layout)
        if layout.buckets > 1:
            self._unopened = [epoch for epoch in self._unopened if epoch.buckets > 1]

    with patch.object(Gather, "learn", forget):
        yield


@bug
def an_epoch_that_ignores_the_closed_time() -> Iterator[None]:
    def start_now(_meta: Any, now_ms: int, layouts: list[Layout]) -> int:
        return max([now_ms, *(layout.epochs[-1].start_ms + 1 for layout in layouts)])

    with (
        patch.object(rules, "_check_epoch", lambda *_: None),
        patch.object(rules, "start_of_epochs", start_now),
    ):
        yield


@bug
def the_closed_time_adopted_before_the_log() -> Iterator[None]:
    catch_up = Registry._catch_up

    async def adopt_first(self: Registry, reading: Reading) -> None:
        self.view.horizon_ms = max(self.view.horizon_ms, reading.meta.closed_ms)
        await catch_up(self, reading)

    with patch.object(Registry, "_catch_up", adopt_first):
        yield


@bug
def version_and_closed_time_read_apart() -> Iterator[None]:
    """The log up to one moment, the closed time of a later one."""
    catch_up = Registry._catch_up

    async def torn(self: Registry, reading: Reading) -> None:
        await catch_up(self, reading)
        later = (await self._store.meta()).meta
        self.view.horizon_ms = max(self.view.horizon_ms, later.closed_ms)

    with patch.object(Registry, "_catch_up", torn):
        yield


@bug
def a_reader_that_trusts_an_expired_horizon() -> Iterator[None]:
    with patch.object(Log, "_passes_horizon", lambda *_: False):
        yield


@bug
def get_without_renewal() -> Iterator[None]:
    async def impatient(self: Log, key: str, id: Any) -> Any:
        raw, time_ms = self._router.id_from(id)
        try:
            partition, _ = self._router.place(key, raw, time_ms)
        except PastHorizon:
            return None
        row = await self._store.get(partition, raw)
        return None if row is None else entry_of(row, self._scheme)

    with patch.object(Log, "get", impatient):
        yield


@bug
def a_writer_past_its_horizon() -> Iterator[None]:
    def place(self: Router, key: str, raw: bytes, time_ms: int) -> Any:
        epoch = self._view.layout(key).epoch_at(time_ms)
        return partition_of(key, epoch.bucket(self._hash(raw))), epoch

    with patch.object(Router, "place", place):
        yield


@bug
def two_leaders_without_a_fence() -> Iterator[None]:
    check = rules.check_append

    def unfenced(entry: LogEntry, _term: int | None, meta: Any, layouts: Any) -> None:
        check(entry, meta.term, meta, layouts)

    with patch.object(memory_registry, "check_append", unfenced):
        yield


@bug
def a_retry_that_mints_a_new_id() -> Iterator[None]:
    async def append(self: Log, key: str, body: bytes, *, id: Any = None) -> Receipt:
        given = None if id is None else self._router.id_from(id)
        deadline_s = self._backoff.deadline_s()
        for _ in range(5):
            raw, time_ms = given or (await self._router.fresh_later(key, deadline_s))[:2]
            given = None
            place = self._router.place_soon(key, raw, time_ms, deadline_s)
            partition, epoch = await place
            try:
                await self._store.put(partition, Row(raw, body, epoch.start_ms, epoch.buckets))
            except Retryable:
                continue
            return Receipt(raw, self._scheme, key)
        raise Retryable("gave up")

    with patch.object(Log, "append", append):
        yield


@bug
def a_retry_that_takes_its_own_row_for_an_old_one() -> Iterator[None]:
    own = log._is_own

    def stranger(*evidence: Any) -> bool:
        own(*evidence)
        return False

    with patch.object(log, "_is_own", stranger):
        yield


@bug
def a_counter_that_adds_blindly_on_retry() -> Iterator[None]:
    async def add(self: MemoryCounters, partition: str, _t: bytes, _ms: int, amount: int) -> None:
        self._share(partition).value += amount

    with patch.object(MemoryCounters, "add", add):
        yield


@bug
def buffered_totals_that_change_their_name_when_unsure() -> Iterator[None]:
    """What may have landed under one name is written again under another."""
    give_back = _Cell.give_back

    def forget(self: _Cell, error: Exception) -> None:
        give_back(self, error)
        self.writer = None

    with patch.object(_Cell, "give_back", forget):
        yield


@bug
def a_gap_in_the_log_passed_over() -> Iterator[None]:
    apply = View.apply

    def jump(self: View, entry: LogEntry) -> bool:
        self.version = max(self.version, entry.version - 1)
        return apply(self, entry)

    with patch.object(View, "apply", jump):
        yield


@bug
def a_delete_without_a_tombstone() -> Iterator[None]:
    async def remove(self: MemoryLog, partition: str, tombstone: Row) -> bool:
        rows = self._partitions.get(partition)
        if rows is None or rows.rows.pop(tombstone.raw, None) is None:
            return False
        rows.order.remove(tombstone.raw)
        return True

    with patch.object(MemoryLog, "delete", remove):
        yield


@bug
def a_dry_bucket_taken_for_empty() -> Iterator[None]:
    feed = Gather.feed

    def satisfied(self: Gather, partition: str, ask: Any, rows: list[Row]) -> None:
        feed(self, partition, ask, rows)
        self._exhausted.add(partition)

    with patch.object(Gather, "feed", satisfied):
        yield


@bug
def a_clock_a_year_ahead_believed() -> Iterator[None]:
    def believe(self: Timekeeper, wall_ms: int, _: int, monotonic_s: float, *_verdict: Any) -> None:
        self.correction_ms = self.offset_ms = 0
        self._observed = (wall_ms, monotonic_s)

    with patch.object(Timekeeper, "observe", believe):
        yield


@bug
def only_the_newest_epochs_buckets_read() -> Iterator[None]:
    """Reads trust the present number of buckets, as the seeds' readers do."""
    learn = Gather.learn

    def newest(self: Gather, layout: Layout) -> None:
        learn(self, layout)
        self._unopened = [epoch for epoch in self._unopened if epoch == layout.epochs[-1]] or (
            self._unopened[:1]
        )

    with patch.object(Gather, "learn", newest):
        yield


@bug
def a_pair_written_to_redis_in_two_commands() -> Iterator[None]:
    """Between them a reader sees the new closed time with the old version."""
    tell = Teller._tell

    async def torn(self: Teller, meta: Meta, notice: bytes) -> None:
        if self._told is not None and self._told < meta.version:
            await tell(self, structs.replace(meta, version=self._told), notice)
            await asyncio.sleep(0.02)
        await tell(self, meta, notice)

    with patch.object(Teller, "_tell", torn):
        yield


@bug
def a_wiped_redis_that_is_believed() -> Iterator[None]:
    """No entries in Redis is taken for nothing having happened."""
    adopt = Registry._adopt

    async def believe(self: Registry, news: News) -> None:
        if not news.entries:
            self.view.version = max(self.view.version, news.version)
        await adopt(self, news)

    with patch.object(Registry, "_adopt", believe):
        yield


@bug
def news_of_another_incarnation_believed() -> Iterator[None]:
    opened = Seal.opened_pair

    def credulous(self: Seal, sealed: bytes) -> News | None:
        return _unchecked(sealed) if self.is_foreign(sealed) else opened(self, sealed)

    with patch.object(Seal, "opened_pair", credulous):
        yield


def _unchecked(sealed: bytes) -> News:
    closed_ms, version, _ = sealed.split(b"|", 2)
    return News(int(closed_ms), int(version))


@bug
def news_believed_without_its_mac() -> Iterator[None]:
    """The incarnation is looked at, as it is written there, and nothing else."""

    def credulous(self: Seal, sealed: bytes) -> News | None:
        return None if self.is_foreign(sealed) else _unchecked(sealed)

    with patch.object(Seal, "opened_pair", credulous):
        yield


@bug
def entries_of_the_news_believed_without_their_mac() -> Iterator[None]:
    def credulous(_: Seal, sealed: bytes) -> LogEntry:
        return msgspec.msgpack.decode(sealed[MAC_BYTES:], type=LogEntry)

    with patch.object(Seal, "opened_entry", credulous):
        yield


def _with_mac_of(part: Callable[[bytes, bytes], bytes]) -> Iterator[None]:
    """The MAC, of leader and followers alike, binds only a part of what it should."""
    mac = Seal._mac

    def partial(self: Seal, kind: bytes, body: bytes) -> bytes:
        return mac(self, kind, part(kind, body))

    with patch.object(Seal, "_mac", partial):
        yield


@bug
def a_mac_that_does_not_bind_the_closed_time() -> Iterator[None]:
    yield from _with_mac_of(lambda kind, body: body.split(b"|", 1)[1] if kind == PAIR else body)


@bug
def a_mac_that_does_not_bind_the_entry() -> Iterator[None]:
    yield from _with_mac_of(lambda kind, body: b"" if kind == ENTRY else body)


@bug
def news_far_ahead_of_the_stores_time_believed() -> Iterator[None]:
    """The MAC is all that is looked at: then a secret that leaked is the end of every bound."""
    with patch.object(NewsListener, "_is_too_far", lambda *_: False):
        yield


@bug
def a_gap_in_the_news_passed_over() -> Iterator[None]:
    async def jump(self: Registry, news: News) -> None:
        for entry in news.entries:
            self.view.version = max(self.view.version, entry.version - 1)
            self.view.apply(entry)
        if self.view.version < news.version:
            await self._apply_log(news.version)
        self.view.adopt(news.closed_ms, news.version)

    with patch.object(Registry, "_adopt", jump):
        yield


@bug
def the_closed_time_of_the_news_adopted_before_its_log() -> Iterator[None]:
    adopt = Registry._adopt

    async def adopt_first(self: Registry, news: News) -> None:
        self.view.horizon_ms = max(self.view.horizon_ms, news.closed_ms)
        await adopt(self, news)

    with patch.object(Registry, "_adopt", adopt_first):
        yield


@bug
def news_told_before_the_commit() -> Iterator[None]:
    """The leader spreads a closed time that it has not written yet, and may never write."""
    tell = Teller.tell

    async def hasty(self: Teller, meta: Meta, notice: bytes) -> None:
        await tell(self, structs.replace(meta, closed_ms=meta.closed_ms + 400), notice)

    with patch.object(Teller, "tell", hasty):
        yield


@machine_bug
def a_clock_ahead_believed_within_one_boot() -> Iterator[None]:
    """The time of a file is what the clock of whoever asks says, as it was before evidence."""

    def believe(self: StoreTime, _known: Evidence | None) -> Verdict:
        time_ms = now_ms(self._clock)
        return Verdict(time_ms, evidence_of(self._witness, time_ms), is_due=True)

    with patch.object(StoreTime, "judge", believe):
        yield


@machine_bug
def evidence_renewed_by_those_who_disagree() -> Iterator[None]:
    """Whoever advances the closed time testifies for the clock that it was told not to go by."""
    judge = StoreTime.judge

    def testify(self: StoreTime, known: Evidence | None) -> Verdict:
        mine = evidence_of(self._witness, now_ms(self._clock))
        return structs.replace(judge(self, known), testimony=mine)

    with patch.object(StoreTime, "judge", testify):
        yield


@machine_bug
def a_jump_between_the_look_and_the_advance() -> Iterator[None]:
    """The time is corrected by what was seen a moment ago, the clock is read now."""

    def now(self: Timekeeper, _monotonic_s: float) -> int:
        wall_ms = now_ms(self.clock)  # type: ignore[attr-defined]
        return wall_ms + self.correction_ms

    make = Registry.__init__

    def with_clock(self: Registry, store: Any, clock: Any, *others: Any) -> None:
        make(self, store, clock, *others)
        self.time.clock = clock  # type: ignore[attr-defined]

    with patch.object(Timekeeper, "steady_ms", now), patch.object(Registry, "__init__", with_clock):
        yield


@cure_bug
def a_cure_without_an_epoch_floor() -> Iterator[None]:
    """A key that holds rows from beyond the new closed time gets new epochs below them."""

    def no_floor(layout: Layout, newest_ms: int, closed_ms: int) -> Layout:
        needed_ms = max(newest_ms, closed_ms - 1)
        return Layout.of(pair for pair in layout.pairs if pair[0] <= needed_ms)

    with patch.object(fsck, "reset_layout", no_floor):
        yield


@fleet_cure_bug
def a_cure_under_the_old_incarnation() -> Iterator[None]:
    """Redis still tells the closed time of before, and nobody knows that it is over."""
    reset = SqliteAlone.reset

    async def same(self: SqliteAlone, meta: Meta, *others: Any) -> None:
        before = (await self.stores.registry.meta()).meta
        await reset(self, structs.replace(meta, incarnation=before.incarnation), *others)

    with patch.object(SqliteAlone, "reset", same):
        yield


@cure_bug
def rows_from_beyond_the_horizon_not_looked_for() -> Iterator[None]:
    """`get` takes what is past the horizon for not yet placed, though its key is closed there."""
    with patch.object(View, "knows", lambda self, _key, time_ms: time_ms < self.horizon_ms):
        yield


@cure_bug
def a_cure_that_leaves_counters_sealed() -> Iterator[None]:
    """Counters that were folded ahead refuse every add until that time has come."""
    reset = SqliteAlone.reset

    async def still_sealed(self: SqliteAlone, meta: Meta, snapshot: Any, _opened: Any) -> None:
        await reset(self, meta, snapshot, [])

    with patch.object(SqliteAlone, "reset", still_sealed):
        yield
