"""Bulk actions on real processes that are killed, stopped and asked to leave; Redis as well."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from heatsink.client.queue import Queue
from heatsink.errors import HeatsinkError
from heatsink.testing.redis import RedisServer
from tests.servers import real
from tests.waiting import until

from .bulk import Workers, client, recorded, running_workers

pytestmark = pytest.mark.timeout(120)
LEASE_S = 2.5
EVERYSEC = pytest.mark.full("the stricter setting stands for it")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with real(lambda: RedisServer(append_only=True)) as server:
        yield server


@pytest.fixture
def workers(redis: RedisServer, tmp_path: Path) -> Iterator[Workers]:
    with running_workers(redis, tmp_path, LEASE_S) as running:
        yield running


async def kill_workers(
    workers: Workers, queue: Queue, items: int, kills: int, rng: Random, apart_s: float
) -> None:
    """A batch during which processes are killed and replaced; everything is checked at its end."""
    running = [workers.start() for _ in range(3)]
    before = await recorded(queue)
    batch = await queue.bulk.submit("brief", ({"n": n} for n in range(items)))
    for _ in range(kills):
        until(lambda: sum(map(workers.is_ready, running)) > 1)
        await asyncio.sleep(rng.uniform(0.2, 0.6))
        until(lambda: any(process.pid in busy(workers) for process in running))
        victim = next(process for process in running if process.pid in busy(workers))
        workers.kill(victim)
        running.remove(victim)
        running.append(workers.start())
        await asyncio.sleep(apart_s)
    progress = await queue.bulk.wait(batch.id, timeout_s=600)
    assert (progress.state, progress.done, progress.accepted) == ("done", items, items)
    assert await recorded(queue) == before + items
    assert workers.starts_of(batch.id).keys() == set(range(items))
    check_reruns(workers)
    for process in running:
        workers.kill(process)


def busy(workers: Workers) -> set[int]:
    """Processes that have run something: one that owns no partition holds nothing."""
    return {start.pid for start in workers.journal()}


def check_reruns(workers: Workers) -> None:
    """Only what a killed process held runs again."""
    for starts in workers.rerun().values():
        assert all(start.pid in workers.killed_s for start in starts[:-1])


def latest_rerun_s(workers: Workers) -> float:
    """From the death of an item's worker to its next start, at most."""
    return max(
        following.at_s - workers.killed_s[start.pid]
        for starts in workers.rerun().values()
        for start, following in pairwise(starts)
    )


async def test_killed_workers_lose_nothing_and_record_nothing_twice(
    redis: RedisServer, workers: Workers
) -> None:
    async with client(redis) as queue:
        await kill_workers(workers, queue, items=1_500, kills=2, rng=Random(3), apart_s=0)
    assert workers.rerun()


@pytest.mark.full("killed workers are replaced for three leases of real time")
async def test_what_a_killed_worker_held_runs_again_within_two_leases(
    redis: RedisServer, workers: Workers
) -> None:
    """One kill at a time: what the next victim holds by then waits for another lease."""
    async with client(redis) as queue:
        apart_s = 2 * workers.lease_s
        await kill_workers(workers, queue, items=3_500, kills=2, rng=Random(5), apart_s=apart_s)
    assert latest_rerun_s(workers) < 2 * workers.lease_s


@pytest.mark.sleeps("a lease must pass")
@pytest.mark.full("a real worker; plain runs simulate such workers, and kill real ones")
async def test_a_worker_that_was_stopped_beyond_its_lease_changes_nothing(
    redis: RedisServer, workers: Workers
) -> None:
    async with client(redis) as queue:
        stopped = workers.start()
        batch = await queue.bulk.submit("slow", ({"n": n} for n in range(30)))
        until(lambda: len(workers.journal()) > 8)
        stopped.send_signal(signal.SIGSTOP)
        workers.start()
        assert (await queue.bulk.wait(batch.id, timeout_s=60)).done == 30
        stopped.send_signal(signal.SIGCONT)
        await asyncio.sleep(workers.lease_s)  # it hears that its leases are gone, or is refused
        assert workers.rerun()
        after = await queue.bulk.submit("brief", ({"n": n} for n in range(500)))
        assert (await queue.bulk.wait(after.id, timeout_s=60)).done == 500
        assert (await queue.bulk.status(batch.id)).done == 30
        assert await recorded(queue) == 530


async def test_a_worker_that_is_asked_to_leave_finishes_what_runs_and_gives_back_the_rest(
    redis: RedisServer, workers: Workers
) -> None:
    async with client(redis) as queue:
        leaving = workers.start()
        batch = await queue.bulk.submit("slow", ({"n": n} for n in range(60)))
        until(lambda: len(workers.journal()) > 8)
        leaving.send_signal(signal.SIGTERM)
        assert leaving.wait(timeout=30) == 0
        progress = await queue.bulk.status(batch.id)
        assert progress.running == 0
        assert progress.done == len(workers.journal()) < 60
        workers.start()
        assert (await queue.bulk.wait(batch.id, timeout_s=60)).done == 60
        assert not workers.rerun()


@pytest.mark.full("a real worker; plain runs simulate such workers, and kill real ones")
async def test_an_item_that_kills_its_worker_fails_and_its_neighbours_do_not(
    redis: RedisServer, workers: Workers
) -> None:
    async with client(redis) as queue:
        batch = await queue.bulk.submit("deadly", ({"n": n} for n in range(50)))
        process = workers.start()
        while not (await queue.bulk.status(batch.id)).is_final:
            if process.poll() is not None:
                process = workers.start()
            await asyncio.sleep(0.05)
        progress = await queue.bulk.wait(batch.id)
        assert (progress.done, progress.failed) == (49, 1)
        failures = [failure async for failure in queue.bulk.failures(batch.id)]
        assert [failure.index for failure in failures] == [7]
        assert workers.starts_of(batch.id)[7] == 3


class Submitter:
    """Submits batches, again under the same id if it was not told that they were accepted."""

    def __init__(self, queue: Queue, name: str) -> None:
        self.accepted: list[str] = []
        self._queue = queue
        self._name = name
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def run(self, items: int) -> None:
        while not self._stopped:
            id = f"{self._name}-{len(self.accepted)}"
            try:
                await self._queue.bulk.submit("brief", ({"n": n} for n in range(items)), id=id)
            except HeatsinkError:
                continue
            self.accepted.append(id)
            await asyncio.sleep(0.1)


async def kill_redis(redis: RedisServer, workers: Workers, queue: Queue, kills: int) -> int:
    items, rng = 100, Random(4)
    before = await recorded(queue)
    submitters = [Submitter(queue, f"{name}-{before}") for name in "abc"]
    tasks = [asyncio.ensure_future(submitter.run(items)) for submitter in submitters]
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0.5, 1.5))
        redis.kill()
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        await asyncio.to_thread(redis.start)
    for submitter in submitters:
        submitter.stop()
    await asyncio.gather(*tasks)
    accepted = [id for submitter in submitters for id in submitter.accepted]
    assert len(accepted) >= len(submitters)
    for id in accepted:
        progress = await queue.bulk.wait(id, timeout_s=60)
        assert (progress.state, progress.done) == ("done", items)
    starts = workers.starts()
    assert all(starts[id].keys() == set(range(items)) for id in accepted)
    assert await recorded(queue) == before + items * len(accepted)
    return len(accepted)


@pytest.mark.sleeps("it works for a while between the kills")
@pytest.mark.parametrize("fsync", ["always", pytest.param("everysec", marks=EVERYSEC)])
async def test_a_killed_redis_loses_nothing_that_was_accepted(tmp_path: Path, fsync: str) -> None:
    with (
        real(lambda: RedisServer(append_only=True, options={"appendfsync": fsync})) as redis,
        running_workers(redis, tmp_path, LEASE_S) as workers,
    ):
        for _ in range(2):
            workers.start(workers=16)
        async with client(redis) as queue:
            await kill_redis(redis, workers, queue, kills=2)
