"""What every `RegistryStore`, `LeaseStore` and `HeatBus` must do."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from heatsink.errors import Deposed, Outdated, Unavailable
from heatsink.heat.heat import Heat, Report
from heatsink.primitives.clock import now_ms
from heatsink.registry.decisions import BUCKETS, PIN, LogEntry, Meta, Snapshot, for_key
from heatsink.registry.layouts import COLD, Layout
from heatsink.stores.stores import Stores
from heatsink.testing import ManualClock

META = Meta(
    closed_ms=1_000,
    version=0,
    term=0,
    beat=0,
    leader="",
    incarnation="i",
    seed=b"\0s",
    id_scheme="",
    secret=b"\0\xffsecret",
)


def entry(version: int, start_ms: int = 2_000, key: str = "k", buckets: int = 4) -> LogEntry:
    return LogEntry(version, 5, start_ms, (for_key(key, BUCKETS, buckets, "hot"),))


def pin(version: int, buckets: int | None) -> LogEntry:
    return LogEntry(version, 5, 0, (for_key("k", PIN, buckets, "launch"),))


@pytest.fixture
async def founded(stores: Stores) -> Stores:
    await stores.registry.found(META)
    return stores


async def test_a_new_store_has_no_registry(stores: Stores) -> None:
    with pytest.raises(Unavailable):
        await stores.registry.meta()


async def test_the_first_to_found_it_decides(founded: Stores, clock: ManualClock) -> None:
    again = await founded.registry.found(msgspec.structs.replace(META, seed=b"other"))
    assert again.meta == META
    assert again.store_ms == now_ms(clock)


async def test_the_closed_time_only_grows(founded: Stores) -> None:
    assert (await founded.registry.advance(3_000)).meta.closed_ms == 3_000
    assert (await founded.registry.advance(2_000)).meta.closed_ms == 3_000
    assert (await founded.registry.meta()).meta.closed_ms == 3_000


async def test_an_append_shows_in_log_layout_and_snapshot(founded: Stores) -> None:
    registry = founded.registry
    await registry.append(entry(1), term=0)
    await registry.append(entry(2, 2_500, buckets=2), term=0)
    await registry.append(pin(3, 6), term=None)
    assert (await registry.meta()).meta.version == 3
    assert await registry.layout("k") == Layout.of([(2_000, 4), (2_500, 2)])
    assert await registry.layout("other") == COLD
    assert await registry.log(0, 3) == [entry(1), entry(2, 2_500, buckets=2), pin(3, 6)]
    assert await registry.log(1, 2) == [entry(2, 2_500, buckets=2)]
    assert await registry.snapshot() == Snapshot(
        3,
        {"k": Layout.of([(2_000, 4), (2_500, 2)])},
        {"k": for_key("k", PIN, 6, "launch")},
        {"k": for_key("k", BUCKETS, 2, "hot")},
    )


async def test_one_version_may_carry_many_keys(founded: Stores) -> None:
    decisions = tuple(for_key(f"k{n}", BUCKETS, n, "hot") for n in range(2, 50))
    await founded.registry.append(LogEntry(1, 5, 2_000, decisions), term=0)
    assert (await founded.registry.layout("k7")).buckets == 7
    assert len((await founded.registry.snapshot()).layouts) == 48


@pytest.mark.parametrize(
    ("bad", "term", "error"),
    [
        (entry(1), 5, Deposed),
        (entry(1), None, Deposed),
        (entry(2), 0, Outdated),
        (entry(1, start_ms=999), 0, Outdated),
        (entry(1, start_ms=6_001), 0, Outdated),
    ],
)
async def test_a_refused_append_changes_nothing(
    founded: Stores, bad: LogEntry, term: int | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await founded.registry.append(bad, term)
    assert (await founded.registry.meta()).meta == META
    assert await founded.registry.log(0, 9) == []
    assert await founded.registry.layout("k") == COLD


async def test_a_pin_is_taken_back(founded: Stores) -> None:
    await founded.registry.append(pin(1, 6), None)
    await founded.registry.append(pin(2, None), None)
    assert (await founded.registry.snapshot()).pins == {}


async def test_trimming_forgets_the_log_but_not_what_it_said(founded: Stores) -> None:
    for version in (1, 2, 3):
        await founded.registry.append(entry(version, 2_000 + version), 0)
    await founded.registry.trim(3)
    assert [e.version for e in await founded.registry.log(0, 3)] == [3]
    assert len((await founded.registry.layout("k")).later) == 3


async def test_the_log_comes_in_order_however_it_is_stored(founded: Stores) -> None:
    registry, versions = founded.registry, range(1, 21)
    for version in versions:
        await registry.append(pin(version, version), None)
    assert [e.version for e in await registry.log(0, 20)] == list(versions)
    assert [e.version for e in await registry.log(6, 17)] == list(versions[6:17])
    await registry.trim(12)
    assert [e.version for e in await registry.log(0, 20)] == list(versions[11:])


async def test_one_of_two_rivals_leads(founded: Stores) -> None:
    seen = (await founded.lease.meta()).meta
    bids = [founded.lease.lead(seen, name, 5) for name in ("a", "b")]
    results = await asyncio.gather(*bids, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Meta", "Outdated"]
    assert (await founded.registry.meta()).meta.term == 1


async def test_a_beat_shows_that_the_leader_lives(founded: Stores) -> None:
    meta = await founded.lease.lead(META, "a", 5)
    assert (await founded.registry.meta()).meta.lease_ms == meta.lease_ms == 5
    await founded.lease.beat(meta.term, 7, 6)
    found = (await founded.registry.meta()).meta
    assert (found.servers, found.lease_ms) == (7, 6)
    with pytest.raises(Outdated):
        await founded.lease.lead(meta, "b", 5)
    with pytest.raises(Deposed):
        await founded.lease.beat(meta.term - 1, 1, 5)


async def test_restoring_replaces_everything(founded: Stores) -> None:
    await founded.registry.append(entry(1), 0)
    await founded.registry.append(pin(2, 6), None)
    layouts = {"x": Layout.of([(10, 3)])}
    reasons = {"x": for_key("x", BUCKETS, 3, "rebuilt")}
    meta = msgspec.structs.replace(META, version=9, incarnation="new", secret=b"another")
    await founded.registry.restore(meta, Snapshot(9, layouts, {}, reasons))
    assert await founded.registry.snapshot() == Snapshot(9, layouts, {}, reasons)
    assert (await founded.registry.meta()).meta == meta
    assert await founded.registry.log(0, 9) == []


async def test_reports_arrive_once_and_in_order(stores: Stores) -> None:
    reports = [Report("a", n, 1.0, True, 4, {"k": Heat(n, n)}) for n in range(5)]
    for report in reports:
        await stores.bus.send(report)
    assert await stores.bus.receive() == reports
    assert await stores.bus.receive() == []


async def test_reports_that_nobody_takes_do_not_pile_up(stores: Stores) -> None:
    await asyncio.gather(*(stores.bus.send(Report("a", n, 1.0, True, 1, {})) for n in range(1_200)))
    assert len(await stores.bus.receive()) <= 1_000
