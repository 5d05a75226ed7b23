"""Faulty links between a process and its store: latency, lost and late calls, lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from heatsink.bulk.store import QueueStores
from heatsink.errors import Unavailable
from heatsink.stores.stores import Stores

from .clocks import SkewedClock


@dataclass
class Faults:
    """How often calls over a link fail, and how. You may change the fields at any time.

    `lost`, `answer_lost` and `late` are probabilities from 0 to 1. `lost`: a call never arrives.
    `answer_lost`: the answer to a call never returns. `late`: a call arrives `late_s` seconds late.
    With `cut`, every call is lost. With `deaf`, every answer is lost.

    Example::

        faults = Faults(lost=0.05, late=0.01)
        stores = linked_stores(stores, Link(SkewedClock(), faults, Random(7)))
    """

    latency_s: tuple[float, float] = (0.001, 0.02)
    timeout_s: float = 1.0
    lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    late_s: tuple[float, float] = (1.0, 60.0)
    cut: bool = False
    deaf: bool = False  # a one-way network partition: calls arrive, answers do not return

    def heal(self) -> None:
        """End all faults, but keep the latency: `faults.heal()`"""
        self.lost = self.answer_lost = self.late = 0.0
        self.cut = self.deaf = False


@dataclass
class Link:
    """Carries calls to a store. A call on its way arrives even if its sender gives up or dies.

    Example::

        link = Link(SkewedClock(), Faults(lost=0.05), Random(7))
        await link.call(store.get, "conv_1")
    """

    clock: SkewedClock
    faults: Faults
    rng: Random
    landings: set[asyncio.Task[Any]] = field(default_factory=set)

    async def call(self, method: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Call `method` over the link, and return its result. Raises `Unavailable` on a timeout."""
        await self.clock.awake()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(answer, method, arguments)
        try:
            async with asyncio.timeout(self.faults.timeout_s):
                result = await answer
        except TimeoutError:
            result = Unavailable("the simulated call timed out: it may have been applied")
        await self.clock.awake()
        if isinstance(result, Exception):
            raise result
        return result

    def _send(
        self,
        answer: asyncio.Future[Any],
        method: Callable[..., Awaitable[Any]],
        arguments: tuple[Any, ...],
    ) -> None:
        faults, chance = self.faults, self.rng.random()
        if faults.cut or chance < faults.lost:
            return
        late = chance < faults.lost + faults.late
        delay_s = self.rng.uniform(*(faults.late_s if late else faults.latency_s))
        answered = chance >= faults.lost + faults.late + faults.answer_lost and not faults.deaf
        landing = asyncio.ensure_future(self._land(delay_s, answered, answer, method, arguments))
        self.landings.add(landing)
        landing.add_done_callback(self.landings.discard)

    async def _land(
        self,
        delay_s: float,
        answered: bool,
        answer: asyncio.Future[Any],
        method: Callable[..., Awaitable[Any]],
        arguments: tuple[Any, ...],
    ) -> None:
        await asyncio.sleep(delay_s)
        try:
            result = await method(*arguments)
        except Exception as error:
            result = error
        await asyncio.sleep(self.rng.uniform(*self.faults.latency_s))
        if answered and not answer.done():
            answer.set_result(result)


class _Linked:
    """A store at the other end of a link: it has the same methods, and each call can fail."""

    def __init__(self, link: Link, store: object) -> None:
        self._link = link
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        def call(*arguments: Any) -> Awaitable[Any]:
            as_of_now = getattr(self._store, "as_of_now", None)
            store = as_of_now() if as_of_now else self._store
            return self._link.call(getattr(store, name), *arguments)

        return call


def linked_stores(stores: Stores, link: Link, relay: Link | None = None) -> Stores:
    """Return the same stores, with every call over `link`.

    If `relay` is given, heat reports, news and soft decisions (which may be lost) go over `relay`.

    Example::

        stores = linked_stores(memory_stores(clock), Link(SkewedClock(), Faults(), Random(7)))
    """

    def far(store: object, over: Link = link) -> Any:
        return _Linked(over, store)

    return replace(
        stores,
        log=far(stores.log),
        counters=far(stores.counters),
        registry=far(stores.registry),
        lease=far(stores.lease),
        bus=far(stores.bus, relay or link),
        news=stores.news and far(stores.news, relay or link),
        soft=stores.soft and far(stores.soft, relay or link),
    )


def linked_queue(stores: QueueStores, link: Link) -> QueueStores:
    """Return the same queue, with its calls over `link`.

    The bell, which wakes consumers, and soft decisions bypass the link: they may be lost
    anyway.

    Example::

        queue = linked_queue(server.stores(), Link(SkewedClock(), Faults(), Random(7)))
    """

    def far(store: object) -> Any:
        return _Linked(link, store)

    return replace(
        stores,
        queue=far(stores.queue),
        singles=far(stores.singles),
        losses=far(stores.losses),
        batches=far(stores.batches),
        limits=far(stores.limits),
        places=far(stores.places),
        fleet=far(stores.fleet),
        barrier=far(stores.barrier),
        moves=far(stores.moves),
    )
