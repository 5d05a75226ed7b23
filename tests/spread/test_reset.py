"""A closed time that is taken back: whatever was placed before is found in the same place for ever.

Stores are made of random epochs, rows and tokens on both sides of the new closed time, in a real
file; then the closed time is reset, and random epochs follow by the rules.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatsink.errors import Outdated, TokenExpired
from heatsink.primitives.ids import Uuid7
from heatsink.primitives.keys import partition_of, seeded_hash
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.closed_time import FAR_AHEAD_MS, check_append, evidence_of
from heatsink.registry.decisions import BUCKETS, PIN, LogEntry, Meta, Snapshot, for_key
from heatsink.registry.layouts import EPOCHS_MAX, Layout
from heatsink.spread.fsck import OtherSubjects, Reset, check, reset_closed_time, reset_layout
from heatsink.spread.store import Row, Running
from heatsink.stores.sqlite.alone import SqliteAlone
from heatsink.stores.sqlite.engine import SCHEMA, open_file
from heatsink.testing import ManualClock

NOW_MS = 1_800_000_000_000
AHEAD_MS = NOW_MS + 2 * 86_400_000
META = Meta(AHEAD_MS, 7, 3, 9, "somebody", "old", b"seed", "uuid7")
HASH = seeded_hash(META.seed)
KEYS = ("conv", "a#b%")
SPAN_MS = 1_000

# Times are drawn from two short spans, the past and the future, so that they meet each other.
times = st.one_of(
    st.integers(NOW_MS - SPAN_MS, NOW_MS - 1), st.integers(AHEAD_MS - SPAN_MS, AHEAD_MS - 1)
)
laid_out = st.lists(st.tuples(times, st.integers(1, 5)), max_size=6, unique_by=lambda e: e[0]).map(
    lambda epochs: Layout.of(sorted(epochs))
)
traces = st.lists(st.tuples(st.sampled_from(KEYS), times), max_size=25)
steps = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(0, 6_000), st.integers(1, 5)), max_size=8
)

POSTS = Subject(Kind.POSTS, "ada").text


def raw_of(time_ms: int, number: int) -> bytes:
    return Uuid7().from_parts(time_ms, number, number)


def place(layout: Layout, key: str, raw: bytes) -> str:
    return partition_of(key, layout.epoch_at(Uuid7().time_ms(raw)).bucket(HASH(raw)))


class Store:
    """A file with rows and tokens where its layouts put them."""

    def __init__(self, folder: str, before: dict[str, Layout]) -> None:
        self.clock = ManualClock(NOW_MS / 1000)
        file = Path(folder) / "x.db"
        open_file(file, SCHEMA).close()
        self.alone = SqliteAlone.open(file, self.clock)
        self.alone._connection.execute("PRAGMA synchronous=OFF")
        self.registry, self.log = self.alone.stores.registry, self.alone.stores.log
        self.counters = self.alone.stores.counters
        self.layouts = before

    async def found(self) -> None:
        reasons = {key: for_key(key, BUCKETS, 1, "hot") for key in self.layouts}
        pins = {"conv": for_key("conv", PIN, 2, "launch")}
        await self.registry.restore(META, Snapshot(META.version, self.layouts, pins, reasons))

    async def put(self, key: str, raw: bytes) -> None:
        epoch = self.layouts[key].epoch_at(Uuid7().time_ms(raw))
        row = Row(raw, b"", epoch.start_ms, epoch.buckets)
        await self.log.put(place(self.layouts[key], key, raw), row)

    async def add(self, key: str, raw: bytes, layout: Layout) -> int | None:
        time_ms = Uuid7().time_ms(raw)
        return await self.counters.add(place(layout, key, raw), raw, time_ms, 1)

    async def reset(self, elsewhere: OtherSubjects | None = None) -> Reset:
        evidence = evidence_of(self.clock, NOW_MS)
        parts = (self.registry, self.counters, evidence, elsewhere or OtherSubjects(), "new")
        return await reset_closed_time(self.alone, *parts)


async def later_epochs(store: Store, wanted: list[tuple[str, int, int]]) -> None:
    """As leaders would append them, with the closed time going on between."""
    for key, passed_ms, buckets in wanted:
        meta = (await store.registry.meta()).meta
        meta = (await store.registry.advance(meta.closed_ms + passed_ms)).meta
        entry = LogEntry(
            meta.version + 1, 0, meta.closed_ms, (for_key(key, BUCKETS, buckets, "hot"),)
        )
        try:
            await store.registry.append(entry, meta.term)
        except Outdated:
            assert (await store.registry.layout(key)).epochs[-1].start_ms >= meta.closed_ms


@settings(max_examples=80, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(KEYS, laid_out)), traces, traces, steps)
def test_what_was_placed_before_is_found_in_its_place_for_ever(
    before: dict[str, Layout],
    rows: list[tuple[str, int]],
    tokens: list[tuple[str, int]],
    steps: list[tuple[str, int, int]],
) -> None:
    async def play() -> None:
        with TemporaryDirectory() as folder:
            store = Store(folder, before)
            await store.found()
            written = [(key, raw_of(time_ms, n)) for n, (key, time_ms) in enumerate(rows)]
            added = [(key, raw_of(time_ms, 99 + n)) for n, (key, time_ms) in enumerate(tokens)]
            for key, raw in written:
                await store.put(key, raw)
            for key, raw in added:
                await store.add(key, raw, before[key])
            reset = await store.reset()
            assert NOW_MS < reset.closed_ms <= NOW_MS + FAR_AHEAD_MS
            await expect_floors(store, reset, [*rows, *tokens])
            await later_epochs(store, steps)
            for key, raw in written:
                partition = place(await store.registry.layout(key), key, raw)
                assert await store.log.get(partition, raw)
            for key, raw in added:  # sent again: it has been counted
                assert await store.add(key, raw, await store.registry.layout(key)) == 1
            found = await check(store.log, store.counters, store.registry, Uuid7())
            assert found.clean, found.problems
            await store.alone.close()

    asyncio.run(play())


async def expect_floors(store: Store, reset: Reset, traces: list[tuple[str, int]]) -> None:
    """Keys with traces from beyond take no epoch before the last of them, all others at once."""
    meta = (await store.registry.meta()).meta
    assert (meta.closed_ms, meta.incarnation, meta.leader) == (reset.closed_ms, "new", "")
    held = {key for key, time_ms in traces if time_ms >= reset.closed_ms}
    assert reset.held_keys == len(held)
    for key in KEYS:
        layout = await store.registry.layout(key)
        newest_ms = max((time_ms for name, time_ms in traces if name == key), default=0)
        start_ms = max(newest_ms, reset.closed_ms)
        entry = LogEntry(meta.version + 1, 0, start_ms, (for_key(key, BUCKETS, 9, "hot"),))
        closed = Meta(start_ms, meta.version, meta.term, 0, "", "", b"", "")
        if key in held:
            with pytest.raises(Outdated):
                check_append(entry, meta.term, closed, {key: layout})
        else:
            check_append(entry, meta.term, closed, {key: layout})


@pytest.fixture
async def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path), {})
    await made.found()
    return made


async def test_a_layout_that_places_what_is_under_another_key_gets_that_ones_floor(
    store: Store,
) -> None:
    store.layouts = {POSTS: Layout.of()}
    await store.put(POSTS, raw_of(AHEAD_MS - 5, 1))
    await store.reset(OtherSubjects(follow=((Kind.AUTHOR, Kind.POSTS),)))
    assert (await store.registry.layout(Subject(Kind.AUTHOR, "ada").text)).pairs[-1] == (
        AHEAD_MS - 4,
        1,
    )


async def test_a_layout_whose_rows_are_not_in_the_store_waits_for_the_old_closed_time(
    store: Store,
) -> None:
    store.layouts = {Subject(Kind.TABLE, "chat/x").text: Layout.of([(NOW_MS - 9, 4)])}
    await store.found()
    await store.reset(OtherSubjects(unseen=(Kind.TABLE,)))
    layout = await store.registry.layout(Subject(Kind.TABLE, "chat/x").text)
    assert layout == Layout.of([(NOW_MS - 9, 4), (AHEAD_MS, 4)])


async def test_a_sealed_counter_opens_if_nothing_is_of_the_time_between(store: Store) -> None:
    await store.add("likes", raw_of(AHEAD_MS - 5, 1), Layout.of())
    await store.counters.fold(["likes"], "likes", AHEAD_MS - 86_400_000)
    reset = await store.reset()
    assert reset.sealed == 0
    assert await store.add("likes", raw_of(reset.closed_ms, 2), Layout.of()) is None
    with pytest.raises(TokenExpired):
        await store.add("likes", raw_of(reset.closed_ms - 1, 3), Layout.of())
    assert (await store.counters.totals(["likes"]))[0].value == 2


async def test_a_sealed_counter_stays_sealed_if_somebody_lived_in_the_time_between(
    store: Store,
) -> None:
    """A token of that time may have been forgotten, and be sent again."""
    sealed_ms = AHEAD_MS - 86_400_000
    await store.counters.fold(["likes"], "likes", sealed_ms)
    store.layouts = {"conv": Layout.of()}
    await store.put("conv", raw_of(sealed_ms - 3_600_000, 1))
    reset = await store.reset()
    assert (reset.sealed, reset.held_keys) == (1, 2)
    with pytest.raises(TokenExpired):
        await store.add("likes", raw_of(sealed_ms - 1, 2), Layout.of())
    assert (await store.registry.layout("likes")).epochs[-1].start_ms == sealed_ms


async def test_running_totals_from_beyond_are_counted_for_ever(store: Store) -> None:
    wide = Layout.of([(AHEAD_MS - 50, 3)])
    store.layouts = {"views": wide}
    await store.found()
    raw = raw_of(AHEAD_MS - 20, 1)
    await store.counters.raise_to(place(wide, "views", raw), raw, AHEAD_MS - 20, Running(7, 0))
    await store.reset()
    layout = await store.registry.layout("views")
    assert layout == Layout.of([(AHEAD_MS - 50, 3), (AHEAD_MS - 19, 3)])
    assert (
        sum(total.writers for total in await store.counters.totals(layout.partitions("views"))) == 7
    )


async def test_all_that_is_reset_is_reset_at_once(store: Store, tmp_path: Path) -> None:
    """What fails half way leaves the store as it was."""
    await store.counters.fold(["likes"], "likes", AHEAD_MS - 86_400_000)
    store.alone._connection.execute("DROP TABLE reports")
    with pytest.raises(Exception, match="reports"):
        await store.reset()
    await store.alone.close()
    with closing(sqlite3.connect(tmp_path / "x.db")) as file:
        assert file.execute("SELECT sealed_ms FROM shares").fetchone() == (AHEAD_MS - 86_400_000,)
        assert b"somebody" in file.execute("SELECT meta FROM meta").fetchone()[0]


def test_the_last_epoch_that_a_key_may_have_keeps_its_high_water_mark() -> None:
    many = Layout.of((n + 1, 4 if n == 7 else 1 + n % 2) for n in range(EPOCHS_MAX - 2))
    floored = reset_layout(many, AHEAD_MS, NOW_MS)
    assert floored.full
    assert floored.pairs[-1] == (AHEAD_MS + 1, 4)


def test_epochs_from_beyond_that_placed_nothing_are_dropped() -> None:
    layout = Layout.of([(NOW_MS - 5, 2), (AHEAD_MS, 3), (AHEAD_MS + 9, 4)])
    assert reset_layout(layout, 0, NOW_MS) == Layout.of([(NOW_MS - 5, 2)])
    kept = Layout.of([(NOW_MS - 5, 2), (AHEAD_MS, 3), (AHEAD_MS + 6, 4)])
    assert reset_layout(layout, AHEAD_MS + 5, NOW_MS) == kept
