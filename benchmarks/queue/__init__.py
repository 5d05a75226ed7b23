"""Items that do nothing through Heatsink's queue, beside other queues and a loop by hand.

All share one private Redis that keeps nothing on disk. A turn empties it, enqueues, then starts one
worker process; it drained what it ran from the first item's end to the last one's, so no start is
counted, and nobody's `items` run dry in a moment. Heatsink does all it always does (fair tenants,
leases, retries, results once, heartbeats) with its defaults; the others do what they do at their
quickest settings. Commands count those inside scripts; CPU is the worker's and, apart, Redis's own.

Where a peer does not install, a line says so. `--peers loop,Huey,SAQ` measures only those.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median

import msgspec
from redis import Redis

from benchmarks.harness import Bench, Samples, Scale, Target, interleave, ratio_at_least
from heatsink.testing.redis import RedisServer

from .driver import Verb, driving
from .peers import BULLMQ, LOOP, OURS, PEERS, QUICK, Peer, found

PYTHON_TARGET = ratio_at_least(12)
TARGETS = {BULLMQ.name: ratio_at_least(2), LOOP.name: ratio_at_least(0.6)}


class Turn(msgspec.Struct, frozen=True):
    """What one peer did in one turn; costs are per item."""

    enqueued_per_s: float
    drained_per_s: float
    commands: float
    cpu_s: float
    redis_cpu_s: float


class Contender:
    """Enqueues and drains; items drained a second. Everything else beside.

    With `callers`, each item is enqueued by a call of its own, from so many callers at once.
    """

    def __init__(
        self,
        peer: Peer,
        command: Sequence[str],
        items: int,
        url: str,
        pause_ms: int = 0,
        callers: int = 0,
    ) -> None:
        self.peer = peer
        self.turns: list[Turn] = []
        self.failed = False
        self._command = command
        self._items = items
        self._pause_ms = pause_ms
        self._callers = callers
        self._url = url
        self._redis = Redis.from_url(url)

    async def __call__(self) -> float:
        """A peer that fails is out of the race; whatever else was measured stays."""
        if self.failed:
            return 0.0
        try:
            turn = await self._turn()
        except RuntimeError as error:
            self.failed = True
            print(f" ({self.peer.name} failed: {error})", file=sys.stderr, flush=True)
            return 0.0
        self.turns.append(turn)
        return turn.drained_per_s

    async def _turn(self) -> Turn:
        self._redis.flushall()
        items, url = self._items, self._url
        verb: Verb = "jobs" if self._callers else "enqueue"
        with driving(self._command, verb, url, DURABILITY="relaxed") as driver:
            await driver.order(0, 1, min(self._callers, 1))  # connects
            before = self._costs()
            enqueued = await driver.order(1, items, self._callers or self._pause_ms)
        with driving(self._command, "work", url, DURABILITY="relaxed") as worker:
            drained = await worker.ended(1)
        commands, cpu_s = (now - then for now, then in zip(self._costs(), before, strict=True))
        return Turn(
            enqueued_per_s=items / enqueued.seconds,
            drained_per_s=(items - 1) / drained.seconds,
            commands=commands / items,
            cpu_s=drained.cpu_s / items,
            redis_cpu_s=cpu_s / items,
        )

    def _costs(self) -> tuple[float, float]:
        """Commands that Redis ran so far, and the CPU seconds it used."""
        commands = self._redis.info("commandstats").values()
        cpu = self._redis.info("cpu")
        used_s = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
        return float(sum(command["calls"] for command in commands)), float(used_s)

    def samples(self, name: str) -> Samples:
        return [getattr(turn, name) for turn in self.turns]

    @property
    def middle(self) -> float:
        return median(self.samples("drained_per_s"))


def contenders(scale: Scale, url: str) -> list[Contender]:
    """Ours first; then whoever was asked for and can be had."""
    wanted = scale.peers or (QUICK if scale.quick else [peer.name for peer in PEERS])
    ours = (OURS, OURS.command() or [])
    return [
        Contender(peer, command, peer.items // scale(4, 1), url)
        for peer, command in (ours, *found(wanted))
    ]


def show(bench: Bench, ours: Contender, others: Sequence[Contender]) -> None:
    pythons = [other for other in others if other.peer.is_python_peer]
    best = max(pythons, key=lambda other: other.middle, default=None)
    columns = (
        ("items drained", "/s", "drained_per_s"),
        ("items enqueued", "/s", "enqueued_per_s"),
        ("Redis commands per item", "", "commands"),
        ("worker's CPU per item", "µs", "cpu_s"),
        ("Redis's CPU per item", "µs", "redis_cpu_s"),
    )
    for metric, unit, field in columns:
        for other in others:
            name = "hand-written loop" if other.peer is LOOP else other.peer.name
            target = _target(other, best) if field == "drained_per_s" else None
            alternative = (name, other.samples(field))
            bench.add(metric, unit, ours.samples(field), target, alternative)


def _target(other: Contender, best: Contender | None) -> Target | None:
    return PYTHON_TARGET if other is best else TARGETS.get(other.peer.name)


async def run(bench: Bench, scale: Scale) -> None:
    with RedisServer() as server:
        ours, *others = contenders(scale, server.url)
        await interleave(scale(1, 5), ours, *others, warm_up=0)
        show(bench, ours, [other for other in others if not other.failed])
