"""Scenarios about places at limits, and the bug that each of them finds.

They talk to the home of a limit directly, so that they cost little and always play the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from heatsink.bulk import Limit
from heatsink.bulk.limits import Ask, HoldRequest, Offer
from heatsink.bulk.work.places import rule_of
from heatsink.stores.memory.queue.places import MemoryPlaces
from heatsink.testing import ManualClock

LEASE_MS = 10_000
ONE = Limit("one", running=1)


class PlaceHome:
    """The home of a limit with one place, and the offers that it has made."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.offers: list[Offer] = []
        self.store = MemoryPlaces(self.clock, self.offers.append)

    async def ask(
        self, holder: str, turn: int, want: int = 0, running: int = 0, limit: Limit = ONE
    ) -> int:
        asks = [Ask("", running=running, want=want)]
        rule = rule_of(limit, self.clock.now_s())
        request = HoldRequest(limit.name, rule, holder, turn, LEASE_MS, asks, bell=ord(holder[0]))
        return (await self.store.hold(request)).granted[0].places


async def a_place_given_twice_after_a_fail_over() -> None:
    home = PlaceHome()
    assert await home.ask("a", 1, want=1) == 1
    home.store.homes["one"].keys.clear()  # a replica that lags has not seen the grant
    home.store.server[0] = "the replica"
    assert await home.ask("b", 1, want=1) == 0
    assert await home.ask("a", 2, running=1) == 0
    await home.clock.advance(LEASE_MS / 1000)
    assert await home.ask("a", 3, running=1) == 0
    assert await home.ask("b", 2, want=1) == 0


async def a_release_that_wakes_nobody() -> None:
    home = PlaceHome()
    await home.ask("a", 1, want=1)
    await home.ask("b", 1, want=1)
    await home.ask("a", 2)
    assert [offer.partition for offer in home.offers] == [ord("b")]


async def a_place_taken_back_by_a_late_call() -> None:
    home = PlaceHome()
    await home.ask("a", 2, want=1)
    await home.ask("a", 1)
    assert await home.ask("b", 1, want=1) == 0


async def a_waiting_item_that_holds_up_others() -> None:
    """The first in the line has died: its offer ends, and the next one gets the place."""
    home = PlaceHome()
    await home.ask("a", 1, want=1)
    await home.ask("b", 1, want=1)
    await home.ask("c", 1, want=1)
    await home.ask("a", 2)
    await home.clock.advance(1.0)
    assert await home.ask("c", 2, want=1) == 1


PLACE_SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (
        a_place_given_twice_after_a_fail_over,
        a_release_that_wakes_nobody,
        a_place_taken_back_by_a_late_call,
        a_waiting_item_that_holds_up_others,
    )
}
