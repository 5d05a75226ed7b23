"""What every store must do with places at limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import count
from random import Random
from uuid import uuid4

import pytest

from heatsink.bulk.limits import (
    Ask,
    Declared,
    Granted,
    HoldAnswer,
    HoldRequest,
    KeyUse,
    Limit,
    Offer,
)
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import ANNOUNCED_MS, QueueStores
from heatsink.bulk.work.places import midnights, rule_of
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.stores.memory.queue.places import OFFER_MS
from heatsink.stores.redis.queue import open_queue
from heatsink.testing import ManualClock
from heatsink.testing.clocks import BEGINNING_S
from tests.planted import usually
from tests.servers import patient_url

LEASE_MS = 10_000
HEARD_S, RING_AGAIN_S = 30.0, 0.1
FIVE = Limit("five", running=5)


class Home:
    """The home of limits, on a server that can be replaced by another one."""

    def __init__(self, stores: QueueStores, clock: ManualClock, name: list[str]) -> None:
        self.store = stores.places
        self.bell = stores.bell
        self.clock = clock
        self.name = name
        self.turns = 0

    async def hold(self, holder: str, limit: Limit = FIVE, **about: object) -> HoldAnswer:
        self.turns += 1
        known = {"key": "k", "turn": self.turns, "server": "", "bell": 0} | about
        named = {name: known.pop(name) for name in ("turn", "server", "bell")}
        return await self.store.hold(
            HoldRequest(
                limit.name,
                rule_of(limit, self.clock.now_s()),
                holder,
                lease_ms=LEASE_MS,
                asks=[Ask(**known)],  # type: ignore[arg-type]
                **named,  # type: ignore[arg-type]
            )
        )

    async def granted(self, holder: str, limit: Limit = FIVE, **about: object) -> int:
        return (await self.hold(holder, limit, **about)).granted[0].places

    async def wait(self, ms: float) -> None:
        await self.clock.advance(ms / 1000)


@pytest.fixture(params=["memory", "server", "cluster"])
async def home(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Home]:
    if request.param == "memory":
        server = MemoryQueueServer(clock)
        yield Home(server.stores(), clock, server.places.server)
        return
    name = ["1"]
    stores = open_queue(
        patient_url(request.getfixturevalue(request.param).url),
        clock,
        Random(1),
        BulkSettings(stage=f"test-{uuid4().hex}", durability="relaxed"),
        now_ms=lambda: clock.now_s() * 1000,
        server=lambda: name[0],
    )
    yield Home(stores, clock, name)
    await stores.close()


async def test_no_more_places_are_granted_than_may_run(home: Home) -> None:
    assert await home.granted("a", want=3) == 3
    assert await home.granted("b", want=3) == 2
    assert await home.granted("a", running=3, want=1) == 0
    assert await home.granted("c", key="other", want=9) == 5


async def test_a_place_that_is_given_back_goes_to_the_holder_that_has_waited_longest(
    home: Home,
) -> None:
    await home.hold("a", want=5)
    await home.hold("b", want=2)
    await home.hold("c", want=2)
    await home.hold("a", running=4)
    assert await home.granted("c", want=2) == 0, "the place is offered to b"
    assert await home.granted("b", want=2) == 1
    await home.hold("a", running=3)
    assert await home.granted("b", running=1, want=2) == 0, "b went to the end of the line"
    assert await home.granted("c", want=2) == 1


async def test_an_offer_that_nobody_takes_goes_to_the_next(home: Home) -> None:
    await home.hold("a", want=5)
    await home.hold("b", want=2)
    await home.hold("c", want=2)
    await home.hold("a", running=4)
    await home.wait(OFFER_MS)
    assert await home.granted("c", want=2) == 1


async def test_an_offer_rings_the_bell_of_the_partition_that_waits(home: Home) -> None:
    waiting = asyncio.ensure_future(home.bell.wait(HEARD_S))
    async with asyncio.timeout(HEARD_S):
        for number in count():  # a bell may miss a ring before its subscription is there
            key = f"{number}"
            await home.hold("a", key=key, want=5)
            await home.hold("b", key=key, want=1, bell=7)
            await home.hold("a", key=key, running=4)
            if (await asyncio.wait({waiting}, timeout=RING_AGAIN_S))[0]:
                break
    assert waiting.result() == set()
    found = home.bell.offers()
    assert {(offer.partition, offer.limit) for offer in found} == {(7, "five")}
    assert isinstance(found[0], Offer)
    assert home.bell.offers() == []


async def test_a_holder_that_gives_up_leaves_the_line(home: Home) -> None:
    await home.hold("a", want=5)
    await home.hold("b", want=2)
    await home.hold("b")
    await home.hold("a", running=3)
    assert await home.granted("c", want=2) == 2


async def test_the_places_of_a_dead_holder_are_free_after_its_lease(home: Home) -> None:
    await home.hold("a", want=5)
    waits = await home.hold("b", want=1)
    assert waits.granted == [Granted("k", 0, False, LEASE_MS)]
    await home.wait(LEASE_MS - 1)
    assert await home.granted("b", want=1) == 0
    await home.wait(1)
    assert await home.granted("b", want=1) == 1


async def test_a_renewal_keeps_the_places(home: Home) -> None:
    await home.hold("a", want=5)
    await home.wait(LEASE_MS / 2)
    await home.hold("a", running=5)
    await home.wait(LEASE_MS / 2)
    assert await home.granted("b", want=1) == 0


async def test_a_call_that_arrives_late_changes_nothing(home: Home) -> None:
    await home.hold("a", turn=7, want=3)
    await home.hold("a", turn=9, running=3)
    assert await home.granted("a", turn=8, want=2) == 0
    assert await home.granted("b", want=5) == 2


async def test_nothing_is_granted_for_one_lease_after_the_server_was_replaced(home: Home) -> None:
    await home.hold("a", want=2)
    home.name[0] = "2"
    quiet = await home.hold("b", want=5)
    assert (quiet.granted[0].places, quiet.quiet_ms) == (0, LEASE_MS)
    await home.wait(LEASE_MS - 1)
    await home.hold("a", running=2)
    assert await home.granted("b", want=5) == 0
    await home.wait(1)
    assert await home.granted("b", want=5) == 3


async def test_nothing_is_granted_for_one_lease_by_a_server_that_was_wiped(home: Home) -> None:
    quiet = await home.hold("a", want=2, server="one that a process knows")
    assert (quiet.granted[0].places, quiet.quiet_ms) == (0, LEASE_MS)
    assert await home.granted("b", running=3) == 0
    await home.wait(LEASE_MS - 1)
    await home.hold("b", running=3)
    await home.wait(1)
    assert await home.granted("c", want=5) == 2


async def test_places_of_a_dead_process_are_freed_at_once(home: Home) -> None:
    await home.hold("one/3/x", want=2)
    await home.hold("two/3/x", want=3)
    assert await home.store.free("one/", ["five", "unknown"]) == 2
    assert await home.granted("three/3/x", want=5) == 2


async def test_starts_of_a_period_are_at_most_its_count(home: Home) -> None:
    limit = Limit("mail", rates=["10/s"])
    assert await home.granted("a", limit, want=7) == 7
    assert await home.granted("b", limit, want=7) == 3
    await home.hold("a", limit, started=7)
    await home.wait(999)
    assert await home.granted("b", limit, fresh=3, want=7) == 0
    await home.wait(1)
    assert await home.granted("b", limit, fresh=3, want=9) == 7


async def test_places_that_were_not_used_count_only_until_they_are_given_back(home: Home) -> None:
    limit = Limit("mail", rates=["10/s"])
    await home.hold("a", limit, want=10)
    await home.hold("a", limit, fresh=0)
    assert await home.granted("b", limit, want=10) == 10


async def test_a_quota_of_a_day_may_be_used_at_the_rate_of_a_second(home: Home) -> None:
    limit = Limit("mail", rates=["10/s", "25/day"])
    total = 0
    for _ in range(5):
        total += (places := await home.granted("a", limit, want=10))
        await home.hold("a", limit, started=places)
        await home.wait(1_000)
    assert total == 25
    await home.wait(86_400_000)
    assert await home.granted("a", limit, want=99) == 10


async def test_a_day_of_a_zone_begins_at_its_midnight(home: Home) -> None:
    limit = Limit("mail", rates=["5/day Europe/Berlin"])
    await home.hold("a", limit, started=5)
    assert await home.granted("a", limit, want=1) == 0
    begin = datetime.fromtimestamp(BEGINNING_S, UTC)
    midnight_ms = min(m for m in midnights("Europe/Berlin", BEGINNING_S) if m > BEGINNING_S * 1000)
    ahead_ms = midnight_ms - begin.timestamp() * 1000
    while ahead_ms > 1:  # a slot's clock believes an hour's step only in steps
        step_ms = min(ahead_ms - 1, 1_000_000)
        ahead_ms -= step_ms
        await home.wait(step_ms)
        assert await home.granted("a", limit, want=1) == 0
    await home.wait(1)
    assert await home.granted("a", limit, want=9) == 5


async def test_use_shows_the_keys_that_are_waited_for(home: Home) -> None:
    await home.hold("a", want=5)
    await home.hold("b", want=2)
    await home.hold("b", key="idle")
    await home.hold("b", key="other", want=1)
    assert await home.store.use("five", 10) == [
        KeyUse("five", "k", 5, 2),
        KeyUse("five", "other", 1, 0),
    ]
    assert await home.store.use("five", 1) == [KeyUse("five", "k", 5, 2)]
    assert await home.store.use("unknown", 1) == []


async def test_a_limit_stays_as_a_live_process_declares_it(home: Home) -> None:
    store, other = home.store, Limit("five", running=6)
    first = Declared({"five": FIVE}, {"send": ("five",), "plain": ()})
    assert await store.declare("one", first, 1_000) == first
    second = Declared({"five": other}, {"send": ("five",)})
    assert (await store.declare("two", second, 1_000)).limits == {"five": FIVE}
    await home.wait(1_000)
    assert (await store.declare("two", second, 1_000)).limits == {"five": other}
    assert (await store.declared()).of("send") == (other,)
    await home.wait(ANNOUNCED_MS + 1_000)
    assert await store.declared() == Declared()


async def test_all_stores_grant_the_same(
    request: pytest.FixtureRequest, clock: ManualClock, home: Home
) -> None:
    memory = MemoryQueueServer(clock)
    model = Home(memory.stores(), clock, memory.places.server)
    limits = [
        Limit("a", running=4),
        Limit("b", running=3, rates=["6/s", "20/min"]),
        Limit("c", rates=["9/s", "40/day Asia/Tokyo"]),
    ]
    rng = Random(request.node.name)
    for turn in range(usually(150, full=3_000)):
        limit, holder = rng.choice(limits), rng.choice(["p/1", "p/2", "q/1"])
        about = {
            "key": rng.choice(["x", "y"]),
            "running": rng.choice([0, 0, 1, 2]),
            "fresh": rng.choice([0, 0, 1]),
            "started": rng.choice([0, 0, 1, 3]),
            "want": rng.choice([0, 1, 2, 6]),
            "turn": max(turn - rng.choice([0, 0, 0, 5]), 1),
        }
        if rng.random() < 0.01:
            home.name[0] = model.name[0] = f"server {turn}"
        if rng.random() < 0.02:
            names = [each.name for each in limits]
            assert await home.store.free("p/", names) == await model.store.free("p/", names)
        found, wanted = [await each.hold(holder, limit, **about) for each in (home, model)]
        assert found == wanted, (turn, limit, holder, about)
        used = [await each.store.use(limit.name, 9) for each in (home, model)]
        assert used[0] == used[1]
        await home.wait(rng.choice([0, 1, 30, 400, 1_500, 6_000]))
