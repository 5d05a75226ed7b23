"""Batches of one item: what waits at the same moment is accepted by one call.

A batch of many items is staged, confirmed, sealed, confirmed and released. For one item, a single
atomic call does all of this, if the record and the item are on the same server: it stores the
sealed record and the released part, unless there is a record with this id. If the server later
loses the record, it also loses the part, and the other way round. So there is nothing to confirm in
between. The item may even begin before its batch is durable: if the server loses the batch, it also
loses the item's result, and the submitter gets an error instead of an answer.

While calls are under way, further submissions wait and share the next call: its cost and its wait
for the disk are divided among them. All items of a call go to one partition, and calls take the
partitions in turn. Calls run in tasks of their own, except if the last call brought one batch and
none is under way: then the submitter makes the next call itself, which is quicker.

In two cases a batch goes the general way (`bulk/submit.py`). Its id has a record, so the batch may
have been accepted before. Or it has a rate that its lane does not have yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from heatsink.primitives.clock import Clock, now_ms

from . import changes
from .actions import Announcements
from .batch import Batch, PartPlace, digest_of, encoded, packed, plain
from .flows import actions_of
from .groups import counting
from .limits import lane_with, needs_of
from .plan import QueuePlan
from .reconcile import Patience, check_known
from .store import Chunk, QueueStores, Single
from .submit import fingerprint_of, part_of

CALLS_MAX = 2  # concurrent calls: what comes later waits for the next one
GROUP_MAX = 100  # items per call; a full group does not wait for other calls
ANNOUNCED_S = 5.0  # how old a process's list of known actions may be
PLAN_S = 1.0  # how old a process's copy of the plan may be


class WaitingSingle(NamedTuple):
    """A submission that waits for its call. The item's `lane` names its places at limits."""

    batch: Batch
    body: bytes
    lane: str
    answer: asyncio.Future[Batch | None]


class Singles:
    """Accepts batches of one item. Submissions that wait at the same time share a call."""

    def __init__(
        self,
        stores: QueueStores,
        patience: Patience,
        plan: Callable[[], Awaitable[QueuePlan]],
        limits: Announcements,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._stores = stores
        self._limits = limits
        self._patience = patience
        self._read_plan = plan
        self._clock = clock
        self._rng = rng
        self._waiting: deque[WaitingSingle] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._is_lone = False  # whether the last call brought one batch
        self._serving = 0  # calls that look at `_waiting` again: a task is done only later
        self._plan: QueuePlan | None = None
        self._plan_s = float("-inf")
        self._turn = rng.getrandbits(16)
        self._announced: Collection[str] = ()
        self._announced_s = 0.0

    async def accept(self, batch: Batch, item: Any, is_named: bool) -> Batch | None:
        """Return the batch when it is accepted and durable.

        `is_named` says that the caller chose the batch's id. Returns None if the batch must go the
        general way. Raises `InvalidBody` for the item, and `InvalidSetting` if its action is
        unknown.
        """
        batch = await self._limits.added(batch)
        item = plain(item)
        if is_named:
            batch = replace(batch, fingerprint=fingerprint_of(item))
        await self._check_known(batch)
        body = packed(0, [encoded(0, item)])
        answer: asyncio.Future[Batch | None] = asyncio.get_running_loop().create_future()
        lane = batch.lane
        if batch.limits:
            needs = needs_of(counting(batch), batch.action, batch.tenant, item)
            lane = lane_with(lane, needs)
        waiting = WaitingSingle(batch, body, lane, answer)
        if self._is_lone and not self._serving and not self._waiting:
            return await self._accept_lone(waiting)
        self._waiting.append(waiting)
        if self._serving < CALLS_MAX or len(self._waiting) >= GROUP_MAX:
            self._start()
        return await answer

    def _start(self) -> None:
        self._serving += 1
        call = asyncio.ensure_future(self._serve())
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _accept_lone(self, waiting: WaitingSingle) -> Batch | None:
        """Accept one batch in the caller's own task, which costs no turn of the event loop."""
        self._serving += 1
        try:
            (accepted,) = await self._call([waiting])
        finally:
            self._serving -= 1
            if self._waiting:
                self._start()
        return accepted

    async def _check_known(self, batch: Batch) -> None:
        """Raise `InvalidSetting` if no worker has announced an action of the batch.

        The list of announced actions is read as seldom as possible.
        """
        now_s = self._clock.monotonic_s()
        is_fresh = now_s - self._announced_s < ANNOUNCED_S
        is_known = batch.action in self._announced
        if batch.then or batch.otherwise:
            is_known &= all(action in self._announced for _, action in actions_of(batch))
        if not is_fresh or batch.on_done or not is_known:
            before_s, self._announced_s = self._announced_s, now_s  # of many callers, one reads
            try:
                self._announced = await check_known(self._stores, self._patience, batch)
            except BaseException:
                self._announced_s = before_s
                raise

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await self._serve_group()
        finally:
            self._serving -= 1

    async def _serve_group(self) -> None:
        count = min(len(self._waiting), GROUP_MAX)
        taken = [self._waiting.popleft() for _ in range(count)]
        group = [each for each in taken if not each.answer.done()]
        self._is_lone = len(group) == 1
        try:
            accepted = await self._call(group)
        except Exception as error:  # any error goes to the waiting callers
            for each in group:
                if not each.answer.done():
                    each.answer.set_exception(error)
            return
        for each, batch in zip(group, accepted, strict=True):
            if not each.answer.done():
                each.answer.set_result(batch)

    async def _call(self, group: list[WaitingSingle]) -> list[Batch | None]:
        partition = await self._next_partition()
        singles = [self._single(each, partition) for each in group]
        answers = await self._patience.call(self._stores.singles.accept, partition, singles)
        return [
            single.record if is_mine else None
            for single, is_mine in zip(singles, answers, strict=True)
        ]

    async def _next_partition(self) -> int:
        """Return the next partition that accepts new parts. Calls use the partitions in turn."""
        now_s = self._clock.monotonic_s()
        plan = self._plan
        if plan is None or now_s - self._plan_s > PLAN_S:
            self._plan_s = now_s
            plan = self._plan = await self._read_plan()
        self._turn += 1
        for step in range(plan.partitions):
            partition = (self._turn + step) % plan.partitions
            if partition not in plan.moves:
                return partition
        return self._turn % plan.partitions

    def _single(self, waiting: WaitingSingle, partition: int) -> Single:
        batch, body = waiting.batch, waiting.body
        generation = f"{self._rng.getrandbits(64):016x}"
        part = part_of(batch, generation, partition, bool(batch.limits), waiting.lane)
        place = PartPlace(part.id, partition, 1, digest_of(body), ((0, 1, 1),))
        now = now_ms(self._clock)
        record = changes.sealed(batch, generation, [place], now, batch.fingerprint).next()
        return Single(record, part, Chunk(0, 1, body))
