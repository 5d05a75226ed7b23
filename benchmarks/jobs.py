"""Single jobs end to end: enqueue one, execute one, beside other queues.

A producer process enqueues one job per call, from 1, 16 or 256 callers at once, while one worker
process runs them. A turn lasts from the first call to the last job's end. The latency is that of
one job alone, from the call to the end of its handler. All share one private Redis that keeps
nothing on disk. Every queue has one process that enqueues and one that works, and those on asyncio
use uvloop. Huey removes a job from Redis before it runs it, and records nothing afterwards: a job
that runs when its worker is killed is lost. The rows "with fsync" are ours on a Redis that syncs
every write to disk, beside ours without. The rest is as in `queue`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median

import msgspec
from redis import Redis

from heatsink.testing.redis import RedisServer

from .harness import Bench, Samples, Scale, Target, interleave, ratio_at_least, ratio_at_most
from .queue.driver import Driver, driving
from .queue.peers import BULLMQ, OURS_JOBS, PEERS, Peer, found

PRODUCERS = (1, 16, 256)
ALONE = 40  # jobs of which the latency is measured
QUEUES = ("BullMQ", "taskiq", "arq", "SAQ", "dramatiq", "Huey", "Celery")
JOBS = {"Heatsink": 4_000, "BullMQ": 4_000}
OTHERS = 1_000


class Turn(msgspec.Struct, frozen=True):
    """What one queue did in one turn: jobs a second by producers, and costs per job."""

    jobs_per_s: dict[int, float]
    latency_s: float
    commands: float
    worker_cpu_s: float
    redis_cpu_s: float


class Contender:
    """One queue. A turn measures all numbers of producers, and the latency of one job."""

    def __init__(self, peer: Peer, command: Sequence[str], jobs: int, url: str, durability: str):
        self.peer = peer
        self.turns: list[Turn] = []
        self.failed = False
        self._command = command
        self._jobs = jobs
        self._url = url
        self._durability = durability
        self._redis = Redis.from_url(url)

    async def __call__(self) -> float:
        """One that fails is out of the race; whatever else was measured stays."""
        if self.failed:
            return 0.0
        try:
            turn = await self._turn()
        except RuntimeError as error:
            self.failed = True
            print(f" ({self.peer.name} failed: {error})", file=sys.stderr, flush=True)
            return 0.0
        self.turns.append(turn)
        return turn.jobs_per_s[PRODUCERS[-1]]

    async def _turn(self) -> Turn:
        self._redis.flushall()
        how = {"DURABILITY": self._durability}
        with (
            driving(self._command, "work", self._url, **how) as worker,
            driving(self._command, "jobs", self._url, **how) as producer,
        ):
            await producer.order(0, 1, 1)
            await worker.ended(0)  # both are connected
            waited = [await _alone(worker, producer, group) for group in range(1, ALONE + 1)]
            speeds = {}
            for group, producers in enumerate(PRODUCERS, start=ALONE + 1):
                size = self._jobs if producers > 1 else max(self._jobs // 10, 50)
                before = self._costs()
                began = await producer.order(group, size, producers)
                ended = await worker.ended(group)
                speeds[producers] = size / (ended.ended_s - began.began_s)
            costs = [now - then for now, then in zip(self._costs(), before, strict=True)]
        return Turn(
            jobs_per_s=speeds,
            latency_s=sorted(waited)[len(waited) // 2],
            commands=costs[0] / size,
            worker_cpu_s=ended.cpu_s / size,
            redis_cpu_s=costs[1] / size,
        )

    def _costs(self) -> tuple[float, float]:
        """Commands that Redis ran so far, and the CPU seconds it used."""
        commands = self._redis.info("commandstats").values()
        cpu = self._redis.info("cpu")
        used_s = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
        return float(sum(command["calls"] for command in commands)), float(used_s)

    def speeds(self, producers: int) -> Samples:
        return [turn.jobs_per_s[producers] for turn in self.turns]

    def samples(self, name: str) -> Samples:
        return [getattr(turn, name) for turn in self.turns]


async def _alone(worker: Driver, producer: Driver, group: int) -> float:
    await producer.order(group, 1, 1)
    return (await worker.ended(group)).waited_s


def contenders(scale: Scale, url: str) -> list[Contender]:
    wanted = scale.peers or (QUEUES[:3] if scale.quick else QUEUES)
    peers = [(OURS_JOBS, OURS_JOBS.command() or []), *found(wanted)]
    return [
        Contender(peer, command, JOBS.get(peer.name, OTHERS) // scale(4, 1), url, "relaxed")
        for peer, command in peers
    ]


def target_of(other: Peer, producers: int) -> Target | None:
    if producers < PRODUCERS[-1]:
        return None
    return ratio_at_least(1.2 if other is BULLMQ else 3.0)


def show(bench: Bench, ours: Contender, others: Sequence[Contender]) -> None:
    for producers in PRODUCERS:
        metric = f"jobs executed, {producers} producer{'s' * (producers > 1)}"
        for other in others:
            alternative = (other.peer.name, other.speeds(producers))
            bench.add(
                metric, "/s", ours.speeds(producers), target_of(other.peer, producers), alternative
            )
    quickest = min(others, key=lambda other: median(other.samples("latency_s")), default=None)
    columns = (
        ("latency of one job", "ms", "latency_s"),
        ("Redis commands per job, 256 producers", "", "commands"),
        ("worker's CPU per job, 256 producers", "µs", "worker_cpu_s"),
        ("Redis's CPU per job, 256 producers", "µs", "redis_cpu_s"),
    )
    for metric, unit, field in columns:
        for other in others:
            is_best = field == "latency_s" and other is quickest
            target = ratio_at_most(1.2) if is_best else None
            alternative = (other.peer.name, other.samples(field))
            bench.add(metric, unit, ours.samples(field), target, alternative)


def show_fsync(bench: Bench, synced: Contender, ours: Contender) -> None:
    for producers in PRODUCERS:
        metric = f"jobs executed with fsync, {producers} producer{'s' * (producers > 1)}"
        alternative = ("without fsync", ours.speeds(producers))
        bench.add(metric, "/s", synced.speeds(producers), None, alternative)
    alternative = ("without fsync", ours.samples("latency_s"))
    bench.add("latency of one job with fsync", "ms", synced.samples("latency_s"), None, alternative)


async def run(bench: Bench, scale: Scale) -> None:
    known = {peer.name for peer in PEERS}
    assert known >= set(QUEUES)
    with RedisServer() as server, RedisServer(append_only=True) as durable:
        ours, *others = contenders(scale, server.url)
        synced = Contender(
            OURS_JOBS, OURS_JOBS.command() or [], 4_000 // scale(4, 1), durable.url, "fsync"
        )
        await interleave(scale(1, 3), ours, *others, synced, warm_up=0)
        if not ours.failed:
            show(bench, ours, [other for other in others if not other.failed])
            if not synced.failed:
                show_fsync(bench, synced, ours)
