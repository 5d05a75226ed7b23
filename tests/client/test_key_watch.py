from __future__ import annotations

from heatsink.client.key_watch import KeyWatch
from heatsink.control.lease import Lease
from heatsink.detect.heat import Heat, Report
from heatsink.registry.registry import Registry
from heatsink.stores.memory import memory_stores
from heatsink.testing import ManualClock
from tests.registry.test_registry import FOUNDING


async def test_a_bus_on_which_nothing_arrives_is_broken_not_calm(clock: ManualClock) -> None:
    stores = memory_stores(clock)
    registry = Registry(stores.registry, clock)
    await registry.open(FOUNDING)
    watch = KeyWatch(stores.bus, registry, Lease(stores.lease, "me", clock), window_s=1.0)
    assert (await watch.observe()).windows == []
    window = int(clock.now_s())
    await stores.bus.send(Report("a", window, 1.0, True, 0, {"k": Heat(5, 5)}))
    await clock.advance(1.5)
    assert [seen.window for seen in (await watch.observe()).windows] == [window]
    await clock.advance(2.0)
    assert (await watch.observe()).windows != [], "two windows of silence are silence"
    for _ in range(3):
        await clock.advance(5.0)
        assert (await watch.observe()).windows == []
