from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from heatsink.absorb.invalidation import EVERYTHING, OUTBOX_MAX, Ear, Invalidation
from heatsink.errors import Unavailable
from heatsink.testing import ManualClock


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
