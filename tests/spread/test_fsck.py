from __future__ import annotations

from pathlib import Path

import pytest

from heatsink import Heatsink, connect
from heatsink.errors import WrongIncarnation
from heatsink.primitives.ids import Uuid7
from heatsink.registry.decisions import Snapshot
from heatsink.spread.fsck import check, rebuild
from heatsink.spread.store import Row

from .test_log import everything, spread

SECRET = b"0123456789abcdef" * 2


async def fill(hs: Heatsink) -> int:
    for buckets in (1, 3, 2):
        if buckets > 1:
            await spread(hs, "conv", buckets)
        for n in range(20):
            await hs.log.append("conv", b"%d" % n)
    await hs.log.append("cold", b"x")
    return 61


async def test_a_healthy_store_is_clean(hs: Heatsink) -> None:
    rows = await fill(hs)
    findings = await check(
        hs.parts.stores.log, hs.parts.stores.counters, hs.parts.stores.registry, Uuid7()
    )
    assert (findings.rows, findings.keys, findings.clean) == (rows, 2, True)


async def test_a_row_in_the_wrong_place_is_named(hs: Heatsink) -> None:
    await fill(hs)
    epoch = hs.parts.registry.view.layout("conv").epochs[-1]
    raw = Uuid7().from_parts(epoch.start_ms + 5, 0, 0)
    await hs.parts.stores.log.put("conv#7", Row(raw, b"lost", epoch.start_ms, epoch.buckets))
    findings = await check(
        hs.parts.stores.log, hs.parts.stores.counters, hs.parts.stores.registry, Uuid7()
    )
    assert findings.misplaced == 1
    assert "conv#7" in findings.problems[0]
    assert "belongs in conv#" in findings.problems[0]


async def test_lost_epochs_are_found_and_rebuilt_from_the_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    async with connect(url) as hs:
        rows = await fill(hs)
        store, layout = hs.parts.stores.registry, hs.parts.registry.view.layout("conv")
        entries = await everything(hs, "conv")
        meta = (await store.meta()).meta
        await store.restore(meta, Snapshot(meta.version, {}, {}, {}))
        findings = await check(hs.parts.stores.log, hs.parts.stores.counters, store, Uuid7())
        assert findings.unknown_epochs == 40
        parts = (hs.parts.stores.log, hs.parts.stores.counters, store)
        assert await rebuild(*parts, Uuid7(), "mended", SECRET) == 1
        assert (await store.meta()).meta.secret == SECRET
        assert await store.layout("conv") == layout
        assert (
            await check(hs.parts.stores.log, hs.parts.stores.counters, store, Uuid7())
        ).rows == rows
        with pytest.raises(WrongIncarnation):
            await hs.parts.registry.renew()
    async with connect(url) as again:
        assert await everything(again, "conv") == entries
        assert (
            await check(
                again.parts.stores.log,
                again.parts.stores.counters,
                again.parts.stores.registry,
                Uuid7(),
            )
        ).clean


async def test_a_counter_whose_layout_was_lost_is_read_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    async with connect(url) as hs:
        await spread(hs, "views", 4)
        for _ in range(40):
            await hs.counters.add("views")
        store, parts = hs.parts.stores.registry, (hs.parts.stores.log, hs.parts.stores.counters)
        meta = (await store.meta()).meta
        await store.restore(meta, Snapshot(meta.version, {}, {}, {}))
        assert await hs.counters.value("views") == 0
        assert (await check(*parts, store, Uuid7())).unread_shares == 4
        await rebuild(*parts, store, Uuid7(), "mended", SECRET)
        assert (await check(*parts, store, Uuid7())).clean
    async with connect(url) as again:
        assert await again.counters.value("views") == 40
        await again.counters.add("views")
        assert await again.counters.value("views") == 41
