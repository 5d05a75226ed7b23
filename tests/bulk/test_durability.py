"""Accepted means on disk, and where nobody can tell, opening says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from heatsink.bulk.batch import Batch, PartPlace, digest_of
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import Chunk, Part, PartCounts, QueueStores
from heatsink.errors import InvalidSetting, NoAccess, Unavailable
from heatsink.primitives.clock import SystemClock
from heatsink.stores.redis.queue import open_queue
from heatsink.stores.redis.queue.durability import Durability
from heatsink.testing.redis import RedisCluster, RedisServer
from tests.servers import patient_url, real

from .driver import NOW_MS, PARTITION, below

SECRET = "x" * 8
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
EVERYSEC = {"appendfsync": "everysec"}
OLD = {"rename-command": 'WAITAOF" "'}  # a server that does not know the command


@asynccontextmanager
async def opened(url: str, durability: Durability = "fsync") -> AsyncIterator[QueueStores]:
    stores = open_queue(
        patient_url(url), SystemClock(), Random(1), BulkSettings(durability=durability)
    )
    try:
        await stores.open()
        yield stores
    finally:
        await stores.close()


async def stage(stores: QueueStores, partition: int = PARTITION) -> None:
    part = Part("a", "a", "ada", "mail", NOW_MS, "mail/ada")
    await stores.queue.stage(partition, part, [Chunk(0, 1, b"x")])


async def confirm(stores: QueueStores, *partitions: int) -> list[PartCounts | None]:
    places = [PartPlace("a", partition, 1) for partition in partitions or (PARTITION,)]
    return await stores.barrier.parts(places)


async def test_a_server_without_a_log_is_refused_with_the_cure(server: RedisServer) -> None:
    with pytest.raises(InvalidSetting, match=r"appendonly yes .*durability='relaxed'"):
        async with opened(server.url):
            pass
    async with opened(server.url, "relaxed") as stores:
        await stage(stores)
        await confirm(stores)


async def test_a_durability_that_is_none_is_refused(server: RedisServer) -> None:
    with pytest.raises(InvalidSetting, match="durability must be"):
        open_queue(server.url, SystemClock(), Random(1), BulkSettings(durability="maybe"))  # type: ignore[arg-type]


async def test_what_was_synced_survives_a_kill() -> None:
    with real(lambda: RedisServer(append_only=True, options=EVERYSEC)) as server:
        async with opened(server.url) as stores:
            await stage(stores)
            await stores.batches.open(Batch("a", "mail", "ada", 1))
            assert await stores.barrier.batches(["a", "b"]) == [Batch("a", "mail", "ada", 1), None]
            server.kill()
            server.start()
        async with opened(server.url) as stores:
            assert await stores.queue.part(PARTITION, "a") is not None
            assert await stores.batches.get("a") is not None


async def test_many_that_wait_share_few_fsyncs() -> None:
    with real(lambda: RedisServer(append_only=True, options=EVERYSEC)) as server:
        async with opened(server.url) as stores:

            async def submit() -> None:
                await stage(stores)
                await confirm(stores)

            await asyncio.gather(*(submit() for _ in range(50)))
            calls = server.command("INFO", "commandstats").partition("cmdstat_waitaof:calls=")[2]
            assert 2 <= int(calls.partition(",")[0]) <= 6


async def test_a_barrier_tells_what_it_covers() -> None:
    with real(lambda: RedisServer(options=ALWAYS)) as server:
        async with opened(server.url) as stores:
            await stage(stores)
            staged = PartCounts("staged", 1, 0, 0, 0, 0, 0, digest=digest_of(b"x"), chunks=1)
            assert await confirm(stores, PARTITION, PARTITION + 1) == [staged, None]


async def test_a_barrier_is_not_satisfied_by_a_server_that_was_restarted() -> None:
    """Nor by one that lost its data: it says what is there now."""
    with real(lambda: RedisServer(options=ALWAYS)) as server:
        async with opened(server.url) as stores:
            await stage(stores)
            server.kill()
            for _ in range(2):
                with pytest.raises(Unavailable, match="cannot be reached"):
                    await confirm(stores)
            server.start()
            server.command("FLUSHALL")
            assert await confirm(stores) == [None]


async def test_a_log_that_was_switched_off_meanwhile_is_noticed() -> None:
    with real(lambda: RedisServer(append_only=True, options=EVERYSEC)) as server:
        async with opened(server.url) as stores:
            server.command("CONFIG", "SET", "appendonly", "no")
            await stage(stores)
            with pytest.raises(Unavailable):
                await confirm(stores)


@pytest.mark.parametrize(
    ("options", "accepted"), [(ALWAYS, True), ({"appendonly": "yes"}, False), ({}, False)]
)
async def test_a_server_that_does_not_know_waitaof_must_fsync_always(
    options: dict[str, str], accepted: bool
) -> None:
    with real(lambda: RedisServer(options={**options, **OLD})) as server:
        if not accepted:
            with pytest.raises(InvalidSetting, match="appendfsync always"):
                async with opened(server.url):
                    pass
            return
        async with opened(server.url) as stores:
            await stage(stores)
            await confirm(stores)


async def test_a_server_that_evicts_is_refused() -> None:
    full = {"appendonly": "yes", "maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with real(lambda: RedisServer(options=full)) as server:
        with pytest.raises(InvalidSetting, match="maxmemory-policy noeviction"):
            async with opened(server.url):
                pass
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        async with opened(server.url):
            pass


async def test_opening_says_what_is_wrong_with_the_login_or_the_server() -> None:
    with real(lambda: RedisServer(append_only=True, password=SECRET)) as server:
        for durability in ("fsync", "relaxed"):
            with pytest.raises(NoAccess, match="refuses the user or the password"):
                async with opened(f"redis://:wrong@{server.address}", durability):
                    pass
        server.kill()
        with pytest.raises(Unavailable, match="retry later"):
            async with opened(server.url):
                pass


async def test_a_place_that_is_down_does_not_keep_the_others_from_opening() -> None:
    with real(lambda: RedisServer(append_only=True)) as home, real(RedisServer) as other:
        other.kill()
        places = {PARTITION: other.url}
        stores = open_queue(home.url, SystemClock(), Random(1), BulkSettings(places=places))
        await stores.open()
        await stage(stores, PARTITION + 1)
        await confirm(stores, PARTITION + 1)
        other.start()
        await asyncio.sleep(0.3)
        await stage(stores)
        with pytest.raises(InvalidSetting, match="appendonly"):
            await confirm(stores)
        await stores.close()


async def test_every_master_of_a_cluster_is_asked() -> None:
    with real(RedisCluster) as cluster:
        for master in cluster.masters:
            master.command("CONFIG", "SET", "appendonly", "yes")
        async with opened(cluster.url) as stores:
            for partition in range(12):
                await stage(stores, partition)
            await confirm(stores, *range(12))
            for master in cluster.masters:
                assert "cmdstat_waitaof" in master.command("INFO", "commandstats")
        cluster.masters[-1].command("CONFIG", "SET", "appendonly", "no")
        with pytest.raises(InvalidSetting):
            async with opened(cluster.url):
                pass


async def test_everysec_is_waited_for_whatever_waitaof_says() -> None:
    """Many versions confirm at once what they have not synced yet: redis#13793."""
    with real(lambda: RedisServer(append_only=True, options=EVERYSEC)) as server:
        async with opened(server.url) as stores:
            await stage(stores)
            slept: list[float] = []
            sleep = below(stores.barrier)._clock.sleep

            async def noted(seconds: float) -> None:
                slept.append(seconds)
                await sleep(seconds)

            below(stores.barrier)._clock.sleep = noted
            await confirm(stores)
            assert slept[0] > 1.0
            server.command("CONFIG", "SET", "appendfsync", "always")
            count = len(slept)
            await confirm(stores)
            assert len(slept) == count


async def test_a_server_that_is_restarted_while_an_fsync_is_waited_for_confirms_nothing() -> None:
    with real(lambda: RedisServer(append_only=True, options=EVERYSEC)) as server:
        async with opened(server.url) as stores:
            await stage(stores)
            sleep = below(stores.barrier)._clock.sleep

            async def restart(_: float) -> None:
                below(stores.barrier)._clock.sleep = sleep
                server.kill()
                server.start()

            below(stores.barrier)._clock.sleep = restart
            with pytest.raises(Unavailable, match=r"restarted|cannot be reached"):
                await confirm(stores)


async def test_a_rewrite_of_the_log_is_waited_for() -> None:
    with real(lambda: RedisServer(append_only=True, options=EVERYSEC)) as server:
        async with opened(server.url) as stores:
            await stage(stores)
            slept: list[float] = []
            sleep = below(stores.barrier)._clock.sleep

            async def rewrite(seconds: float) -> None:
                if not slept:
                    server.command("BGREWRITEAOF")
                slept.append(seconds)
                await sleep(seconds)

            below(stores.barrier)._clock.sleep = rewrite
            await confirm(stores)
            assert sum(seconds > 1.0 for seconds in slept) >= 2


async def test_replicas_that_are_connected_have_to_acknowledge() -> None:
    with (
        real(lambda: RedisServer(options={**ALWAYS, "repl-diskless-sync-delay": "0"})) as primary,
        real(lambda: RedisServer(options={"replicaof": f"127.0.0.1 {primary.port}"})) as replica,
    ):
        while "state=online" not in primary.command("INFO", "replication"):
            await asyncio.sleep(0.05)
        async with opened(primary.url) as stores:
            await stage(stores)
            await confirm(stores)
            assert "cmdstat_wait:" in primary.command("INFO", "commandstats")
            assert replica.command("DBSIZE") != "0"
        demanding = open_queue(primary.url, SystemClock(), Random(1), BulkSettings(replicas=2))
        await demanding.open()
        await stage(demanding)
        with pytest.raises(Unavailable, match=r"1 of 2 replicas .* acknowledged"):
            await confirm(demanding)
        await demanding.close()
