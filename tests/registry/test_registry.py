from __future__ import annotations

from unittest.mock import patch

import msgspec
import pytest

from heatsink.errors import (
    Deposed,
    InvalidId,
    InvalidSetting,
    Misconfigured,
    Unavailable,
    WrongIncarnation,
)
from heatsink.primitives.chance import SECRET_BYTES
from heatsink.primitives.ids import Snowflake, Ulid
from heatsink.registry import registry as module
from heatsink.registry.decisions import BUCKETS, PIN, LogEntry, Meta, Reading, Snapshot, for_key
from heatsink.registry.layouts import EPOCHS_MAX, Layout
from heatsink.registry.registry import Registry
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.testing import ManualClock, SkewedClock, run_on_virtual_time

FOUNDING = Meta(
    closed_ms=0,
    version=0,
    term=0,
    beat=0,
    leader="",
    incarnation="i",
    seed=b"s",
    id_scheme="uuid7",
    secret=bytes(SECRET_BYTES),
)


@pytest.fixture
def store(clock: ManualClock) -> MemoryRegistry:
    return MemoryRegistry(clock)


async def opened(store: MemoryRegistry, clock: ManualClock) -> Registry:
    registry = Registry(store, clock)
    await registry.open(FOUNDING)
    return registry


async def leading(store: MemoryRegistry, clock: ManualClock) -> tuple[Registry, int]:
    registry = await opened(store, clock)
    meta = await store.lead(registry.meta, "me", 0)
    return registry, meta.term


async def test_opening_moves_the_horizon_ahead_of_now(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry = await opened(store, clock)
    assert registry.view.horizon_ms == clock.now_s() * 1000 + 500


async def test_a_decision_reaches_another_process_with_its_reason(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry, term = await leading(store, clock)
    other = await opened(store, clock)
    decision = for_key("k", BUCKETS, 5, "4,000 writes/s")
    assert await registry.publish([decision], term) == [decision]
    await other.renew()
    assert other.view.layout("k").buckets == 5
    assert other.view.reasons["k"].reason == "4,000 writes/s"
    assert other.view.layout("k").epochs[-1].start_ms >= registry.meta.closed_ms


async def test_what_is_in_the_way_of_one_decision_lets_the_others_pass(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry, term = await leading(store, clock)
    decisions = [for_key(key, BUCKETS, 5, "hot") for key in "abc"]
    append, broken = store.append, {"b"}

    async def append_what_is_whole(entry: LogEntry, term: int | None) -> None:
        if broken & {decision.key for decision in entry.decisions}:
            raise Misconfigured("an item is no layout")
        await append(entry, term)

    with patch.object(store, "append", append_what_is_whole):
        with pytest.raises(Misconfigured, match="an item is no layout"):
            await registry.publish(decisions, term)
        assert [registry.view.layout(key).buckets for key in "abc"] == [5, 1, 5]
        broken.clear()
        assert await registry.publish(decisions, term) == decisions[1:2]


async def test_what_was_in_the_way_and_is_gone_is_published_and_told(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry, term = await leading(store, clock)
    decisions = [for_key(key, BUCKETS, 5, "hot") for key in "ab"]
    append, faults = store.append, [Misconfigured("an item is no layout")]

    async def append_at_last(entry: LogEntry, term: int | None) -> None:
        if faults:
            raise faults.pop()
        await append(entry, term)

    with patch.object(store, "append", append_at_last):
        assert await registry.publish(decisions, term) == decisions


async def test_what_holds_already_is_not_published_again(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry, term = await leading(store, clock)
    await registry.publish([for_key("k", BUCKETS, 5, "hot")], term)
    assert await registry.publish([for_key("k", BUCKETS, 5, "still hot")], term) == []
    assert await registry.publish([for_key("k", PIN, None, "unpin")], None) == []
    assert registry.view.version == 1


async def test_very_many_decisions_become_several_versions(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry, term = await leading(store, clock)
    decisions = [for_key(f"k{n}", BUCKETS, 2, "hot") for n in range(100)]
    assert await registry.publish(decisions, term) == decisions
    assert registry.view.version == 3
    assert len(registry.view.layouts) == 100


async def test_the_newest_decisions_come_first(store: MemoryRegistry, clock: ManualClock) -> None:
    registry = await opened(store, clock)
    assert await registry.history(5) == []
    for number in range(4):
        await registry.publish([for_key("k", PIN, number + 1, f"reason {number}")], term=None)
    newest = await registry.history(3)
    assert [entry.version for entry in newest] == [4, 3, 2]
    assert newest[0].decisions[0].reason == "reason 3"
    assert [entry.version for entry in await registry.history(3, before=2)] == [1]
    assert await registry.history(3, before=1) == []


async def test_a_deposed_leader_cannot_publish(store: MemoryRegistry, clock: ManualClock) -> None:
    registry, term = await leading(store, clock)
    await store.lead((await store.meta()).meta, "another", 0)
    with pytest.raises(Deposed):
        await registry.publish([for_key("k", BUCKETS, 5, "hot")], term)
    assert (await store.layout("k")).buckets == 1


async def test_a_view_that_fell_behind_the_trimmed_log_loads_a_snapshot(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry, term = await leading(store, clock)
    late = await opened(store, clock)
    with patch.object(module, "LOG_KEEP", 2):
        for buckets in (2, 3, 4, 5, 6, 7):
            await registry.publish([for_key("k", BUCKETS, buckets, "hot")], term)
    assert [entry.version for entry in await store.log(0, 6)] == [4, 5, 6]
    await late.renew()
    assert late.view.layout("k") == registry.view.layout("k")


async def test_the_last_epoch_is_the_high_water_mark(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry, term = await leading(store, clock)
    for n in range(EPOCHS_MAX - 2):
        await registry.publish([for_key("k", BUCKETS, 4 if n % 2 else 8, "restless")], term)
    await registry.publish([for_key("k", BUCKETS, 2, "calm")], term)
    layout = registry.view.layout("k")
    assert (layout.full, layout.buckets) == (True, 8)
    assert await registry.publish([for_key("k", BUCKETS, 1, "calm")], term) == []


async def test_a_restored_backup_is_refused(store: MemoryRegistry, clock: ManualClock) -> None:
    registry = await opened(store, clock)
    meta = msgspec.structs.replace(registry.meta, incarnation="restored")
    await store.restore(meta, await store.snapshot())
    with pytest.raises(WrongIncarnation, match="reconnect"):
        await registry.renew()


async def test_another_kind_of_ids_is_refused(store: MemoryRegistry, clock: ManualClock) -> None:
    await opened(store, clock)
    for other in (Ulid(), Snowflake(), Snowflake(epoch_ms=5)):
        with pytest.raises(InvalidSetting, match="holds uuid7 ids"):
            await Registry(store, clock).open(
                msgspec.structs.replace(FOUNDING, id_scheme=other.name)
            )
    assert Snowflake().name != Snowflake(epoch_ms=5).name


async def test_a_newer_format_asks_for_an_upgrade(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    await store.found(msgspec.structs.replace(FOUNDING, format=9, min_reader=9))
    with pytest.raises(WrongIncarnation, match="upgrade"):
        await opened(store, clock)


async def test_a_view_is_as_old_as_the_request_that_renewed_it(
    store: MemoryRegistry, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may stand still between the answer's arrival and the moment it takes the answer."""
    registry, read = await opened(store, clock), store.meta

    async def meta() -> Reading:
        reading = await read()
        await clock.advance(60)
        return reading

    monkeypatch.setattr(store, "meta", meta)
    await registry.renew()
    assert not registry.is_current(59)
    assert registry.is_current(61)


async def test_an_id_past_the_horizon_waits_for_a_renewal(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry = await opened(store, clock)
    time_ms = registry.view.horizon_ms
    await clock.advance(0.6)
    await registry.reach(time_ms, deadline_s=clock.monotonic_s() + 1)
    assert registry.view.horizon_ms > time_ms


async def test_an_id_from_the_future_is_refused(store: MemoryRegistry, clock: ManualClock) -> None:
    registry = await opened(store, clock)
    with pytest.raises(InvalidId, match="from the future"):
        await registry.reach(registry.view.horizon_ms + 60_000, deadline_s=1e9)


async def test_a_closed_time_that_stands_still_is_an_error(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry = await opened(store, clock)
    with pytest.raises(Unavailable, match="does not advance"):
        await registry.reach(registry.view.horizon_ms + 1_000, deadline_s=-1.0)


async def test_a_key_whose_last_epoch_is_far_ahead_does_not_hold_up_others(
    store: MemoryRegistry, clock: ManualClock
) -> None:
    registry, term = await leading(store, clock)
    far_ms = registry.view.horizon_ms + 86_400_000
    reasons = {"held": for_key("held", BUCKETS, 1, "reset")}
    snapshot = Snapshot(1, {"held": Layout.of([(far_ms, 1)])}, {}, reasons)
    await store.restore(msgspec.structs.replace(registry.meta, version=1, term=term), snapshot)
    decisions = [for_key(key, BUCKETS, 5, "hot") for key in ("held", "other")]
    assert await registry.publish(decisions, term) == decisions[1:]
    assert (await store.layout("held")).epochs[-1].start_ms == far_ms


class Slow(MemoryRegistry):
    """Takes a while for each call, and counts them."""

    reads = appends = 0

    async def meta(self) -> Reading:
        self.reads += 1
        await self._clock.sleep(0.01)
        return await super().meta()

    async def append(self, entry: LogEntry, term: int | None) -> None:
        self.appends += 1
        await self._clock.sleep(0.01)
        await super().append(entry, term)


def test_ten_thousand_keys_get_hot_at_once() -> None:
    """META is not read around each version: 223 versions take little more than 223 commits."""

    async def play() -> tuple[float, Slow]:
        clock = SkewedClock()
        store = Slow(clock)
        registry = Registry(store, clock)
        await registry.open(FOUNDING)
        term = (await store.lead((await store.meta()).meta, "me", 0)).term
        hot = [for_key(f"key {n}", BUCKETS, 2, "hot") for n in range(10_000)]
        began_s, store.reads = clock.monotonic_s(), 0
        assert len(await registry.publish(hot, term)) == 10_000
        assert registry.view.layout("key 9999").buckets == 2
        return clock.monotonic_s() - began_s, store

    took_s, store = run_on_virtual_time(play())
    assert (store.appends, store.reads) == (223, 2)
    assert took_s < 3.0
