"""The worker pool of a partition: asyncio tasks that run handlers, resizable at any time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import isasyncgen, isawaitable, iscoroutinefunction, isgenerator
from random import Random
from typing import Any

from heatsink.bulk.actions import Action, Actions, BadItem, Context, Fail, Once, RateLimited
from heatsink.bulk.limits import LimitBook, Need
from heatsink.bulk.results import kept
from heatsink.bulk.store import BACK, DONE, FAILED, Setback, Slice
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import NO_HOOKS, Hooks
from heatsink.primitives.threads import in_thread

from .calling import Done, HandOver, NotHandedOver, RemoteHandover, Room, call_inside, outcomes_of
from .handler_errors import (
    TOLD_ELSEWHERE,
    BadAnswer,
    HandlerErrors,
    LeaseLost,
    TimedOut,
    UnknownAction,
    verdict,
)
from .held import NEVER, Held, Lanes, Ledger, Place

logger = logging.getLogger("heatsink")
_DONE = ord(DONE)
ANSWER_S_MAX = 0.1  # slower answers do not count: what is claimed ahead keeps others waiting
ANSWER_WEIGHT = 0.25
PACE_S = 0.05
PACE_WEIGHT = 0.5
YIELD_S = 0.002  # how long handlers that never await may keep the event loop
ITEM_WEIGHT = 0.2
DEPLOY_S = 600.0  # how long items of an unknown action wait for workers of another release
ABANDON_S = 5.0  # how long a handler may take to react to its cancellation


class AnswerTime:
    """How long the store takes to answer a claim, as a moving average."""

    def __init__(self) -> None:
        self.mean_s = 0.0

    def learn(self, took_s: float) -> None:
        self.mean_s += ANSWER_WEIGHT * (min(took_s, ANSWER_S_MAX) - self.mean_s)


class Pace:
    """How many items per second this partition's workers finish, as a moving average."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._seen = 0
        self._seen_s = float("-inf")

    def learn(self, finished: int, now_s: float) -> None:
        passed_s = now_s - self._seen_s
        if passed_s < PACE_S:
            return
        latest = (finished - self._seen) / passed_s
        weight = 1.0 if latest > self.per_s else PACE_WEIGHT
        self.per_s += weight * (latest - self.per_s)
        self._seen, self._seen_s = finished, now_s


@dataclass(frozen=True)
class Terms:
    """What a consumer shares with the pumps of all its partitions.

    A pump claims the items of one partition for the workers, under `owner` and `lease_s`. `once` is
    the function behind `context.once`, `errors` reports the exceptions of handlers, `book`
    has the limits, and `state` is what the application's lifespan yielded. `room` bounds how many
    handlers run at once. With `elsewhere`, workers outside this process run items. The names of
    leases begin with `mark`. `lacks` is `Division.lacks`.
    """

    owner: str
    lease_s: float
    once: Once
    errors: HandlerErrors
    book: LimitBook
    hooks: Hooks = NO_HOOKS
    state: Any = None
    room: Room | None = None
    elsewhere: RemoteHandover | None = None
    mark: str = ""
    lacks: Callable[[int, str], bool] = lambda _, __: False


class WorkerPool:
    """Runs items with `size` workers.

    A free worker first takes items in `lanes` whose start time has come. If there are none, it
    takes the next items passed to `put`. The pool calls `on_change` when items end, and
    `on_refused` when a handler raises `RateLimited`. It passes items that run outside this process
    to `hand_over`.
    """

    def __init__(
        self,
        actions: Actions,
        ledger: Ledger,
        lanes: Lanes,
        on_change: Callable[[], None],
        on_refused: Callable[[Held, float], None],
        terms: Terms,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._actions = actions
        self._ledger = ledger
        self._lanes = lanes
        self._on_change = on_change
        self._on_refused = on_refused
        self._once = terms.once
        self._state = terms.state
        self._errors = terms.errors
        self._room = terms.room
        self._elsewhere = terms.elsewhere
        self._clock = clock
        self._rng = rng
        self._jobs: deque[Job] = deque()
        self._waiting_items = 0
        self._missing: dict[str, float] = {}
        self._workers: dict[Worker, None] = {}  # in order, so that a simulation replays
        self._idle: deque[asyncio.Future[None]] = deque()
        self._yielded_s = 0.0
        self.is_ending = False
        self.hand_over: HandOver | None = None
        self.lacks: Callable[[str], bool] = lambda _: False
        self.size = 0
        self.busy = 0
        self.finished = 0
        self.item_s = 1.0
        """How long an item takes, as a moving average; long until one has been measured."""

    @property
    def backlog(self) -> int:
        """The number of items passed to `put` that have not started."""
        return self._waiting_items

    @property
    def free(self) -> int:
        """The number of workers that can start an item now.

        If the process's `Room` is used up, it is 1: the partition claims an item, which waits for
        room. If no remote worker waits for an item, it is 0.
        """
        free = max(self.size - self.busy, 0)
        return free if self._room is None else min(free, max(self._room.free, self._room.ahead))

    @property
    def may_start(self) -> bool:
        """Whether items may get a start or a place at a limit now: somebody waits for them."""
        return self._room is None or max(self._room.free, self._room.ahead) > 0

    def resize(self, size: int) -> None:
        """Change the number of workers.

        Additional workers start immediately. Surplus workers end when they have finished their
        items.
        """
        self.size = size
        while len(self._workers) < size:
            worker = Worker()
            self._workers[worker] = None
            worker.task = asyncio.ensure_future(self._work(worker))
        self.wake(len(self._idle))

    def put(self, held: Held) -> None:
        together = self.together(held.slice.action)
        places = [(held, offset) for offset in range(len(held.items))]
        self._waiting_items += len(places)
        last = self._jobs[-1] if self._jobs else None
        if last is not None and together > 1 and last.may_take(held):
            room = together - last.count
            last.places += places[:room]
            places = places[room:]
        jobs = [Job(places[at : at + together]) for at in range(0, len(places), together)]
        self._jobs.extend(jobs)
        self.wake(len(jobs))

    def together(self, action: str) -> int:
        """Return the maximum number of items that the action's handler takes per call."""
        known = self._actions.get(action)
        return known.together if known else 1

    def wake(self, count: int) -> None:
        """Wake up to `count` idle workers."""
        while count > 0 and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    # -- working ---------------------------------------------------------------------------

    async def _work(self, worker: Worker) -> None:
        try:
            while self._needs(worker):
                if self._room is not None:
                    worker.is_entering = True
                    await self._room.enter()
                    worker.is_entering = False
                job = self._next_job() if self._needs(worker) else None
                if job is None:
                    self._make_room()
                    if self._needs(worker):
                        await self._wait()
                    continue
                try:
                    await self._run(worker, job)
                except GeneratorExit:  # a handler awaited a future that raised it: asyncio throws
                    if not _is_current(worker.task):  # it into this task, and `_run` has ended
                        raise
                now_s = self._clock.monotonic_s()
                if now_s - self._yielded_s > YIELD_S:
                    self._yielded_s = now_s
                    await self._clock.sleep(0)
        finally:
            self._workers.pop(worker, None)

    def _needs(self, worker: Worker) -> bool:
        return not worker.abandoned and len(self._workers) <= self.size

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.leave()

    def _next_job(self) -> Job | None:
        lanes = self._lanes
        if lanes.idle_until_s < NEVER and (places := lanes.take(self.together)):
            return Job(places)
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        self._waiting_items -= job.count
        return job

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter

    async def _run(self, worker: Worker, job: Job) -> None:
        lost = [place for place in job.places if place[0].lost]
        if lost:
            self._lanes.ended(lost)
            job.places = [place for place in job.places if not place[0].lost]
        if not job.places:
            self._make_room()
            return
        started_s = self._clock.monotonic_s()
        worker.job, worker.started_s = job, started_s
        self.busy += 1
        name = job.places[0][0].slice.action
        if self._elsewhere is not None and self._elsewhere.takes(name):
            await self._pass_on(worker, job)
            return
        worker.action = action = self._actions.get(name) or self._unknown(name, job)
        results: list[Done | BaseException]
        try:
            results = await self._call(action, job)
        except BaseException as error:  # every error of a handler is an outcome of its items
            results = [self._meant(worker, action, error)] * job.count
        self._release(worker)
        if await self._recovers(worker) and self.is_ending:
            self._give_back(job)  # the process is ending, so the attempt does not count
        self._settle(job, action, results, self._clock.monotonic_s() - started_s)

    async def _pass_on(self, worker: Worker, job: Job) -> None:
        """Hand an item over to a worker outside this process, and forget it."""
        assert self.hand_over is not None
        held = job.places[0][0]
        refused: NotHandedOver | None = BACK, Setback(0)
        try:
            refused = await self.hand_over(held)
        except HeatsinkError as error:
            logger.info("an item could not be handed over: %s", error)
        finally:
            self._release(worker, is_elsewhere=refused is None)
            if refused is None:
                self._ledger.lose([held.slice.attempt])  # the worker renews its lease
            else:
                mark, setback = refused
                held.mark(0, ord(mark), 0.0, setback)
                self._ledger.changed(held)
            self.finished += 1
            self._on_change()

    def _unknown(self, name: str, job: Job) -> Action:
        """Return a substitute for an action that this worker does not have.

        The substitute refuses every item, so that the item waits for a worker with the action.
        """
        now_s, is_elsewhere = self._clock.monotonic_s(), self.lacks(name)
        known = ", ".join(sorted(self._actions)) or "none"
        why = f"no action {name!r} in this worker: it has {known}"
        if name not in self._missing:
            level = logging.INFO if is_elsewhere else logging.WARNING
            text = "batch %s: %s; its items wait for a worker with that action"
            logger.log(level, text, job.batches, why)
        if is_elsewhere or name not in self._missing:
            self._missing[name] = now_s
        may_come = now_s - self._missing[name] < DEPLOY_S

        async def refuse(*_: object) -> None:
            raise UnknownAction(why, may_come)

        return Action(name, refuse, backoff_s=2.0)

    def _release(self, worker: Worker, is_elsewhere: bool = False) -> None:
        if worker.job is not None:
            self._lanes.ended(worker.job.places, is_elsewhere)
            worker.job = None
            self.busy -= 1
            self._make_room()

    def _meant(self, worker: Worker, action: Action, error: BaseException) -> BaseException:
        if worker.timed_out and isinstance(error, asyncio.CancelledError):
            return TimedOut(f"the handler took longer than timeout_s={action.timeout_s:g}")
        if worker.cut_off and isinstance(error, asyncio.CancelledError):
            return LeaseLost(f"{worker.cut_off} could not be renewed")
        return error

    async def _recovers(self, worker: Worker) -> bool:
        """Clear the cancellations of a worker's task, so that the worker can go on.

        Returns True if someone other than the pool cancelled the task.
        """
        assert worker.task is not None
        if not worker.task.cancelling():
            return False
        is_ours = worker.timed_out or worker.abandoned or worker.cut_off
        worker.timed_out, worker.cut_off = False, ""
        while worker.task.cancelling():
            worker.task.uncancel()
        with suppress(asyncio.CancelledError):
            await self._clock.sleep(0)  # a cancellation that is still pending is raised here
        return not is_ours

    async def _call(self, action: Action, job: Job) -> list[Done | BaseException]:
        if action.together == 1:
            held, offset = job.places[0]
            item = action.given(held.items[offset])
            return [Done(await call_handler(action, item, self._context(held, offset)))]
        items, contexts = [], []
        results: list[BaseException | None] = []
        for held, offset in job.places:
            try:
                items.append(action.given(held.items[offset]))
            except BadItem as bad:
                results.append(bad)
            else:
                results.append(None)
                contexts.append(self._context(held, offset))
        keeps = any(held.slice.result_bytes for held, _ in job.places)
        answer = await call_handler(action, items, contexts) if items else None
        answers = iter(outcomes_of(answer, len(items), keeps))
        return [next(answers) if result is None else result for result in results]

    def _context(self, held: Held, offset: int) -> Context:
        claimed = held.slice
        return Context(
            claimed.batch,
            claimed.tenant,
            claimed.action,
            claimed.submitted_ms,
            held.indexes[offset],
            claimed.tries + 1,
            self._once,
            self._state,
        )

    def _settle(
        self, job: Job, action: Action, results: Sequence[Done | BaseException], used_s: float
    ) -> None:
        each_s = used_s / job.count
        self.finished += job.count
        self.item_s += ITEM_WEIGHT * (each_s - self.item_s)
        for (held, offset), result in zip(job.places, results, strict=True):
            self._ledger.changed(held)
            error = _keep(held, offset, result) if isinstance(result, Done) else result
            if error is None:
                held.mark(offset, _DONE, each_s)
                continue
            mark, setback = verdict(action, offset, held.slice.tries + 1, error, self._rng)
            is_new = held.mark(offset, ord(mark), each_s, setback)
            if not isinstance(error, TOLD_ELSEWHERE):
                self._errors.note(self._context(held, offset), error, mark == FAILED)
            if is_new and isinstance(error, RateLimited) and not setback.counted:
                self._on_refused(held, setback.delay_ms / 1000)
        self._on_change()

    # -- timeouts --------------------------------------------------------------------------

    def check_times(self) -> None:
        """Cancel handlers that time out. Replace workers whose handlers ignore the cancellation."""
        if len(self._workers) < self.size:
            self.resize(self.size)  # replace workers that ended unexpectedly
        now_s = self._clock.monotonic_s()
        for worker in list(self._workers):
            job, action = worker.job, worker.action
            if job is None or action is None or worker.task is None:
                continue
            late_s = now_s - worker.started_s - action.timeout_s
            if late_s > 0 and not worker.timed_out:
                worker.timed_out = True
                worker.task.cancel()
            elif late_s > ABANDON_S:
                self._abandon(worker, job, action)

    def cut_off(self, needs: Collection[Need]) -> None:
        """Cancel the handlers that run at these places, since the leases of the places end.

        A handler in a thread cannot be cancelled and goes on.
        """
        for worker in list(self._workers):
            if worker.job and not self._lanes.needs_of(worker.job.places).isdisjoint(needs):
                self._cut_off(worker, "its place at a limit")

    def cut_off_items(self) -> None:
        """Cancel the handlers of all items, since the leases of the items end.

        This kills the processes of handlers that run in processes. A handler in a thread cannot be
        cancelled. It goes on, and its outcome counts unless another worker has got the item.
        """
        for worker in list(self._workers):
            if worker.action and worker.action.is_async:
                self._cut_off(worker, "the lease of its item")

    def _cut_off(self, worker: Worker, lease: str) -> None:
        job, action = worker.job, worker.action
        if job is None or action is None or worker.task is None or worker.cut_off:
            return
        logger.warning(
            "batch %s: a handler of %r is cancelled%s: %s could not be renewed",
            job.batches,
            action.name,
            "" if action.is_async else ", but its thread goes on",
            lease,
        )
        worker.cut_off = lease
        worker.task.cancel()

    def _abandon(self, worker: Worker, job: Job, action: Action) -> None:
        logger.error(
            "batch %s: a handler of %r timed out and ignores its cancellation: abandoned",
            job.batches,
            action.name,
        )
        worker.abandoned = True
        self._workers.pop(worker, None)
        self._release(worker)
        error = TimedOut(f"the handler did not return after timeout_s={action.timeout_s:g}")
        used_s = self._clock.monotonic_s() - worker.started_s
        self._settle(job, action, [error] * job.count, used_s)
        self.resize(self.size)

    def running_actions(self) -> list[str]:
        return sorted({w.action.name for w in self._workers if w.job and w.action})

    # -- ending ----------------------------------------------------------------------------

    def give_back_waiting(self, which: Callable[[Slice], bool] | None = None) -> None:
        """Return items that have not started to the queue: those of all slices, or of some."""
        jobs, self._jobs = self._jobs, deque()
        for job in jobs:
            if which is None or which(job.places[0][0].slice):
                self._give_back(job)
            else:
                self._jobs.append(job)
        self._waiting_items = sum(job.count for job in self._jobs)
        for place in self._lanes.clear(which):
            self._ledger.give_back(*place)
        self._on_change()

    async def stop(self, grace_s: float) -> None:
        """Give back all items that have not started, and those that run longer than `grace_s`."""
        self.is_ending = True
        self.give_back_waiting()
        workers = list(self._workers)
        self.size = 0
        self.wake(len(self._idle))
        tasks = {each.task for each in workers if each.task and not each.is_entering}
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for worker in workers:
            self._interrupt(worker)
        self._on_change()

    def _interrupt(self, worker: Worker) -> None:
        if worker.task is None or worker.task.done():
            return
        worker.abandoned = True
        if worker.job is not None:
            self._give_back(worker.job)
        worker.task.cancel()

    def _give_back(self, job: Job) -> None:
        for held, offset in job.places:
            self._ledger.give_back(held, offset)


def _is_current(task: asyncio.Task[None] | None) -> bool:
    """Return whether this code runs in `task`, and is not only closing its coroutine."""
    with suppress(RuntimeError):  # no event loop runs
        return asyncio.current_task() is task
    return False


class Worker:
    __slots__ = (
        *("abandoned", "action", "cut_off", "is_entering", "job", "started_s", "task"),
        "timed_out",
    )

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.job: Job | None = None
        self.action: Action | None = None
        self.started_s = 0.0
        self.cut_off = ""  # the lease that could not be renewed
        self.timed_out = self.abandoned = self.is_entering = False


class Job:
    """Items that run in one call of the handler."""

    __slots__ = ("places",)

    def __init__(self, places: list[Place]) -> None:
        self.places = places

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def batches(self) -> str:
        """The ids of the items' batches, for a log line."""
        return ", ".join(sorted({repr(held.slice.batch) for held, _ in self.places}))

    def may_take(self, held: Held) -> bool:
        """Return whether a slice's items may join this job.

        All items of a job have the same action and tenant.
        """
        mine, other = self.places[0][0].slice, held.slice
        return (mine.action, mine.tenant) == (other.action, other.tenant)


async def call_handler(action: Action, items: Any, contexts: Any) -> Any:
    """Call a handler on the event loop, or in a thread if it is a plain function."""
    if action.middleware:
        return await call_inside(action, _call_bare, items, contexts)
    return await _call_bare(action, action.handler, items, contexts)


async def _call_bare(action: Action, handler: Callable[..., Any], items: Any, contexts: Any) -> Any:
    if action.is_async or iscoroutinefunction(handler):  # hooks surround it: see `observed`
        answer = await handler(items, contexts)
    else:
        answer = await in_thread(handler, items, contexts)
        if isawaitable(answer):  # for example from a decorator around an `async def`
            answer = await answer
    if answer is not None and (isgenerator(answer) or isasyncgen(answer)):
        raise BadAnswer("the handler returned a generator, which never runs")
    return answer


def _keep(held: Held, offset: int, done: Done) -> Fail | None:
    """Keep the result of an item if its batch keeps results.

    Returns the error with which the item fails if its result cannot be kept.
    """
    if not held.slice.result_bytes:
        return None
    try:
        held.keep(offset, kept(done.value, held.slice.result_bytes))
    except Fail as error:
        return error
    return None
