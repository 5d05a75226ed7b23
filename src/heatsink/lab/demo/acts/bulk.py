"""Act 5: a batch of a million items beside batches of twenty, with workers that follow the load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import msgspec

from heatsink.bulk.actions import Actions, Context
from heatsink.bulk.batch import Batch, Progress
from heatsink.bulk.submit import hand
from heatsink.bulk.work.consumer import Consumer
from heatsink.errors import HeatsinkError
from heatsink.lab.demo.act import (
    ENOUGH,
    About,
    ActFinding,
    ActSnapshot,
    ActVerdict,
    Cell,
    Offer,
    Watcher,
    about,
    settle,
    watch,
)
from heatsink.lab.demo.traffic import TrafficPlan
from heatsink.lab.demo.world import DemoWorld, workers_of
from heatsink.primitives.clock import Clock
from heatsink.primitives.words import counted

LARGE, SMALL = "tag-conversation", "send-reminder"
TOGETHER, CALL_S = 200, 0.2
SMALL_ITEMS, SMALL_CALL_S = 20, 0.1
SMALL_EVERY_S = 3.0
POLL_S = 0.25
SCALING_S = 10.0  # for the number of workers to go up
REST_S = 9.0  # for the number of workers to come down
SUBMIT_S = 4.0
ABANDON_S = 0.3
WORDS = """\
One customer submits {items:,} items, another submits twenty. In a single queue the twenty would
wait until all the others are done.

Heatsink's queue is split into partitions and gives each customer a fair share of every worker's
time. It accepts a batch only when the batch is safely on disk.

Once a second, a control loop compares the backlog with the number of workers. It aims to drain the
backlog in {drain:g} s, and adds workers for as long as they raise the throughput of this machine.

Look at the dots: each is a small batch, and its height is how long that batch took while the
large one was running. Above them, compare the number of workers with the items done a second.

hs.bulk.submit() and hs.worker() on a private Valkey server that the demo started; its log is on
disk. An action only sleeps: {call:g} s for {together} items of the large batch, {small:g} s for
the twenty items of a small one. Everything else is real. Small batches go to partitions that
also hold the large batch."""


def together_of(plan: TrafficPlan) -> int:
    """Return how many items of the large batch the handler gets in one call.

    In a smaller run each call gets fewer items, so that the run needs as many workers as a large
    one.
    """
    return max(round(TOGETHER * plan.size), 10)


def drain_s(plan: TrafficPlan) -> float:
    """Return how long the large batch should take, including the time to add workers."""
    return SCALING_S + workers_of(plan).drain_s


def patience_s(plan: TrafficPlan) -> float:
    """Return after how many seconds the act cancels all items that are left.

    If a run takes that long, the machine is too busy for it.
    """
    return drain_s(plan) / ENOUGH


class SmallNow(msgspec.Struct, frozen=True):
    """A small batch, submitted at `second`, while `ahead` items of the large batch waited.

    `took_s` is None until the small batch has ended.
    """

    second: float
    ahead: int
    took_s: float | None


class BulkNow(ActSnapshot, frozen=True, tag="snapshot"):
    """The act at one moment.

    `workers` has a number for each partition that holds items of the large batch. Other partitions
    are left out.
    """

    items: int
    done: int
    done_s: int
    workers: list[int]
    small: list[SmallNow]
    says: str

    def cells(self) -> dict[str, Cell]:
        took = [one.took_s for one in self.small if one.took_s is not None]
        return {
            "done": self.done,
            "of": self.items,
            "items/s": self.done_s,
            "workers": sum(self.workers),
            "small batches": len(self.small),
            "the last took": f"{took[-1]:.2f} s" if took else "",
        }


class DemoBatch:
    """Submits the large batch and the small batches beside it, and records when they ended."""

    def __init__(self, world: DemoWorld, plan: TrafficPlan) -> None:
        self.items = plan.items
        self.batch: Batch | None = None
        self.progress: Progress | None = None
        self.leg = "submitting the items as a stream"
        self.patience_s = patience_s(plan)
        self._together = together_of(plan)
        self.accepted_s = self.ended_s = 0.0
        self._hs = world.hs
        self._clock: Clock = world.clock
        self._began_s = world.clock.monotonic_s()
        self._name = world.fresh("million")
        self._submitted: dict[str, tuple[float, int]] = {}
        self._left: dict[str, int] = {}
        self._ended: dict[str, float] = {}
        self._seen = (0.0, 0)

    @property
    def second(self) -> float:
        return self._clock.monotonic_s() - self._began_s

    def actions(self) -> Actions:
        """Return actions whose handlers sleep instead of making calls, many items at a time.

        Items left over from an earlier run are run, but not counted.
        """
        actions = Actions()

        @actions.action(LARGE, together=self._together)
        async def tag(_: list[object], __: list[Context]) -> None:
            await self._clock.sleep(CALL_S)

        @actions.action(SMALL, together=SMALL_ITEMS)
        async def remind(_: list[object], contexts: list[Context]) -> None:
            await self._clock.sleep(SMALL_CALL_S)
            for batch in (context.batch for context in contexts):
                self._left[batch] = self._left.get(batch, 0) - 1
                if self._left[batch] == 0:
                    self._ended[batch] = self.second

        return actions

    async def submit(self) -> None:
        items = ({"conversation": number} for number in range(self.items))
        self.batch = await self._hs.bulk.submit(LARGE, items, tenant="large", id=self._name)
        self.accepted_s = self.second
        self.leg = "others submit twenty items each"

    async def submit_small(self) -> None:
        """Submit a small batch to a partition that holds items of the large batch."""
        assert self.batch is not None
        homes = {part.partition for part in self.batch.parts}
        partitions = (await self._hs.bulk.plan()).high_water
        name = next(n for n in self._names() if hand(n, partitions, spread=False)[0] in homes)
        waiting = self.progress.waiting if self.progress else self.items
        self._submitted[name] = self.second, waiting
        self._left[name] = SMALL_ITEMS
        items = [{"person": number} for number in range(SMALL_ITEMS)]
        await self._hs.bulk.submit(SMALL, items, tenant="small", id=name, spread=False)

    def _names(self) -> Iterator[str]:
        return (f"{self._name}-small-{number}" for number in count(len(self._submitted) * 1_000))

    async def look(self, workers: Consumer) -> BulkNow:
        if self.batch is not None:
            self.progress = await self._hs.bulk.status(self.batch.id)
        done = self.progress.done if self.progress else 0
        second, (seen_s, seen) = self.second, self._seen
        done_s = round((done - seen) / max(second - seen_s, 0.001))
        self._seen = second, done
        team, small = self._workers(workers), self.small()
        says = narrate(self.items, done, done_s, sum(team), small)
        if self.progress and self.progress.is_final and self.progress.cancelled:
            says = f"{done:,} are done; the other {self.progress.cancelled:,} were cancelled."
        return BulkNow(round(second, 2), self.leg, self.items, done, done_s, team, small, says)

    def _workers(self, consumer: Consumer) -> list[int]:
        parts = self.batch.parts if self.batch else ()
        return [consumer.workers.get(n, 0) for n in sorted({part.partition for part in parts})]

    def small(self) -> list[SmallNow]:
        return [
            SmallNow(
                round(came_s, 2),
                ahead,
                round(self._ended[name] - came_s, 3) if name in self._ended else None,
            )
            for name, (came_s, ahead) in self._submitted.items()
        ]

    @property
    def is_done(self) -> bool:
        return self.progress is not None and self.progress.is_final

    async def until_done(self) -> None:
        """Submit small batches until the large batch has ended or the time is up."""
        next_s = self.second + 1.0
        give_up_s = self.accepted_s + self.patience_s
        while not self.is_done and self.second < give_up_s:
            await self._clock.sleep(POLL_S)
            if self.second >= next_s:
                await self.submit_small()
                next_s += SMALL_EVERY_S
        self.ended_s = self.second
        self.leg = "done: workers are removed" if self.is_done else "the rest is cancelled"

    async def until_small_ones_are_done(self) -> None:
        for name in self._submitted.keys() - self._ended.keys():
            await self._hs.bulk.wait(name)

    async def call_off(self) -> None:
        """Cancel the large batch if it still runs, and wait until it has ended."""
        if self.batch is not None and not self.is_done:
            await self._hs.bulk.cancel(self.batch.id)
            await self._hs.bulk.wait(self.batch.id)

    async def abandon(self) -> None:
        """Cancel the large batch of a run that is stopped, so that it does not disturb the next.

        If the queue does not answer soon, do not wait: Ctrl-C must end the demo. The next run does
        not count items that are left over.
        """
        if self.batch is not None and not self.is_done:
            with suppress(HeatsinkError, TimeoutError):
                async with asyncio.timeout(ABANDON_S):
                    await self._hs.bulk.cancel(self.batch.id)


class BulkAct:
    name = "bulk"

    def about(self, plan: TrafficPlan) -> About:
        return about(
            self.name,
            f"{_amount(plan)} items",
            WORDS.format(
                items=plan.items,
                drain=workers_of(plan).drain_s,
                call=CALL_S,
                together=together_of(plan),
                small=SMALL_CALL_S,
            ),
        )

    def seconds(self, plan: TrafficPlan) -> float:
        return drain_s(plan) + (SUBMIT_S + REST_S) / plan.speed

    async def run(self, world: DemoWorld, plan: TrafficPlan, watcher: Watcher) -> ActVerdict:
        job = DemoBatch(world, plan)
        async with world.working(job.actions()) as workers, asyncio.TaskGroup() as tasks:

            async def look() -> BulkNow:
                return await job.look(workers)

            watching = tasks.create_task(watch(look, watcher, world.clock))
            try:
                await job.submit()
                await job.until_done()
            except BaseException:
                await job.abandon()
                raise
            await job.call_off()
            await job.until_small_ones_are_done()
            await world.clock.sleep(REST_S / plan.speed)
            watching.cancel()
            watcher.tell(await look())
        return judge(job)


def _amount(plan: TrafficPlan) -> str:
    return "A million" if plan.items == 1_000_000 else f"{plan.items:,}"


def narrate(items: int, done: int, done_s: int, workers: int, small: list[SmallNow]) -> str:
    if not workers:
        return "No item runs yet: workers start when the whole batch is accepted."
    if done >= items:
        return f"All {items:,} are done. Workers now: {workers}."
    pace = f"{items - done:,} to go, {done_s:,} a second with {counted(workers, 'worker')}."
    return f"{pace} {_of_small(small)}"


def _of_small(small: list[SmallNow]) -> str:
    took = [one.took_s for one in small if one.took_s is not None]
    return f"The latest small batch took {took[-1]:.1f} s." if took else ""


def judge(job: DemoBatch) -> ActVerdict:
    progress, small = job.progress, job.small()
    assert progress is not None
    took = [one.took_s for one in small if one.took_s is not None]
    whole = progress.done + progress.cancelled == job.items and len(took) == len(small)
    in_line = _in_line(job, small, progress.done == job.items)
    line = (
        f"{progress.done:,} items took {job.ended_s - job.accepted_s:.0f} s. The slowest of "
        f"{len(small)} small batches took {max(took, default=0.0):.1f} s; in a single queue, the "
        f"first one would have waited {in_line}."
    )
    findings = [
        ActFinding(whole, _count(job, progress)),
        ActFinding(
            None,
            f"The small batches took {_spread(took)}. In a single queue, the first one would "
            f"have waited for {small[0].ahead if small else 0:,} items before it: {in_line}.",
        ),
    ]
    what, made = f"items in {job.patience_s:.0f} s", job.items - progress.cancelled
    offer = Offer(what, job.items, made, least=1.0)  # a batch that is cut short shows no end
    return ActVerdict(*settle(line, offer, findings, wrong=not whole))


def _in_line(job: DemoBatch, small: list[SmallNow], is_done: bool) -> str:
    """Return in words how long the first small batch would have waited behind the large one."""
    waited_s = job.ended_s - small[0].second if small else 0.0
    return f"{waited_s:.0f} s" if is_done else f"more than {waited_s:.0f} s"


def _count(job: DemoBatch, progress: Progress) -> str:
    accepted = f"All {job.items:,} items were accepted and on disk in {job.accepted_s:.1f} s; "
    done = f"{progress.done:,} are recorded as done, each once, and {progress.failed:,} as failed"
    if not progress.cancelled:
        return f"{accepted}{done}."
    cut = f"after {job.patience_s:.0f} s the other {progress.cancelled:,} were cancelled"
    return f"{accepted}{done}; {cut}."


def _spread(took: list[float]) -> str:
    if not took:
        return "no time"
    middle = sorted(took)[len(took) // 2]
    return f"{min(took):.1f} to {max(took):.1f} s (median {middle:.1f} s)"
