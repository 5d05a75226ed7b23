"""What one process forgets the others forget, also when the wire fails at first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from heatsink.errors import Unavailable
from heatsink.reads import Reads, ReadSettings
from heatsink.reads.invalidation import EVERYTHING, OUTBOX_MAX, TOGETHER_MAX, Ear, Invalidation
from heatsink.stores.memory.messages import MemoryWire
from heatsink.testing import ManualClock, SkewedClock, run_on_virtual_time

KEPT_S = 3_600.0


class FailingWire(MemoryWire):
    """Away for the next few sends."""

    failures = 0

    async def send(self, keys: Sequence[str]) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("the wire is away")
        await super().send(keys)


@pytest.mark.parametrize("failures", [0, 1, 3])
@pytest.mark.parametrize("count", [1, TOGETHER_MAX + 1, OUTBOX_MAX, OUTBOX_MAX + 1])
def test_what_could_not_be_told_is_told_again_however_much_it_is(count: int, failures: int) -> None:
    """More than the outbox holds is told as everything, and that may fail too."""

    async def work() -> None:
        clock, ends = SkewedClock(), list[MemoryWire]()
        wires = [FailingWire(ends), FailingWire(ends)]
        caches = [Reads(ReadSettings(jitter=0.0), clock=clock, rng=Random(1)) for _ in wires]
        running = []
        for wire, cache in zip(wires, caches, strict=True):
            (invalidation := Invalidation(wire, clock, Random(1))).tie(cache)
            running.append(asyncio.ensure_future(invalidation.run()))
        await clock.sleep(0.1)
        wires[0].failures = failures
        versions = dict.fromkeys(["first", "last"], 1)

        async def read(key: str) -> int:
            async def load() -> int:
                return versions[key]

            value: int = await caches[1].get(key, load, fresh_for=KEPT_S, stale_for=KEPT_S)
            return value

        assert [await read(key) for key in versions] == [1, 1]
        versions = dict.fromkeys(versions, 2)
        caches[0].forget("first")
        for number in range(count):
            caches[0].forget(f"k{number}")
        caches[0].forget("last")
        await clock.sleep(5.0 + failures * 2)
        assert [await read(key) for key in versions] == [2, 2]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    run_on_virtual_time(work())


class BrokenWire:
    """Refuses to send until it is mended."""

    def __init__(self) -> None:
        self.is_mended = False
        self.sent: list[Sequence[str]] = []

    async def send(self, keys: Sequence[str]) -> None:
        if not self.is_mended:
            raise Unavailable("no Redis")
        self.sent.append(keys)

    async def listen(self, ear: Ear) -> None:  # noqa: ARG002
        await asyncio.Event().wait()


async def test_an_outage_of_the_wire_does_not_fill_the_memory(clock: ManualClock) -> None:
    wire = BrokenWire()
    invalidation = Invalidation(wire, clock, Random(1))
    running = asyncio.ensure_future(invalidation.run())
    for number in range(5 * OUTBOX_MAX):
        invalidation.post(f"key-{number}")
        if number % OUTBOX_MAX == 0:
            await clock.advance(2.0)
        assert len(invalidation._outbox) <= OUTBOX_MAX
    wire.is_mended = True
    await clock.advance(2.0)
    assert wire.sent == [EVERYTHING]
    invalidation.post("one")
    await clock.advance(2.0)
    assert wire.sent == [EVERYTHING, ["one"]]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
