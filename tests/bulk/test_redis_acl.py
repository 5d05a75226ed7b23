"""The ACL line of the documentation is enough for a queue, and for nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from heatsink.bulk.batch import Batch, PartPlace, Rate
from heatsink.bulk.limits import Ask, HoldRequest, Rule
from heatsink.bulk.plan import QueuePlan
from heatsink.bulk.store import Setback
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision
from heatsink.stores.redis.connection import Connection, RedisRefused
from heatsink.stores.redis.queue import open_queue
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisCluster, RedisServer
from tests.servers import patient, patient_url, real

from .driver import PARTITION, Driver, ring_until_heard

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "redis.md").read_text()
ROLE = re.findall(r"^    (user heatsink-queue .*)$", PAGE, re.MULTILINE)[0]
ALSO = re.findall(r"On a cluster the user `heatsink-queue` also needs `([^`]*)`", PAGE)[0]
CLUSTER_ALSO = " ".join(ALSO.split())  # the page may wrap it
ADMIN = "user default on nopass ~* &* +@all"
LOGIN = ("heatsink-queue", "change-me-3")


@pytest.fixture(params=["server", "cluster"])
def guarded(request: pytest.FixtureRequest) -> Iterator[RedisServer | RedisCluster]:
    if request.param == "server":
        with real(partial(RedisServer, append_only=True, acl=[ADMIN, ROLE])) as server:
            yield server
        return
    with real(partial(RedisCluster, acl=[ADMIN, f"{ROLE} {CLUSTER_ALSO}"])) as cluster:
        for master in cluster.masters:
            master.command("CONFIG", "SET", "appendonly", "yes")
        yield cluster


async def test_a_queue_can_do_its_work(guarded: RedisServer | RedisCluster) -> None:
    stores = open_queue(patient_url(guarded.url_for(*LOGIN)), SystemClock(), Random(1))
    driver = Driver(stores, ManualClock())
    await stores.open()
    wait = asyncio.ensure_future(stores.bell.wait(60.0))
    assert await ring_until_heard(driver, wait) == {PARTITION}
    await driver.work()
    await driver.submit("a", [2, 3])
    await stores.barrier.parts([PartPlace("a", PARTITION, 5)])
    await stores.losses.gaps(PARTITION, "a", 2)
    await stores.losses.live_parts(PARTITION, "", 10)
    await stores.losses.record_of(PARTITION, "a")
    await stores.batches.restore(Batch("c", "mail", "ada", 1))
    await stores.batches.forget("c", 0)
    first, second = await driver.slices()
    await driver.settle(first, "rf", Setback(0, "why"))
    await driver.settle(second, "d")
    await stores.queue.failures(PARTITION, "a", "", 10)
    await driver.steer("a", "retry", lap=1)
    await driver.work()
    assert await driver.ends(*await driver.ends()) == []
    await stores.batches.open(Batch("b", "mail", "ada", 1))
    await stores.batches.forget("b", 0)
    assert await stores.batches.list(5) == []
    await stores.limits.declare("l", Rate(5))
    await stores.limits.refused("l", 5.0, 0)
    await stores.places.hold(HoldRequest("l", Rule(1), "h", 1, 1_000, [Ask("", want=1)]))
    await stores.places.use("l", 1)
    await stores.places.free("h", ["l"])
    await stores.places.declared()
    assert await stores.fleet.plan(QueuePlan(4, 4)) == QueuePlan(4, 4)
    await stores.fleet.leave("me")
    await stores.soft.publish([Decision(Subject(Kind.WORKERS, "0"), "workers", 1, "why")], 1)
    assert len(await stores.soft.read()) == 1
    await stores.close()


@pytest.mark.parametrize(
    "words",
    [
        ("SET", "somebody-elses", "1"),
        ("EVAL", "return redis.call('GET', 'somebody-elses')", 0),
        ("PUBLISH", "another", "1"),
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("CONFIG", "GET", "dir"),
        ("SCRIPT", "FLUSH"),
    ],
)
async def test_a_queue_can_do_no_more(words: tuple[str, ...]) -> None:
    with real(partial(RedisServer, acl=[ADMIN, ROLE])) as server:
        connection = Connection(patient(server.url_for(*LOGIN)), ManualClock(), Random(1))
        with pytest.raises(RedisRefused):
            await connection.run(*words)
        await connection.close()
