"""A queue under load whose servers lose data: submitters and workers live on, then all is audited.

A round goes like this: submitters stream batches in, workers run them, a fault hits the servers
while a large batch is half staged, the servers come back. Then every batch that was acknowledged
must end as `audit` demands. The harness keeps its own books: what was submitted, what was
acknowledged, and each call of a handler.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random, SystemRandom
from time import monotonic
from typing import Any

import msgspec

from heatsink.bulk import Actions, BulkSettings
from heatsink.client.queue import Queue, connect_queue
from heatsink.errors import Conflict, HeatsinkError, IdReused, NotFound

from . import audit
from .audit import Seen
from .disk import mark

LEASE_S = 2.0
DEADLINE_S = 20.0  # of one call: longer than a server is away, so that a submission goes on
PATIENCE_S = 15.0  # without any change in any batch
AUDIT_S = 90.0  # at most, for all batches of a round
AIM_S = 10.0
ROUNDS = 50
PARTITIONS = 8
STAGED_LOSS_SHARE = 0.3
PATIENCE = "how long nothing may change before a batch is said to hang"
SUBMIT_S = 60.0
LOOK_S = 0.05
STREAM_ITEMS = 500  # of a paced batch come at once
CUT_SHORT = frozenset(("slow",))  # actions whose batches are cancelled in the end


@dataclass
class Order:
    """One batch as its submitter knows it."""

    id: str
    action: str
    items: int
    pace_s: float = 0.0
    """How long its items take to come at the first attempt; 0 is as fast as they are taken."""
    padding: int = 0
    drawn: int = 0
    """How many items of the latest attempt were taken."""
    attempts: int = 0
    is_accepted: bool = False

    def _item(self, index: int) -> dict[str, str]:
        self.drawn = index + 1
        return {"mark": mark(self.id, index), "padding": "." * self.padding}

    def all_items(self) -> Iterable[dict[str, str]]:
        return (self._item(index) for index in range(self.items))

    async def streamed(self) -> AsyncIterator[dict[str, str]]:
        pause_s = self.pace_s * STREAM_ITEMS / self.items
        for index in range(self.items):
            yield self._item(index)
            if index % STREAM_ITEMS == STREAM_ITEMS - 1:
                await asyncio.sleep(pause_s)

    async def submit(self, queue: Queue) -> None:
        self.attempts += 1
        self.drawn = 0
        is_paced = self.pace_s and self.attempts == 1
        items: Any = self.streamed() if is_paced else self.all_items()
        await queue.bulk.submit(self.action, items, id=self.id, tenant=self.action)


@dataclass(frozen=True)
class Hit:
    """What a fault took from the servers."""

    items: frozenset[tuple[str, int]]
    """Batch and index of items that a server held before and holds no more."""
    is_rewriting: bool = False
    is_undone: bool = False


@dataclass
class Counts:
    """Over all rounds."""

    rounds: int = 0
    rounds_with_staged_loss: int = 0
    rounds_in_rewrite: int = 0
    rounds_with_undone_files: int = 0
    batches_acknowledged: int = 0
    batches_acknowledged_then_hit: int = 0
    """The server lost items of theirs after it had confirmed the writes."""
    batches_found_lost: int = 0
    batches_restored: int = 0
    batches_cancelled: int = 0
    items_run: int = 0
    items_run_again: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, more: Counts) -> None:
        for name, value in vars(more).items():
            setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        numbers = {name: value for name, value in vars(self).items() if name != "violations"}
        lines = [f"{name.replace('_', ' '):32}{value:>10,}" for name, value in numbers.items()]
        return "\n".join([*lines, f"{'violations':32}{len(self.violations):>10,}"])


class Ledger:
    """Each call of a handler, in order, kept where no server can lose it."""

    def __init__(self) -> None:
        self.runs: defaultdict[str, list[int]] = defaultdict(list)

    def actions(self) -> Actions:
        actions = Actions()

        @actions.action("note", together=100)
        async def note(_: list[Any], contexts: list[Any]) -> None:
            for context in contexts:
                self.runs[context.batch].append(context.index)
            await asyncio.sleep(0.001)

        @actions.action("slow")
        async def slow(_: Any, context: Any) -> None:
            self.runs[context.batch].append(context.index)
            await asyncio.sleep(0.04)

        return actions


class Submitter:
    """Submits one batch after the other, each until it is told that it was accepted."""

    def __init__(
        self, queue: Queue, name: str, make: Callable[[str], Order], violate: Callable[[str], None]
    ) -> None:
        self.orders: list[Order] = []
        self.is_stopped = False
        self._queue = queue
        self._name = name
        self._make = make
        self._violate = violate

    @property
    def present(self) -> Order | None:
        """The one that is under way."""
        order = self.orders[-1] if self.orders else None
        return None if order is None or order.is_accepted else order

    async def run(self) -> None:
        while not self.is_stopped:
            order = self._make(f"{self._name}-{len(self.orders)}")
            self.orders.append(order)
            await submit_until_accepted(self._queue, order, self._violate)
            await asyncio.sleep(LOOK_S)


async def submit_until_accepted(queue: Queue, order: Order, violate: Callable[[str], None]) -> bool:
    give_up_s = monotonic() + SUBMIT_S
    said = "it was not answered"
    while monotonic() < give_up_s:
        try:
            async with asyncio.timeout(SUBMIT_S):
                await order.submit(queue)
        except IdReused as error:
            said = f"the same items were refused: {error}"
            break
        except (HeatsinkError, TimeoutError) as error:
            said = f"{type(error).__name__}: {error}"
            await asyncio.sleep(LOOK_S)
            continue
        except Exception as error:
            said = f"submit raised what is no HeatsinkError: {error!r}"
            break
        order.is_accepted = True
        return True
    violate(f"batch {order.id}: {order.items:,} items were never accepted: {said}")
    return False


class Round:
    """One round's submitters, and the violations that they and the audit find."""

    def __init__(self, world: World, number: int, seed: int) -> None:
        self.number = number
        self.rng = Random(f"{seed}/{number}")
        self.violations: list[str] = []
        self.seconds: dict[str, float] = {}
        self.staged_at_strike: set[str] = set()
        self.accepted_at_strike: set[str] = set()
        self.prefix = f"r{number}"
        makers = {"stream": self._stream, "burst": self._burst, "small": self._small}
        if number % 2:
            makers["slow"] = self._slow
        self.submitters = [
            Submitter(world.front, f"{self.prefix}-{name}", make, self.violations.append)
            for name, make in makers.items()
        ]

    def _stream(self, id: str) -> Order:
        size = self.rng.choice((4_500, 9_000, 20_000))
        return Order(id, "note", size, pace_s=self.rng.uniform(1.2, 2.4), padding=20)

    def _burst(self, id: str) -> Order:
        size = 100_000 if self.rng.random() < 0.05 else self.rng.randint(4_500, 15_000)
        return Order(id, "note", size)

    def _small(self, id: str) -> Order:
        return Order(id, "note", self.rng.randint(1, 300), padding=self.rng.choice((0, 500)))

    def _slow(self, id: str) -> Order:
        return Order(id, "slow", 400)

    @property
    def orders(self) -> list[Order]:
        return [order for submitter in self.submitters for order in submitter.orders]

    @property
    def accepted(self) -> set[str]:
        return {order.id for order in self.orders if order.is_accepted}

    def strike(self) -> None:
        """The fault comes now."""
        self.accepted_at_strike = {order.id for order in self.orders if order.is_accepted}
        self.staged_at_strike = {
            order.id for each in self.submitters if (order := each.present) and order.drawn
        }

    async def aim(self, least: float, more: int = 0) -> None:
        """Until a paced batch is staged by that share, and by so many items more than now."""
        before = self._paced()
        start = before.drawn if before else 0
        give_up_s = monotonic() + AIM_S
        while monotonic() < give_up_s:
            order = self._paced()
            least_drawn = start + more if order is before else 0
            if order is not None and order.drawn >= max(least * order.items, least_drawn):
                return
            await asyncio.sleep(0.005)

    def _paced(self) -> Order | None:
        return self.submitters[0].present


Fault = Callable[[Round], Awaitable[Hit]]


class World:
    """A queue with its submitters' and its workers' own connections."""

    def __init__(self, front: Queue, back: Queue, patience_s: float) -> None:
        self.front = front
        self.ledger = Ledger()
        self.patience_s = patience_s
        actions = self.ledger.actions()
        self._workers = [
            back.worker(actions, lease_s=LEASE_S, member_s=LEASE_S, workers=4) for _ in range(2)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.ensure_future(worker.run()) for worker in self._workers]

    async def stop(self) -> None:
        await _ended(self._tasks)

    async def play(self, one: Round, fault: Fault, counts: Counts) -> None:
        tasks = [asyncio.ensure_future(submitter.run()) for submitter in one.submitters]
        start_s = monotonic()
        try:
            hit = await fault(one)
            one.seconds["fault"] = monotonic() - start_s
            for submitter in one.submitters:
                submitter.is_stopped = True
            await asyncio.gather(*tasks)
            one.seconds["submissions"] = monotonic() - start_s - sum(one.seconds.values())
        finally:
            await _ended(tasks)
        one.violations += [f"a worker ended: {task!r}" for task in self._tasks if task.done()]
        await Auditor(self, one, counts).run()
        one.seconds["audit"] = monotonic() - start_s - sum(one.seconds.values())
        self._count(one, hit, counts)

    def _count(self, one: Round, hit: Hit, counts: Counts) -> None:
        batches = {batch for batch, _ in hit.items}
        runs = [self.ledger.runs[order.id] for order in one.orders]
        counts.rounds += 1
        counts.rounds_with_staged_loss += bool(batches & one.staged_at_strike)
        counts.rounds_in_rewrite += hit.is_rewriting
        counts.rounds_with_undone_files += hit.is_undone
        counts.batches_acknowledged += len(one.accepted)
        counts.batches_acknowledged_then_hit += len(batches & one.accepted_at_strike)
        counts.items_run += sum(map(len, runs))
        counts.items_run_again += sum(len(each) - len(set(each)) for each in runs)
        counts.violations += [f"round {one.number}: {said}" for said in one.violations]


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Auditor:
    """Follows the acknowledged batches of a round to their ends."""

    def __init__(self, world: World, one: Round, counts: Counts) -> None:
        self._bulk = world.front.bulk
        self._world = world
        self._round = one
        self._counts = counts
        self._cancelled: set[str] = set()
        self._miscounted: set[str] = set()

    async def run(self) -> None:
        orders = [order for order in self._round.orders if order.is_accepted]
        for order in orders:
            if order.action in CUT_SHORT:
                await self._cancel(order)
        ends = await self._follow(orders)
        lost = [order for order in orders if self._check(order, ends[order.id])]
        await asyncio.gather(*(self._restore(order, ends[order.id]) for order in lost))

    def _violate(self, order: Order, said: str) -> None:
        self._round.violations.append(f"batch {order.id} ({order.items:,} items): {said}")

    async def _cancel(self, order: Order) -> None:
        try:
            await self._bulk.cancel(order.id)
            self._cancelled.add(order.id)
            self._counts.batches_cancelled += 1
        except (Conflict, NotFound):
            return  # it has ended, or is lost
        except HeatsinkError as error:
            self._violate(order, f"cancel failed: {type(error).__name__}: {error}")

    async def _follow(self, orders: list[Order]) -> dict[str, Seen]:
        """Their ends; or what they look like when nothing has changed for too long."""
        latest: dict[str, Seen] = {}
        start_s = changed_s = monotonic()
        pending = list(orders)
        while pending:
            for order in pending:
                found = await self._look(order)
                changed_s = monotonic() if found != latest.get(order.id) else changed_s
                latest[order.id] = found
            pending = [order for order in pending if not latest[order.id].is_final]
            now_s = monotonic()
            if now_s - changed_s > self._world.patience_s or now_s - start_s > AUDIT_S:
                break
            if pending:
                await asyncio.sleep(2 * LOOK_S)
        return latest

    async def _look(self, order: Order) -> Seen:
        try:
            found = audit.seen(await self._bulk.status(order.id))
        except NotFound:
            return Seen("gone")
        except Exception as error:
            return Seen("unknown", order.items, reason=f"{type(error).__name__}: {error}")
        faults = audit.wrong_counts(order.items, found)
        if faults and not found.is_final and order.id not in self._miscounted:
            self._miscounted.add(order.id)
            self._violate(order, faults[0])
        return found

    def _check(self, order: Order, end: Seen) -> bool:
        """Whether it said honestly that something was lost."""
        ran = self._world.ledger.runs[order.id]
        faults = audit.wrong_end(order.items, end, ran, order.id in self._cancelled)
        for fault in faults:
            self._violate(order, fault)
        is_lost = end.state == "lost" or end.is_wholly_lost
        self._counts.batches_found_lost += is_lost
        return is_lost and not faults

    async def _restore(self, order: Order, end: Seen) -> None:
        """Submit the same again: what was lost runs, and nothing else."""
        lost, runs = audit.lost_items(order.items, end), self._world.ledger.runs[order.id]
        before = len(runs)
        again = Order(order.id, order.action, order.items, padding=order.padding)
        if not await submit_until_accepted(
            self._world.front, again, lambda said: self._violate(order, said)
        ):
            return
        if is_cut_short := order.action in CUT_SHORT:
            await self._cancel(order)
        found = (await self._follow([again]))[order.id]
        if is_cut_short:
            faults = audit.wrong_end(order.items, found, runs, order.id in self._cancelled)
        else:
            faults = audit.wrong_restoration(order.items, lost, runs[before:], found)
        for fault in faults:
            self._violate(order, fault)
        self._counts.batches_restored += not faults


@asynccontextmanager
async def opened(url: str, settings: BulkSettings, patience_s: float) -> AsyncIterator[World]:
    logging.getLogger("heatsink").setLevel(logging.CRITICAL)
    async with connect_queue(url, settings) as front, connect_queue(url, settings) as back:
        world = World(front, back, patience_s)
        world.start()
        try:
            yield world
        finally:
            await world.stop()


class Plan(msgspec.Struct, frozen=True):
    """Which rounds are played. `kind` is what `./dev soak --KIND` calls them."""

    kind: str
    numbers: Sequence[int]
    seed: int
    patience_s: float = PATIENCE_S


async def play(plan: Plan, url: str, places: Mapping[int, str], fault: Fault) -> Counts:
    """Workers live on from round to round; after a violation all begin anew on other keys."""
    counts, numbers = Counts(), list(plan.numbers)
    while numbers:
        settings = BulkSettings(
            partitions=PARTITIONS,
            places=places,
            deadline_s=DEADLINE_S,
            stage=f"round-{numbers[0]}",
        )
        async with opened(url, settings, plan.patience_s) as world:
            while numbers:
                one = Round(world, numbers.pop(0), plan.seed)
                await world.play(one, fault, counts)
                print(told(plan, one), flush=True)
                if one.violations:
                    break
    return counts


def told(plan: Plan, one: Round) -> str:
    """One line a round, and how to play it again if something is wrong."""
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in one.seconds.items())
    line = f"round {one.number}: {len(one.accepted)} batches, {took}"
    if not one.violations:
        return line
    replay = f"replay: ./dev soak --{plan.kind} 1 --seed {plan.seed} --first {one.number}"
    lines = [f"{line}: {len(one.violations)} VIOLATIONS", *one.violations, replay]
    return "\n  ".join(lines)


def main(kind: str, about: str | None, run: Callable[[Plan], Counts]) -> int:
    """A soak's command line. 1 if something was violated, or if the faults missed."""
    parser = argparse.ArgumentParser(prog=f"./dev soak --{kind}", description=about)
    parser.add_argument("rounds", type=int, nargs="?", default=ROUNDS)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1_000_000))
    parser.add_argument("--first", type=int, default=0, metavar="R", help="the first round")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, metavar="S", help=PATIENCE)
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell ignores it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    print(f"seed {asked.seed}", flush=True)
    numbers = range(asked.first, asked.first + asked.rounds)
    try:
        counts = run(Plan(kind, numbers, asked.seed, asked.patience))
    except KeyboardInterrupt:
        return 130
    print(counts)
    if counts.rounds_with_staged_loss < STAGED_LOSS_SHARE * counts.rounds:
        print(f"the faults missed: {STAGED_LOSS_SHARE:.0%} of the rounds must lose staged items")
        return 1
    return 1 if counts.violations else 0
