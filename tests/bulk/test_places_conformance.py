"""What every store must do with places at limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import count
from random import Random
from uuid import uuid4

import pytest
from msgspec.structs import replace

from heatsink.bulk.limits import (
    Ask,
    DeclaredLimits,
    Granted,
    HoldAnswer,
    HoldRequest,
    KeyUse,
    Limit,
    Offer,
    hold_places,
)
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import ANNOUNCED_MS, QueueStores
from heatsink.bulk.work.places import midnights, rule_of
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.stores.memory.queue.places import OFFER_MS
from heatsink.stores.redis.queue import open_queue
from heatsink.testing import ManualClock
from heatsink.testing.clocks import BEGINNING_S
from heatsink.testing.redis import RedisServer
from tests.planted import usually
from tests.servers import patient_url, real
from tests.waiting import soon

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
        return await hold_places(self.store, self.request(holder, limit, **about))

    def request(self, holder: str, limit: Limit = FIVE, **about: object) -> HoldRequest:
        self.turns += 1
        known = {"key": "k", "turn": self.turns, "server": "", "bell": 0, "of": ("", 0)} | about
        version: tuple[str, int] = known.pop("of")  # type: ignore[assignment]
        named = {name: known.pop(name) for name in ("turn", "server", "bell")}
        return HoldRequest(
            limit.name,
            rule_of(limit, self.clock.now_s(), version),
            holder,
            lease_ms=LEASE_MS,
            asks=[Ask(**known)],  # type: ignore[arg-type]
            **named,  # type: ignore[arg-type]
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


async def test_a_process_that_misses_an_offer_gets_no_other_until_it_calls(home: Home) -> None:
    for key in ("k", "other"):
        await home.hold("a/1/x", key=key, want=5)
        await home.hold("dead/1/x", key=key, want=2)
        await home.hold("dead/2/x", key=key, want=2)
        await home.hold("b/1/x", key=key, want=2)
        await home.hold("a/1/x", key=key, running=4)
    await home.wait(OFFER_MS)
    assert await home.granted("b/1/x", want=2) == 1, "dead/1 did not come, so dead/2 will not"
    assert await home.granted("b/1/x", key="other", want=2) == 1
    await home.hold("a/1/x", running=3)
    assert await home.granted("b/1/x", running=1, want=2) == 1
    assert not (await home.hold("b/1/x", running=2, want=1)).granted[0].others
    await home.hold("dead/1/x")
    assert (await home.hold("b/1/x", running=2, want=1)).granted[0].others, "dead/2 waits"
    await home.hold("a/1/x", running=2)
    assert await home.granted("dead/2/x", want=2) == 1


async def test_a_process_is_not_silent_because_one_of_its_partitions_was(home: Home) -> None:
    await home.hold("a/1/x", want=5)
    for partition in (1, 2):
        await home.hold(f"b/{partition}/x", want=1)
    await home.hold("a/1/x", running=3)
    await home.wait(OFFER_MS)
    assert await home.granted("b/2/x", want=1) == 1
    assert await home.granted("b/1/x", want=1) == 1


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


async def test_nothing_is_granted_for_one_lease_by_a_replica_that_never_had_the_home(
    home: Home,
) -> None:
    """It was promoted, and does not know the limit: it may have lost all places."""
    home.name[0] = "2+"
    new = await home.hold("new", want=5)
    assert (new.granted[0].places, new.quiet_ms) == (0, LEASE_MS)
    assert await home.granted("old", running=4) == 0
    await home.wait(LEASE_MS - 1)
    await home.hold("old", running=4)
    await home.wait(1)
    assert await home.granted("new", want=5) == 1


async def test_a_real_replica_knows_that_it_was_promoted(clock: ManualClock) -> None:
    with (
        real(lambda: RedisServer(options={"repl-diskless-sync-delay": "0"})) as primary,
        real(lambda: RedisServer(options={"replicaof": f"127.0.0.1 {primary.port}"})) as replica,
    ):
        await soon(lambda: "state=online" in primary.command("INFO", "replication"))
        replica.command("REPLICAOF", "NO", "ONE")
        quiet_ms = []
        for url in (primary.url, replica.url):
            stores = open_queue(url, clock, Random(1), BulkSettings(durability="relaxed"))
            home = Home(stores, clock, [""])
            quiet_ms.append((await home.hold("a", want=1)).quiet_ms)
            await stores.close()
    assert quiet_ms[0] == 0.0
    assert quiet_ms[1] > LEASE_MS / 2


async def test_a_new_home_grants_nothing_before_it_is_durable(home: Home) -> None:
    """A fail-over could lose it with the grant, and the next server would grant the place again."""
    first = await home.store.hold(home.request("a", want=5))
    assert (first.is_new, first.granted) == (True, [])
    assert (await home.store.hold(home.request("b", want=5))).is_new
    await home.store.confirm("five", first.server)
    assert await home.granted("a", want=5) == 5


async def test_a_replaced_server_makes_the_home_durable_again(home: Home) -> None:
    await home.hold("a", want=2)
    home.name[0] = "2"
    assert (await home.store.hold(home.request("a", running=2))).is_new


async def test_one_who_knows_a_lost_server_stops_grants_for_one_lease(home: Home) -> None:
    """A server that nobody was to promote has lost the whole home, and somebody new came first."""
    assert await home.granted("new", want=1) == 1
    late = await home.hold("old", running=4, server="one that was lost")
    assert late.quiet_ms == LEASE_MS
    assert (await home.hold("old", running=4, server="one that was lost")).quiet_ms == LEASE_MS
    await home.wait(1)
    assert (await home.hold("old", running=4, server="another")).quiet_ms == LEASE_MS - 1


async def test_places_of_a_dead_process_are_freed_at_once(home: Home) -> None:
    await home.hold("one/3/x", want=2)
    await home.hold("two/3/x", want=3)
    assert await home.store.free("one/", ["five", "unknown"]) == 2
    assert await home.granted("three/3/x", want=5) == 2


async def test_a_process_that_knows_only_an_older_rule_gets_what_the_newest_one_allows(
    home: Home,
) -> None:
    """It may be cut off from the registry for ever."""
    two = Limit("five", running=2)
    assert await home.granted("old", of=("r", 3), want=2) == 2
    assert await home.granted("new", two, of=("r", 4), want=1) == 0
    assert await home.granted("old", of=("r", 3), running=2, want=2) == 0
    assert await home.granted("none", of=("", 0), want=5) == 0, "it follows no registry"
    await home.hold("none", of=("", 0))
    await home.hold("old", of=("r", 3), running=1)
    assert await home.granted("new", two, of=("r", 4), want=1) == 1
    assert await home.granted("new", FIVE, of=("r", 5), running=1, want=9) == 3
    six = Limit("five", running=6)
    assert await home.granted("new", six, of=("r", 5), running=4, want=9) == 1, "a new release"
    seven = Limit("five", running=7)
    assert await home.granted("new", seven, of=("restored", 1), running=5, want=9) == 1


async def test_an_older_rule_is_ignored_for_rates_of_a_day_too(home: Home) -> None:
    many, few = (Limit("mail", rates=[f"{n}/day Europe/Berlin"]) for n in (50, 5))
    await home.hold("a", many, of=("r", 1), started=4)
    assert await home.granted("new", few, of=("r", 2), want=9) == 1
    await home.hold("new", few, of=("r", 2), started=1)
    for _ in range(4):
        for _ in range(87):  # a slot's clock believes the step of a day only in steps
            await home.wait(1_000_000)
            await home.hold("old", many, of=("r", 1))
        assert await home.granted("old", many, of=("r", 1), want=9) == 5, "a new day"
        await home.hold("old", many, of=("r", 1), started=5)


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
    first = DeclaredLimits({"five": FIVE}, {"send": ("five",), "plain": ()})
    assert await store.declare("one", first, 1_000) == first
    second = DeclaredLimits({"five": other}, {"send": ("five",)})
    assert (await store.declare("two", second, 1_000)).limits == {"five": FIVE}
    await home.wait(1_000)
    assert (await store.declare("two", second, 1_000)).limits == {"five": other}
    assert (await store.declared()).of("send") == (other,)
    await home.wait(ANNOUNCED_MS + 1_000)
    assert await store.declared() == DeclaredLimits()


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
        if rng.random() < 0.2:
            amount = rng.randint(0, 8)
            limit = replace(limit, running=amount, rates=limit.rates[: rng.choice([0, 1, 2])])
        about = {
            "key": rng.choice(["x", "y"]),
            "running": rng.choice([0, 0, 1, 2]),
            "fresh": rng.choice([0, 0, 1]),
            "started": rng.choice([0, 0, 1, 3]),
            "want": rng.choice([0, 1, 2, 6]),
            "turn": max(turn - rng.choice([0, 0, 0, 5]), 1),
            "of": rng.choice([("", 0), ("r", 1), ("r", 2), ("r", turn // 20), ("s", 1)]),
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


async def test_calls_without_an_order_all_count(home: Home) -> None:
    """Several servers may renew the place of one item, so its calls have no order."""
    assert await home.granted("python", want=5) == 5
    await home.hold("python", running=4)
    await home.hold("remote", running=1, turn=0)
    for _ in range(3):
        await home.wait(LEASE_MS / 2)
        await home.hold("remote", running=1, turn=0)
        await home.hold("python", running=4)
        assert await home.granted("other", want=1) == 0
    await home.hold("remote", running=0, turn=0)
    assert await home.granted("other", want=1) == 1
