"""Moves a partition to another server while producers and workers run.

    record    store in the plan that the partition moves. It gets no new parts from then on
    prepare   make the new place ready, and see that it holds nothing that could be lost
    close     once all parts have ended, the old place gives the partition away, in one atomic call
              that leaves a tombstone with the version of the move. From then on the old place
              refuses every call of a process whose plan is not newer
    copy      copy parts that have ended: their failed items can be read and retried for a week
    adopt     store in the plan that the partition is at its new place

Every step is durable before the next one begins, and every step may be repeated. So if the moving
process is killed, any process can finish the move: the same command continues where the first one
stopped. Until the old place is closed, the partition works as before. If a move is cancelled, the
partition stays where it is. It gets a new version, which is higher than the version in the
tombstone.

The queue's home may lose its newest plans. Then a place may be closed although the plan says that
the partition is there. In this case `place` moves nothing. It only stores again where the partition
is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from heatsink.errors import Conflict, InvalidSetting, NotFound
from heatsink.primitives.checks import shown
from heatsink.primitives.clock import Clock
from heatsink.primitives.words import counted

from .plan import HOME, PartitionMove, Place, PlaceMarks, QueuePlan, Spot, bare, named
from .reconcile import Patience
from .store import QueueStores

ANY_VERSION = 2**53  # of calls that a closed place does not refuse
LOOK_S = 0.2
PAGE = 200
COPIES = 8  # at a time


class MoveProgress(msgspec.Struct, frozen=True):
    """The progress of a partition's move: `items` still wait or run, `copied` parts were copied."""

    partition: int
    to: str
    step: Literal["draining", "copying", "done"]
    items: int = 0
    parts: int = 0
    copied: int = 0


class PartitionMover:
    def __init__(
        self, stores: QueueStores, patience: Patience, clock: Clock, first: QueuePlan
    ) -> None:
        self._stores = stores
        self._call = patience.call
        self._clock = clock
        self._first = first
        self._copied = 0

    async def steps(self, partition: int, url: str) -> AsyncIterator[MoveProgress]:
        """Move the partition to `url`. Yields the progress of the move until it is complete."""
        to, mine = self._checked(url), None
        while True:
            plan = await self._call(self._stores.fleet.plan, self._first)
            if not 0 <= partition < plan.high_water:
                last = plan.high_water - 1
                raise NotFound(f"there is no partition {shown(partition)}: use 0 to {last}")
            if mine and plan.moves.get(partition) != mine:
                _check_not_given_up(plan, partition, to)
            wanted = await self._next_plan(plan, partition, to)
            if wanted is plan:
                break
            if wanted is not None:
                await self._call(self._stores.fleet.change, wanted)
                continue
            mine = move = plan.moves[partition]
            source = _any(plan.place(partition), partition)
            await self._prepare(plan, partition, move)
            left = await self._call(self._stores.moves.close_place, source, move.version, named(to))
            if left.is_target:
                await self._give_up(plan, partition)
                raise InvalidSetting(
                    f"{named(to)} is the server that holds partition {partition}: name another one",
                    field="place",
                )
            if left.closed < move.version:
                yield MoveProgress(partition, named(to), "draining", left.items, left.parts)
                await self._clock.sleep(LOOK_S)
                continue
            async for step in self._copy(source, move):
                yield step
        await self._call(self._stores.queue.chores, partition, [])  # tells the new place that it is
        yield MoveProgress(partition, named(to), "done", copied=self._copied)

    def _checked(self, url: str) -> str:
        if url == HOME or (isinstance(url, str) and "://" in url and self._is_home(url)):
            return ""
        self._stores.check_place(url)
        return url

    def _is_home(self, url: str) -> bool:
        return bare(url) == self._stores.home

    async def _next_plan(self, plan: QueuePlan, partition: int, to: str) -> QueuePlan | None:
        """Return the plan to store next, to move `partition` to the URL `to`.

        Returns None if this move is under way and needs no new plan. Returns `plan` itself if the
        partition is there already.
        """
        place, move = plan.place(partition), plan.moves.get(partition)
        is_mine = move is not None and to in (move.to, bare(move.to) if move.to else "")
        if not is_mine:
            marks = await self._call(self._stores.barrier.place, _any(place, partition))
            if marks.moved >= place.since and (move is None or marks.moved > move.version):
                return _found_again(plan, partition, to, marks)
        if named(place.url) == named(to):
            url = place.url if to == named(to) else to  # without a login, the known one stays
            is_there = move is None and place.url == url
            return plan if is_there else plan.placed(partition, url)
        if is_mine:
            return None
        target = Spot(partition, to, ANY_VERSION)
        await self._call(self._stores.barrier.place, target)  # raises if it is not durable
        return plan.moving(partition, to)

    async def _prepare(self, plan: QueuePlan, partition: int, move: PartitionMove) -> None:
        target = Spot(partition, move.to, ANY_VERSION)
        prepared = await self._call(self._stores.moves.prepare, target, move.version)
        if prepared < 0:
            await self._give_up(plan, partition)
            raise Conflict(
                f"{named(move.to)} already holds parts of partition {partition}, which the move "
                "would lose: name another Redis, or use another stage"
            )

    async def _give_up(self, plan: QueuePlan, partition: int) -> None:
        """Store a plan in which the partition stays where it is."""
        place = plan.place(partition)
        await self._call(self._stores.fleet.change, plan.placed(partition, place.url))

    async def _copy(self, source: Spot, move: PartitionMove) -> AsyncIterator[MoveProgress]:
        """Copy all ended parts to the new place, and make the new place the partition's own.

        First the old place's mark that it gave the partition away must be durable: after that, the
        old place can no longer change. All copies must be durable before the new place takes over.
        If a server loses something during the call, the call returns, and the next turn of `steps`
        begins again.
        """
        number, target = int(source), Spot(int(source), move.to, ANY_VERSION)
        if not await self._is_closed(source, move):
            return
        await self._call(self._stores.moves.take_over, source, target, move.version)
        start, copied = 0, list[str]()
        while page := await self._call(self._stores.moves.finished, source, start, PAGE):
            start += len(page)
            parts = [part for part in page if part]
            await self._copy_page(source, target, move, parts)
            copied += parts
            self._copied = len(copied)
            yield MoveProgress(number, named(move.to), "copying", copied=self._copied)
        if await self._is_durable(target, move, copied):
            await self._adopt(number, move)

    async def _is_closed(self, source: Spot, move: PartitionMove) -> bool:
        """Whether the old place has durably given the partition away with this move."""
        marks: PlaceMarks = await self._call(self._stores.barrier.place, source)
        return marks.moved == move.version

    async def _copy_page(
        self, source: Spot, target: Spot, move: PartitionMove, parts: list[str]
    ) -> None:
        copy = self._stores.moves.copy
        for first in range(0, len(parts), COPIES):
            some = parts[first : first + COPIES]
            await asyncio.gather(
                *(self._call(copy, source, target, move.version, part) for part in some)
            )

    async def _is_durable(self, target: Spot, move: PartitionMove, parts: list[str]) -> bool:
        """Read back what was copied. Returns False if the new place has lost some of it."""
        pages = [parts[first : first + PAGE] for first in range(0, len(parts), PAGE)]
        found: list[PlaceMarks] = await asyncio.gather(
            *(self._call(self._stores.barrier.place, target, page) for page in pages or [[]])
        )
        is_prepared = all(marks.prepared == move.version for marks in found)
        return is_prepared and sum(marks.parts for marks in found) == len(parts)

    async def _adopt(self, partition: int, move: PartitionMove) -> None:
        plan = await self._call(self._stores.fleet.plan, self._first)
        if plan.moves.get(partition) == move:
            await self._call(self._stores.fleet.change, plan.placed(partition, move.to))


def _check_not_given_up(plan: QueuePlan, partition: int, to: str) -> None:
    if named(plan.place(partition).url) != named(to):
        raise Conflict(
            f"the move of partition {partition} to {named(to)} was given up or replaced: see "
            "`heatsink bulk places`"
        )


def _any(place: Place, partition: int) -> Spot:
    """Return a spot whose calls this place executes, even if it gave the partition away."""
    return Spot(partition, place.url, ANY_VERSION)


def _found_again(plan: QueuePlan, partition: int, to: str, marks: PlaceMarks) -> QueuePlan:
    """Return the plan to store after the queue's home has lost its newest plans.

    By the `marks` of the old place, the partition was moved to `to`: the returned plan has it
    there.
    """
    here = named(plan.place(partition).url)
    if named(to) not in (marks.to, here):
        raise Conflict(
            f"the queue's home has lost its newest plans: {here} gave partition {partition} to "
            f"{marks.to} with version {marks.moved}; first run `heatsink bulk place {partition} "
            f"{marks.to}`, or `heatsink bulk place {partition} {here}` if its items are still there"
        )
    return plan.placed(partition, to, after=marks.moved)


def told(progress: MoveProgress) -> str:
    """Return the progress of a move in words."""
    if progress.step == "draining":
        left = f"{counted(progress.items, 'item')} in {counted(progress.parts, 'part')}"
        return f"waiting until {left} have ended"
    if progress.step == "copying":
        return f"copied {counted(progress.copied, 'part')} that have ended"
    return f"partition {progress.partition} is at {progress.to}"
