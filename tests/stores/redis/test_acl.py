"""The ACL lines of the documentation are enough for each role, and for nothing else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from heatsink.heat.fleet import FleetHeat
from heatsink.heat.heat import Heat, Report, WindowHeat
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision
from heatsink.stores.redis.address import RedisKeys
from heatsink.stores.redis.connection import Connection, RedisRefused
from heatsink.stores.redis.heat import RedisBoard, RedisBus
from heatsink.stores.redis.news import RedisNews, RedisSoft, RedisWire
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisCluster, RedisServer
from tests.servers import patient, real
from tests.waiting import soon

from .test_relay_conformance import PAIR, body
from .test_wire_conformance import Listener, listening

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "redis.md").read_text()
ROLES = re.findall(r"^    (user heatsink-.*)$", PAGE, re.MULTILINE)
CLUSTER_ALSO = re.findall(r"On a cluster both users also need `([^`]*)`", PAGE)[0]
ADMIN = "user default on nopass ~* &* +@all"
APP, COORDINATOR = ("heatsink-app", "change-me-1"), ("heatsink-coordinator", "change-me-2")
HEAT = FleetHeat("c", 1.0, WindowHeat(1, 1.0, True, {}, 0.0))
REPORT = Report("a", 1, 1.0, True, 1, {"k": Heat(1, 1)})


@pytest.fixture(params=["server", "cluster"])
def guarded(request: pytest.FixtureRequest) -> Iterator[RedisServer | RedisCluster]:
    if request.param == "server":
        with real(partial(RedisServer, acl=[ADMIN, *ROLES])) as server:
            yield server
    else:
        roles = [f"{role} {CLUSTER_ALSO}" for role in ROLES]
        with real(partial(RedisCluster, acl=[ADMIN, *roles])) as cluster:
            yield cluster


@asynccontextmanager
async def logged_in(
    server: RedisServer | RedisCluster, role: tuple[str, str]
) -> AsyncIterator[Connection]:
    connection = Connection(patient(server.url_for(*role)), ManualClock(), Random(1))
    yield connection
    await connection.close()


async def test_each_role_can_do_its_work(guarded: RedisServer | RedisCluster) -> None:
    keys, clock = RedisKeys(), ManualClock()
    async with logged_in(guarded, APP) as app, logged_in(guarded, COORDINATOR) as coordinator:
        assert await app.run("TIME")  # `heatsink doctor` looks at the clock
        assert await coordinator.run("TIME")
        await RedisBus(app, keys).send(REPORT)
        await coordinator.run("XADD", keys.heat, "*", "r", b"junk")
        bus = RedisBus(coordinator, keys)
        assert await bus.receive() == [REPORT]
        assert await bus.receive() == []
        await RedisNews(coordinator, keys, clock).publish("first", {1: body(1), 2: body(2)}, PAIR)
        assert await RedisNews(app, keys, clock).pair() == PAIR
        assert await RedisNews(app, keys, clock).entries("first", 0, 2) == [body(1), body(2)]
        await RedisSoft(coordinator, keys).publish(
            [Decision(Subject(Kind.WORKERS, "0"), "workers", 1, "why")], 1
        )
        assert len(await RedisSoft(app, keys).read()) == 1
        await RedisBoard(coordinator, keys).show(HEAT)
        assert await RedisBoard(app, keys).look() == HEAT


async def test_what_a_user_may_not_do_is_logged_once(
    guarded: RedisServer | RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """An app server with another prefix than its user may write: it would never report heat."""
    async with logged_in(guarded, APP) as app:
        bus = RedisBus(app, RedisKeys("elsewhere"))
        for _ in range(3):
            with pytest.raises(RedisRefused):
                await bus.send(REPORT)
    assert [record.message.count("refuses XADD") for record in caplog.records] == [1]
    assert "see the ACL lines" in caplog.text


@pytest.mark.parametrize("role", [APP, COORDINATOR], ids=lambda role: role[0])
async def test_each_role_hears_and_says_what_is_forgotten(
    guarded: RedisServer | RedisCluster, role: tuple[str, str]
) -> None:
    async with logged_in(guarded, role) as connection:
        address, keys, ear = patient(guarded.url_for(*role)), RedisKeys(), Listener()
        one, two = (RedisWire(connection, address, keys, SystemClock(), Random()) for _ in "ab")
        async with listening(one, ear):
            await soon(lambda: ear.links)
            await two.send(["k"])
            await soon(lambda: ear.keys)


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (APP, ("SET", RedisKeys().pair, "9|9|i")),
        (APP, ("XADD", RedisKeys().log("i"), "9-0", "e", "forged")),
        (APP, ("XADD", RedisKeys().soft, "*", "d", "forged")),
        (APP, ("SET", RedisKeys().hottest, "forged")),
        (APP, ("XRANGE", RedisKeys().heat, "-", "+")),
        (APP, ("DEL", RedisKeys().heat)),
        (APP, ("PUBLISH", "somebody-elses", "1")),
        (APP, ("FLUSHALL",)),
        (APP, ("EVAL", "return 1", 0)),
        (COORDINATOR, ("SET", "somebody-elses", "1")),
        (COORDINATOR, ("FLUSHALL",)),
        (COORDINATOR, ("CONFIG", "GET", "dir")),
        (COORDINATOR, ("EVAL", "return 1", 0)),
    ],
)
async def test_no_role_can_do_more(role: tuple[str, str], words: tuple[str, ...]) -> None:
    with real(partial(RedisServer, acl=[ADMIN, *ROLES])) as server:
        async with logged_in(server, role) as connection:
            with pytest.raises(
                RedisRefused,
                match=r"lacks the permission: see the ACL lines in docs/how-to/redis\.md",
            ):
                await connection.run(*words)
