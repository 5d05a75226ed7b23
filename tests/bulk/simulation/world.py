"""One seeded run: producers, consumers, an operator, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from heatsink.bulk import Bulk, BulkSettings, submit
from heatsink.bulk import batch as chunks
from heatsink.bulk import submit as placement
from heatsink.bulk.plan import QueuePlan, Spot, founding
from heatsink.bulk.settings import ConsumerSettings
from heatsink.bulk.work import consumer as consumers
from heatsink.bulk.work.consumer import Consumer
from heatsink.errors import HeatsinkError
from heatsink.stores.memory.queue import queue as partitions
from heatsink.testing import SkewedClock, run_on_virtual_time
from tests.bulk.process import Process

from . import checks
from .audit import Audit
from .handlers import CALM, Handlers
from .history import History, Submitted, Violation
from .server import HOME, LossyServer, Machine

TROUBLE_S = 12.0
PATIENCE_S = 90.0
STALE_S = 5.0
LATE_S = (0.5, 8.0)
LATENCY_S = (0.0005, 0.003)
LEASE_S = 1.2
STEP_S = 3600.0
PARTITIONS = 4
PARTITIONS_MAX = 7
ACTIONS = ("work", "limited", "limited", "together", "placed", "crowd")
TENANTS = ("ann", "bob", "cleo")
RATES = {"ann": "8/s", "bob": "25/s", "cleo": "300/min"}


class Node:
    """A process that comes back after a crash, under another name."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.rng = Random(world.rng.random())
        self.lives = 0
        self.past: list[Process] = []
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.process = Process(f"{self.name}.{self.lives}", self.rng, LATENCY_S)
        self.process.faults.late_s = LATE_S
        self.past.append(self.process)
        places = self.world.server.founded_places(PARTITIONS_MAX)
        settings = BulkSettings(partitions=PARTITIONS, deadline_s=3.0, places=places)
        self.first = founding(settings, "memory://")
        self.stores = self.process.stores(self.world.server, self.first)
        self.bulk = Bulk(self.stores, settings, self.process.clock, self.rng)
        if self.name.startswith("consumer"):
            self._consume()

    def _consume(self) -> None:
        process = self.process
        self.handlers = Handlers(process, self.world.server, self.world.audit, self.rng)
        self.handlers.weights = self.world.weights or self.handlers.weights
        settings = ConsumerSettings(
            workers=self.rng.choice((1, 2, 5)), lease_s=LEASE_S, member_s=1.0, grace_s=1.0
        )
        self.consumer = Consumer(
            self.stores,
            self.bulk,
            self.handlers.actions(),
            settings,
            process.name,
            process.clock,
            self.rng,
        )
        process.run(self.consumer.run())

    @property
    def is_up(self) -> bool:
        return not self.process.is_dead

    @property
    def landings(self) -> list[asyncio.Task[Any]]:
        return [task for process in self.past for task in process.link.landings]


class World:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.clock = SkewedClock()
        self.server_clock = SkewedClock()
        machines = 2 if seed % 3 == 0 else 1
        self.server = LossyServer(self.server_clock, self.rng, machines)
        self.moves = machines > 1
        self.imports: set[str] = set()
        self.loses_power = seed % 4 != 0
        self.fails_over = seed % 4 == 3
        self.is_damaged = seed % 5 == 4
        self.history = History()
        self.audit = Audit(self.history, LEASE_S, self.server.true_s)
        self.weights: Any = None
        self.producers = [Node(f"producer-{n}", self) for n in range(2)]
        self.consumers = [Node(f"consumer-{n}", self) for n in range(3)]
        self.importer = Node("producer-slow", self)
        self.nodes = [*self.producers, *self.consumers, self.importer]
        self.acts: dict[asyncio.Task[None], None] = {}
        self.context = copy_context()

    async def run(self) -> History:
        for node in self.nodes:
            node.process.clock.offset_s = self.rng.choice((0.0, 0.0, -3.0, 90.0, 1e6))
        loops = [asyncio.ensure_future(work) for work in self._workload()]
        await asyncio.sleep(TROUBLE_S)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await self._calm_down()
        await self._finish()
        checks.check_all(self.server, self.history, self.audit)
        return self.history

    def _workload(self) -> list[Any]:
        return [
            self._forever(self._submit, 0.4),
            self._forever(self._operate, 0.3),
            self._forever(self._repartition, 6.0),
            self._forever(self._move, 0.6 if self.moves else 1e9),
            self._forever(self._import, 1.5 if self.moves else 1e9),
            self._forever(self._make_trouble, 0.6),
            self._forever(self._lose_power, 4.0 if self.loses_power else 1e9),
            self._forever(self._damage, 5.0 if self.is_damaged else 1e9),
            self._forever(self._step_server, 4.0),
        ]

    async def _forever(self, act: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while self.audit.violation is None:
            await asyncio.sleep(self.rng.expovariate(1 / pause_s))
            task = asyncio.ensure_future(_noticed(act()))
            self.acts[task] = None

    # -- what the application does ---------------------------------------------------------

    def _up(self, nodes: list[Node]) -> Node | None:
        return self.rng.choice([node for node in nodes if node.is_up] or [None])

    async def _on(self, node: Node, act: Callable[[Bulk], Awaitable[Any]]) -> Any:
        """Errors of ours, or a crash, are returned: the caller does not know what happened."""
        if self.weights is None and self.rng.random() < 0.1:
            self.acts[asyncio.ensure_future(self._crash_soon(node))] = None
        task = node.process.run(_noticed(act(node.bulk)))
        try:
            return await task
        except HeatsinkError as error:
            self.history.errors[type(error).__name__] += 1
            return error
        except (asyncio.CancelledError, BrokenPipeError) as error:
            if not task.done():
                raise
            return error

    async def _submit(self) -> None:
        number = len(self.history.submitted)
        action = self.rng.choice(ACTIONS)
        size = self.rng.choice((0, 1, 1, 1, 2, 5, 12, 30))
        on_done = "told" if self.rng.random() < 0.5 else ""
        batch = Submitted(f"b{number}", action, self.rng.choice(TENANTS), size, on_done)
        batch.is_single = size == 1 and number % 4 > 0
        has_limit = f"{action}/{batch.tenant}" in self.server.limits._limits
        if action == "limited" and not (batch.is_single and has_limit and number % 2):
            batch.rate = RATES[batch.tenant]
        self.history.submitted[batch.id] = batch
        if self.rng.random() < 0.2:
            await asyncio.gather(self._submit_until_known(batch), self._submit_until_known(batch))
        else:
            await self._submit_until_known(batch)

    async def _import(self) -> None:
        """A process that knows an old plan when its items come at last."""
        batch = Submitted(f"b{len(self.history.submitted)}", "work", "ann", 5, "")
        self.history.submitted[batch.id] = batch
        self.imports.add(batch.id)
        if self.importer.is_up:
            result = await self._on(self.importer, lambda bulk: self._submit_once(bulk, batch))
            batch.accepted = not isinstance(result, BaseException)

    async def _submit_until_known(self, batch: Submitted) -> None:
        """Tries again with the same id, here or elsewhere, unless it gives up half way."""
        for _ in range(self.rng.choice((1, 2, 3, 6))):
            if node := self._up(self.producers):
                result = await self._on(node, lambda bulk: self._submit_once(bulk, batch))
                if not isinstance(result, BaseException):
                    batch.accepted = True
                    self.history.events["accepted"] += 1
                    return
            await asyncio.sleep(self.rng.uniform(0.0, 1.0))

    async def _submit_once(self, bulk: Bulk, batch: Submitted) -> Any:
        return await bulk.submit(
            batch.action,
            [[batch.id, 0]] if batch.is_single else self._stream(batch, bulk),
            tenant=batch.tenant,
            rate=batch.rate,
            id=batch.id,
            on_done=batch.on_done,
        )

    async def _stream(self, batch: Submitted, bulk: Bulk) -> AsyncIterator[list[Any]]:
        breaks = self.rng.random() < 0.15
        pause_s = self.rng.choice((0.0, 0.0, 0.01, 0.3))
        if batch.id in self.imports:
            await asyncio.sleep(self.rng.uniform(0.0, 4.0))
        for index in range(batch.size):
            await asyncio.sleep(pause_s)
            if breaks and index > batch.size // 2:
                raise BrokenPipeError
            yield [batch.id, index]
        if (
            self.weights is None
            and self.rng.random() < 0.06
            and isinstance(bulk._clock, SkewedClock)
        ):
            bulk._clock.stall(STALE_S + 3.0)  # between the last item and the seal
        if self.loses_power and self.weights is None and self.rng.random() < 0.06:
            self._lose_power_soon()

    async def _operate(self) -> None:
        node, verb = self._up(self.producers), self.rng.choice(list(VERBS))
        all_known = self.server.batches._batches.values()
        records = [batch for batch in all_known if batch.id in self.history.submitted]
        sensible = [b.id for b in records if b.state in VERBS[verb]][-4:]
        known = sensible or [b.id for b in records][-6:]
        if node is None or not known:
            return
        id = self.rng.choice(known)
        act = self._status if verb is _look else verb
        result = await self._on(node, partial(act, id=id))
        if not isinstance(result, BaseException):
            self.history.events[verb.__name__] += 1

    async def _repartition(self) -> None:
        if node := self._up(self.producers):
            await self._on(
                node, lambda bulk: bulk.repartition(self.rng.choice((2, 4, PARTITIONS_MAX)))
            )

    async def _move(self) -> None:
        """An operator moves a partition, perhaps gives up, and perhaps another one goes on."""
        node, plan = self._up(self.producers), self.server.fleet.stored
        if node is None or plan is None:
            return
        pending = [(number, move.to) for number, move in sorted(plan.moves.items())]
        pending += [(number, plan.place(number).url) for number, _ in pending]
        idle = [n for n in range(plan.high_water) if self._is_idle(plan.spot(n))]
        others = [*idle, *idle, self.rng.randrange(plan.high_water)]
        number, url = self.rng.choice(
            [*pending, *((other, self._some_machine()) for other in others)]
        )
        patience_s = self.rng.choice((0.3, 2.0, 20.0))
        result = await self._on(node, lambda bulk: self._placed(bulk, number, url, patience_s))
        if not isinstance(result, BaseException):
            self.history.events["moved"] += bool(result)

    def _is_idle(self, spot: Spot) -> bool:
        shares = self.server.queue.held(spot).shares.values()
        return all(share.state == "finished" for share in shares)

    def _some_machine(self) -> str:
        return self.server.url_of(self.rng.randrange(len(self.server.machines))) or "home"

    async def _placed(self, bulk: Bulk, number: int, url: str, patience_s: float) -> bool:
        """Whether the partition was moved in time."""
        before = (await bulk.plan()).spot(number)
        try:
            async with asyncio.timeout(patience_s):
                async for step in bulk.moving(number, url or "home"):
                    is_closed = step.step != "draining"
                    if is_closed and self.loses_power and self.rng.random() < 0.3:
                        self._lose_power_soon()
        except TimeoutError:
            return False
        return (await bulk.plan()).spot(number).place != before.place

    # -- what goes wrong -------------------------------------------------------------------

    async def _make_trouble(self) -> None:
        node = self.rng.choice(self.nodes)
        await self.rng.choice(
            (self._crash, self._stall, self._jump, self._cut, self._deafen, self._disturb)
        )(node)

    async def _crash(self, node: Node) -> None:
        if not node.is_up:
            return
        node.process.kill()
        await asyncio.sleep(self.rng.uniform(0.1, 2.0))
        if not node.is_up:
            node.start()

    async def _crash_soon(self, node: Node) -> None:
        """While it is in the middle of something."""
        await asyncio.sleep(self.rng.uniform(0.0, 0.06))
        await self._crash(node)

    async def _stall(self, node: Node) -> None:
        node.process.stall(self.rng.choice((0.3, 1.0, 3.0, 8.0)))

    async def _jump(self, node: Node) -> None:
        node.process.clock.offset_s += self.rng.uniform(-4.0, 4.0)

    async def _step_server(self) -> None:
        """Its clock is set an hour back or ahead, sometimes only for a moment."""
        step_s = self.rng.choice((-STEP_S, STEP_S))
        self.server_clock.offset_s += step_s
        self.history.events["stepped back" if step_s < 0 else "stepped ahead"] += 1
        if self.rng.random() < 0.4:
            await asyncio.sleep(self.rng.uniform(0.0, 5.0))
            self.server_clock.offset_s -= step_s

    async def _cut(self, node: Node) -> None:
        faults = node.process.faults
        faults.cut = True
        await asyncio.sleep(self.rng.uniform(0.2, 4.0))
        faults.cut = faults is node.process.faults and not node.is_up

    async def _deafen(self, node: Node) -> None:
        faults = node.process.faults
        faults.deaf = True
        await asyncio.sleep(self.rng.uniform(0.2, 4.0))
        faults.deaf = False

    async def _disturb(self, node: Node) -> None:
        faults = node.process.faults
        faults.lost, faults.answer_lost = self.rng.uniform(0, 0.1), self.rng.uniform(0, 0.15)
        faults.late = self.rng.uniform(0, 0.1)
        faults.latency_s = (0.001, self.rng.choice((0.005, 0.02, 0.3)))

    def _lose_power_soon(self) -> None:
        """In a task that is not one of the process that acts just now."""
        loop = asyncio.get_running_loop()
        self.acts[loop.create_task(self._lose_power(), context=self.context)] = None

    async def _lose_power(self) -> None:
        """A server is gone for a moment, and its newest writes for ever."""
        machine = self.rng.choice(self.server.machines)
        await asyncio.sleep(self.rng.uniform(0.0, 0.05))
        if machine.is_down:
            return
        self.server.stop(machine)
        await asyncio.sleep(self.rng.uniform(0.3, 1.5))
        self._come_back(machine, self._kept(machine))

    def _kept(self, machine: Machine) -> int:
        written, durable = len(machine.log), machine.durable
        if self.fails_over and self.rng.random() < 0.4:  # to a replica that lags behind
            durable = max(durable - self.rng.randrange(1, 400), 0)
        return durable if self.rng.random() < 0.5 else self.rng.randint(durable, written)

    def _come_back(self, machine: Machine, kept: int) -> None:
        history, records = self.history, self.server.batches._batches
        unsealed = {id for id, batch in records.items() if not batch.is_sealed}
        parts = self.server.parts_on(machine)
        if kept < machine.durable:
            history.broken |= {*history.submitted, *records}
        if kept < len(machine.log):
            self.audit.forget(parts)
        loss = self.server.start(machine, kept)
        history.events["losses"] += bool(loss.calls)
        history.events["fail-overs that lost"] += bool(loss.was_durable)
        history.events["lost between stage and seal"] += bool(loss.stages() & unsealed)
        history.events["lost limits"] += loss.has("limits")
        if machine.number == HOME and self.audit.violation is None:
            try:
                checks.check_still_ended(self.server, history)
            except Violation as violation:
                self.audit.violation = violation

    async def _damage(self) -> None:
        """A chunk that nobody has begun is gone."""
        found = [
            (number, share.part, chunk)
            for number, queue in checks.partitions_of(self.server)
            for share in queue.shares.values()
            for chunk in share.chunks
            if share.state != "finished" and chunk > share.next_chunk
        ]
        if found:
            number, part, chunk = self.rng.choice(found)
            self.history.broken.add(part.batch)
            self.history.events["damages"] += 1
            plan = self.server.fleet.stored
            self.server.damage(plan.spot(number) if plan else number, part.id, chunk)

    # -- and then it is quiet --------------------------------------------------------------

    async def _calm_down(self) -> None:
        """Faults end, handlers work, every process is up, and what was sent lands."""
        self.weights = CALM
        for node in self.nodes:
            if not node.is_up:
                node.start()
            node.process.faults.heal()
            node.process.faults.latency_s = LATENCY_S
        self.loses_power = self.is_damaged = False
        for node in self.consumers:
            node.handlers.weights = CALM
        await asyncio.gather(*self.acts, return_exceptions=False)
        while landings := [task for node in self.nodes for task in node.landings]:
            await asyncio.wait(landings, timeout=LATE_S[1])
            if self.clock.monotonic_s() > TROUBLE_S + 2 * LATE_S[1]:
                break

    async def _finish(self) -> None:
        """An operator resumes what is paused, looks at everything, and restores what is lost."""
        give_up_s = self.clock.monotonic_s() + PATIENCE_S
        while self.audit.violation is None and self.clock.monotonic_s() < give_up_s:
            records = list(self.server.batches._batches.values())
            left = [b for b in records if not b.is_final and b.state != "open"]
            lost = [batch for batch in self.history.submitted.values() if self._is_lost(batch)]
            is_moving = any((self.server.fleet.stored or QueuePlan(0, 0)).moves)
            if not left and not lost and not is_moving and not checks.leftovers(self.server):
                return
            await self._finish_moves()
            for record in left:
                verb = _resume if record.state == "paused" else self._status
                await self._on(self.producers[0], partial(verb, id=record.id))
            for batch in lost:
                await self._restore(batch)
            await asyncio.sleep(2.0)

    async def _finish_moves(self) -> None:
        """Finish all moves, and find partitions again if the home has lost newer plans."""
        plan, node = self.server.fleet.stored or QueuePlan(0, 0), self.producers[0]
        for number in range(plan.high_water):
            spot, move = plan.spot(number), plan.moves.get(number)
            queue = self.server.queue.held(spot)
            is_closed = queue.marks.moved >= spot.since
            to = move.to or "home" if move else queue.marks.to
            if is_closed and any(share.is_live for share in queue.shares.values()):
                to = spot.url or "home"
            if move or is_closed:
                await self._on(node, partial(self._placed, number=number, url=to, patience_s=20.0))

    def _is_lost(self, batch: Submitted) -> bool:
        record = self.server.batches._batches.get(batch.id)
        if record is None or not record.is_sealed:
            return batch.accepted and batch.id in self.history.broken
        return record.state == "lost"

    async def _restore(self, batch: Submitted) -> None:
        """Submitting the same items again runs just those that were lost."""
        record = self.server.batches._batches.get(batch.id)
        if record is not None and record.is_sealed:
            if batch.id not in self.history.broken:
                raise Violation(f"{batch.id} has lost items that its servers had confirmed")
            checks.check_missing(record, self.audit)
            self.history.events["named"] += 1
        before = {at: n for at, n in self.history.starts.items() if at[0] == batch.id}
        result = await self._on(self.producers[0], lambda bulk: self._submit_once(bulk, batch))
        if isinstance(result, BaseException) or record is None or not record.is_sealed:
            return
        give_up_s = self.clock.monotonic_s() + PATIENCE_S
        while not self.server.batches._batches[batch.id].is_final:
            if self.clock.monotonic_s() > give_up_s:
                raise Violation(f"{batch.id} was restored and does not end")
            await asyncio.sleep(0.5)
        self.history.events["restored"] += 1
        missing = {i for first, count in record.missing for i in range(first, first + count)}
        for index in range(batch.size):
            again = self.history.starts[batch.id, index] > before.get((batch.id, index), 0)
            if again != (index in missing):
                raise Violation(f"item {index} of {batch.id} ran again: {again}")

    async def _status(self, bulk: Bulk, id: str) -> None:
        progress = await bulk.status(id)
        parts = (progress.done, progress.failed, progress.cancelled, progress.lost)
        total = sum(parts) + progress.running
        if total > progress.accepted or min(*parts, progress.running) < 0:
            raise Violation(f"{id} shows {total} of {progress.accepted} items: {progress}")
        record = self.server.batches._batches.get(id)
        if progress.is_final and record and record.is_sealed and record.state == progress.state:
            self.history.ended[id] = (record.state, record.lap, record.restored)
            if self.loses_power and self.rng.random() < 0.3:
                self._lose_power_soon()


async def _noticed(work: Awaitable[Any]) -> Any:
    return await work


async def _pause(bulk: Bulk, id: str) -> None:
    await bulk.pause(id)


async def _resume(bulk: Bulk, id: str) -> None:
    await bulk.resume(id)


async def _cancel(bulk: Bulk, id: str) -> None:
    await bulk.cancel(id)


async def _retry_failed(bulk: Bulk, id: str) -> None:
    await bulk.retry_failed(id)


async def _look(bulk: Bulk, id: str) -> None:
    """`World._status` takes its place."""


VERBS = {
    _pause: ("running",),
    _resume: ("paused",),
    _cancel: ("running", "paused"),
    _retry_failed: ("failed",),
    _look: ("running", "done", "failed"),
}


@contextmanager
def _small(seed: int) -> Iterator[None]:
    """Small chunks and short times, so that a short run meets every edge."""
    with ExitStack() as stack:
        for module, name, value in (
            (chunks, "CHUNK_ITEMS_MAX", 3),
            (submit, "BLOCK_CHUNKS", 1 + seed % 2),
            (submit, "FRESH_S", 1.0),
            (placement, "HAND_SHARE", 2),
            (partitions, "STALE_MS", STALE_S * 1000),
            (consumers, "TIDY_S", 0.5),
            (consumers, "LOSSES_S", 0.7),
            (submit, "RUN_SHARE", 2),
            (submit, "WINDOW_BYTES", 100 if seed % 2 else 1 << 20),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def simulate(seed: int) -> History:
    """Run one seed. Raises `Violation` if an invariant does not hold."""
    surprises: list[str] = []

    def note(message: str, *details: object, **_: object) -> None:
        surprises.append(f"{message % details}: {sys.exception()!r}")

    async def run() -> History:
        world = World(seed)
        with world.audit.listening():
            history = await world.run()
        if surprises:
            raise Violation(surprises[0])
        return history

    logger = logging.getLogger("heatsink")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with _small(seed), patch.object(logger, "exception", note):
            return run_on_virtual_time(run())
    finally:
        logger.setLevel(level)
