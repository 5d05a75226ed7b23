"""The timelines of a client: posts are in the data store, pushes and homes in the queue's Redis."""

from __future__ import annotations

from collections.abc import AsyncIterable
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any

from heatsink.primitives.ids import minter_of
from heatsink.registry.registry import Registry
from heatsink.spread.backoff import Backoff
from heatsink.spread.counters import Counters
from heatsink.spread.log import Log
from heatsink.timelines.graph import Graph
from heatsink.timelines.modes import Choice, CostMeter, Modes
from heatsink.timelines.policy import TimelineSettings
from heatsink.timelines.store import Cache, FanOut
from heatsink.timelines.timelines import FAN_OUT, PRIORITY, Timelines

from .queue import PatientHomes, Queue


def make_timelines(
    log: Log,
    counters: Counters,
    registry: Registry,
    queue: Queue,
    cache: Cache,
    settings: TimelineSettings,
    rng: Random,
    backoff: Backoff,
) -> Timelines:
    minter = minter_of(log.scheme, rng)

    def mint() -> bytes:
        return minter.mint(registry.now_ms(), registry.view.horizon_ms)[0]

    async def reach(time_ms: int) -> None:
        deadline_s = backoff.deadline_s()
        await backoff.call(partial(registry.reach, time_ms, deadline_s), "", deadline_s)

    graph, modes = Graph(log, counters, cache, mint, rng), Modes(registry, reach)
    homes = PatientHomes(queue.homes, backoff)
    meter = CostMeter(log, graph, homes, cache, registry.now_ms)
    choice = Choice(graph, modes, meter, settings, registry.now_ms)
    return Timelines(log, graph, homes, modes, choice, cache, _through(queue), settings)


def _through(queue: Queue) -> FanOut:
    async def fan_out(author: str, post: str, items: AsyncIterable[Any]) -> str:
        """Submit the push under the post's id, so that posting again does not push again."""
        name = blake2b(author.encode(), digest_size=8).hexdigest()
        batch = await queue.bulk.submit(
            FAN_OUT, items, tenant=author, priority=PRIORITY, id=f"push:{post}:{name}"
        )
        return batch.id

    return fan_out
