"""Bulk actions for applications: submit a batch, read its progress, pause, cancel or retry it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import WARNING
from random import Random
from typing import Any, Unpack

from msgspec.structs import replace

from heatsink.errors import Overloaded, Retryable
from heatsink.primitives.allowed_urls import check_allowed, check_prefixes
from heatsink.primitives.checks import check_kind, check_text, check_whole
from heatsink.primitives.clock import Clock, now_ms
from heatsink.primitives.hooks import NO_HOOKS, Call, Hooks

from . import changes, flows
from .actions import BUILT_IN, DAY_S, NEXT, Action, Announcements, Context, check_action
from .batch import (
    ITEMS_MAX,
    Batch,
    Failure,
    Progress,
    Rate,
    Result,
    State,
    only_item,
    parse_rate,
)
from .controls import NO_CONTROLS, Controls
from .limits import LimitUse, limits_in_use
from .moving import MoveProgress, PartitionMover
from .plan import LEGACY, PartitionPlace, QueuePlan, check_follows, founding, place_in
from .reconcile import Opening, Patience, Reconciler, check_known
from .results import check_keeps, failure, read_results
from .settings import PARTITIONS_MAX, BulkSettings
from .singles import Singles
from .store import PartCounts, PartState, QueueStores, Verb
from .submit import (
    LEFT_BEHIND,
    PRIORITY_MAX,
    TEXT_MAX,
    BatchOptions,
    Fingerprint,
    Submission,
    check_id,
    check_options,
    give_up,
    hand,
    is_left_behind,
)

FAILURES_PAGE = 500
LIST_MAX = KEYS_MAX = 1_000
ENDED_MAX = 10_000
LOOK_S = 0.05
TELL_S = 5.0
LOOK_S_MAX = 1.0
LOOKS_APART = 4  # times as long as a look at a large batch takes
Items = Iterable[Any] | AsyncIterable[Any]
VERBS: dict[State, Verb] = {"paused": "pause", "running": "resume", "cancelling": "cancel"}


class Bulk:
    """`hs.bulk`: submit batches of items, read their progress, pause, cancel and retry them.

    Calls raise `InvalidInput` for a bad argument, `NotFound` for an unknown batch, `Overloaded` if
    the queue does not answer, and `Closed` after the client is closed::

        batch = await hs.bulk.submit("tag", items, tenant="acme", rate="500/s")
        progress = await hs.bulk.wait(batch.id)
    """

    def __init__(
        self,
        stores: QueueStores,
        settings: BulkSettings,
        clock: Clock,
        rng: Random,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._stores = stores
        self.settings, self.controls = settings, NO_CONTROLS
        self._webhooks = check_prefixes("webhooks", settings.webhooks)
        self._clock, self._rng = clock, rng
        self._patience = Patience(settings.deadline_s, clock, rng, Opening(self._open))
        self.reconciler = Reconciler(stores, self._patience, clock, self.tell_done)
        self._ended: deque[tuple[str, int]] = deque(maxlen=ENDED_MAX)  # known to be durable
        self.owner = self._patience.owner
        self.check_known = partial(check_known, stores, self._patience)
        self._ask_results = partial(self._patience.call, stores.queue.results)
        self.hooks = hooks
        self._first, self._is_warned = founding(settings, stores.home), False
        self._limits = Announcements(partial(self._patience.call, stores.places.declared), clock)
        ask_time = partial(self._patience.call, stores.limits.reserve, "", 0, 0)
        self._home_time = flows.HomeTime(ask_time, clock)
        self._singles = Singles(stores, self._patience, self.plan, self._limits, clock, rng)

    def adopt(self, new: BulkSettings, controls: Controls = NO_CONTROLS) -> None:
        """Use the weights of `new` for new batches, its limits and `controls` for all batches."""
        self.settings = replace(self.settings, weights=new.weights, limits=new.limits)
        self.controls = controls

    async def open(self) -> None:
        """Connect now, to see errors early: `await hs.bulk.open()`

        Raises `Misconfigured` if the queue's server is not durable enough.
        """
        await self._patience.open()

    async def _open(self) -> None:
        await self._stores.open()
        self._followed(await self._stores.fleet.plan(self._first, False))

    def close(self) -> None:
        """Close the queue: waiting calls and later calls raise `Closed`."""
        self._patience.is_closed = True

    @property
    def is_closed(self) -> bool:
        return self._patience.is_closed

    async def submit(
        self,
        action: str,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        tenant: str = "default",
        priority: int = 0,
        rate: str | None = None,
        id: str | None = None,
        on_done: str = "",
        spread: bool = True,
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Submit a batch. After the call returns, every item will run, even if processes crash.

        `items` is any (async) iterable of JSON values or bytes, and is streamed. `rate`, such as
        `"500/s"`, limits how fast items of this action start for this tenant; `priority` orders a
        tenant's own batches. With an `id`, the call may be repeated. `on_done` is an action, or an
        allowed URL, that gets the outcome. `spread=False` keeps the batch in one partition. No item
        starts before the datetime `at`, or before `delay` (in seconds) has passed. `results="keep"`
        keeps what the handler returns. When the batch has ended, the action `then` gets the items
        that are done, and `otherwise` those that failed. Raises `InvalidBody` for any other item,
        `IdReused` if another batch has the id, and `Overloaded`, with the id to submit again::

            batch = await hs.bulk.submit("tag", items, tenant="acme", id="import-7")
            await hs.bulk.submit("tag", items, tenant="acme", id="import-7")  # the same batch
        """
        check_kind("spread", spread, bool)
        now, is_named = now_ms(self._clock), id is not None and not action.startswith(BUILT_IN)
        if "unique" in options:
            id = flows.unique_id(id, action, tenant, options, await self._home_time.now_ms())
        wanted = Batch(
            id=check_id(id) if id is not None else self._new_id(),
            action=check_action("action", action),
            tenant=check_text("tenant", tenant, TEXT_MAX),
            submitted_ms=now,
            priority=check_whole("priority", priority, -PRIORITY_MAX, PRIORITY_MAX),
            weight=self.settings.weights.get(tenant, 1.0),
            rate=parse_rate(rate) if rate is not None else None,
            on_done=self._checked_on_done(on_done),
            **check_options(options, now),
        )
        call = Call("bulk.submit", attributes={"action": action})
        with self.hooks.around(call):
            wanted = replace(wanted, trace=self.hooks.trace())
            batch = await self._submit(wanted, items, spread, is_named)
            call.attributes.update(batch=batch.id, tenant=batch.tenant, items=batch.items)
            return batch

    async def enqueue(
        self,
        action: str,
        item: Any,
        *,
        tenant: str = "default",
        priority: int = 0,
        id: str | None = None,
        on_done: str = "",
        **options: Unpack[BatchOptions],
    ) -> Batch:
        """Submit a batch of one item, with the options and errors of `submit(action, [item])`.

        This costs one call to the queue. Other submissions of the same moment share the call::

            await hs.bulk.enqueue("mail", {"to": "ada@example.org"}, delay=60)
        """
        return await self.submit(
            action, [item], tenant=tenant, priority=priority, id=id, on_done=on_done, **options
        )

    async def _submit(self, wanted: Batch, items: Items, spread: bool, is_named: bool) -> Batch:
        """Submit a batch. `is_named` says that the caller chose its id."""
        try:
            if self.settings.partitioned and (single := only_item(items)):
                if accepted := await self._singles.accept(wanted, single[0], is_named):
                    return accepted
                items = single
            await self.check_known(wanted)
            return await self._accept(wanted, items, spread, Fingerprint() if is_named else None)
        except Retryable as error:
            known = getattr(error, "__notes__", [f"batch {wanted.id!r} may be accepted"])
            advice = f"{known[-1]}: submit again with id={wanted.id!r}"
            raise Overloaded(f"{error}; {advice}") from error.__cause__ or error

    async def _accept(
        self,
        wanted: Batch,
        items: Items,
        spread: bool,
        fingerprint: Fingerprint | None = None,
    ) -> Batch:
        wanted = await self._limits.added(wanted)
        known = await self._patience.call(self._stores.batches.open, wanted)
        changes.check_same(known, wanted)
        if known.is_sealed:
            known = await self.reconciler.inspect(known)
            if not changes.may_restore(known):
                return await self._accepted_before(known, wanted, items, fingerprint)
            batch = known
        else:
            kept = ("submitted_ms", "version", "tag", "start_ms", "limits")
            batch = replace(wanted, **{name: getattr(known, name) for name in kept})
            if wanted.rate is not None:
                await self._declare(wanted, wanted.rate)
        partitions = await self._hand(batch.id, spread)
        shared = self._stores, self._patience, self._clock, self._rng
        submission = Submission(batch, partitions, *shared, fingerprint)
        accepted = await submission.run(items)
        await self._release(accepted)
        if not accepted.items:
            await self.tell_done(accepted)
        return accepted

    async def _accepted_before(
        self,
        known: Batch,
        wanted: Batch,
        items: Items,
        fingerprint: Fingerprint | None,
    ) -> Batch:
        """Return the batch that was accepted with this id.

        Raises `IdReused` if the accepted batch has other items or options.
        """
        if known.fingerprint and fingerprint is not None:
            await fingerprint.add_all(items, self._clock)
            changes.check_same(known, replace(wanted, fingerprint=fingerprint.text))
        (found,) = await self._patience.call(self._stores.barrier.batches, [known.id])
        if found is None or not found.is_sealed:
            raise Overloaded(f"the queue lost the record of batch {known.id!r}")
        await self._release(found)
        if not found.items:
            await self.tell_done(found)
        return found

    async def _declare(self, wanted: Batch, rate: Rate) -> None:
        """Set the rate of a batch's lane. A lane's first rate also limits its queued batches."""
        lane, limits = wanted.lane, self._stores.limits
        before = await self._patience.call(limits.rate_of, lane)
        await self._patience.call(limits.declare, lane, rate)
        if before is None:
            for batch in await self.list(LIST_MAX, wanted.tenant):
                if batch.action == wanted.action and not batch.is_final:
                    await self.reconciler.tell_parts(batch, "limit")

    async def _release(self, batch: Batch) -> None:
        """Let workers run the parts. If the lane has a rate limit, first apply it to the parts."""
        if batch.state != "running":
            return
        limits = self._stores.limits
        if await self._patience.call(limits.rate_of, batch.lane) is not None:
            await self.reconciler.tell_parts(batch, "limit")
        if not await self.reconciler.tell_parts(batch, "release"):
            found = await self.reconciler.inspect(batch)
            if found.missing:
                raise Overloaded(changes.reason(found, ()))

    def _new_id(self) -> str:
        return f"{self._rng.getrandbits(96):024x}"

    def _checked_on_done(self, on_done: str) -> str:
        if not on_done or "://" not in on_done:
            return check_action("on_done", on_done) if on_done else ""
        return check_allowed("on_done", on_done, self._webhooks)

    async def _hand(self, batch: str, spread: bool) -> list[int]:
        if not self.settings.partitioned:
            await self._patience.call(self._stores.fleet.plan, self._first, False)
            return [LEGACY]
        plan = await self.plan()
        return hand(batch, plan.partitions, spread, plan.moves)

    async def plan(self) -> QueuePlan:
        """Return the queue's plan. `(await hs.bulk.plan()).partitions` is the number of partitions.

        `places` lists the partitions that are not at the queue's home. Its URLs may contain
        passwords: do not print them. Raises `Misconfigured` if this process was started with other
        settings.
        """
        return self._followed(await self._patience.call(self._stores.fleet.plan, self._first))

    def _followed(self, plan: QueuePlan) -> QueuePlan:
        """Return the plan. Raise `Misconfigured` if it contradicts this process's settings."""
        warnings = check_follows(self.settings, plan, self._stores.home)
        for warning in warnings if not self._is_warned else ():
            self.hooks.event("bulk.settings", warning, WARNING)
            self._is_warned = True
        return plan

    async def repartition(self, partitions: int) -> QueuePlan:
        """Change the number of partitions, for all processes; queued items stay where they are.

        `await hs.bulk.repartition(32)` returns the new plan.
        """
        check_whole("partitions", partitions, 1, PARTITIONS_MAX)
        while True:
            now = await self.plan()
            wanted = now.repartitioned(partitions)
            kept = await self._patience.call(self._stores.fleet.change, wanted)
            if kept == wanted:
                return kept

    async def places(self) -> list[PartitionPlace]:
        """Return which Redis holds each partition. The URLs contain no user names and no passwords.

        Example::

            for each in await hs.bulk.places():
                print(each.number, each.place)
        """
        plan = await self.plan()
        return [place_in(plan, number) for number in range(plan.high_water)]

    async def place(self, partition: int, url: str) -> PartitionPlace:
        """Move a partition to the Redis at `url`, or to `"home"`, while everything runs.

        New parts go to other partitions until the move is done. The call waits until the
        partition's parts have ended. The call may be repeated, also after a crash. To cancel a
        move, call `place` with the Redis that the partition is leaving. Raises `Conflict` if the
        Redis holds parts that the move would lose, and `NotFound` if there is no such partition::

            await hs.bulk.place(3, "redis://other:6379")
        """
        async for _ in self.moving(partition, url):
            pass
        return place_in(await self.plan(), partition)

    def moving(self, partition: int, url: str) -> AsyncIterator[MoveProgress]:
        """Move a partition as `place` does, and yield the progress of the move.

        Example::

            async for progress in hs.bulk.moving(3, "redis://other:6379"):
                print(progress.step, progress.items)
        """
        mover = PartitionMover(self._stores, self._patience, self._clock, self._first)
        return mover.steps(partition, url)

    # -- progress --------------------------------------------------------------------------

    async def status(self, id: str) -> Progress:
        """Return the progress of a batch. A final state is also durable.

        The call also repairs the batch. If parts have missed a pause, resume or cancel, it sends
        the command again. And it finds items that the queue's servers have lost::

            progress = await hs.bulk.status(batch.id)
            print(progress.done, "of", progress.accepted)
        """
        batch = await self._look(id)
        counts = await self._counts(batch)
        if changes.odd_parts(batch, list(counts.values())):
            batch = await self.reconciler.inspect(batch)
            counts = await self._counts(batch)
        batch = await self._surely_ended(batch)
        states = {part: count.state for part, count in counts.items() if count}
        if changes.unheard(batch, states):
            batch = await self._tell_again(batch, states)
        progress = changes.progress_of(batch, counts)
        found = [count for count in counts.values() if count]
        eta_s, reason = await self.reconciler.outlook(batch, found, progress.left)
        return replace(progress, eta_s=eta_s, reason=reason)

    async def _tell_again(self, batch: Batch, states: Mapping[str, PartState]) -> Batch:
        """Send a pause, resume or cancel again to parts that missed it.

        First wait until the record with this command is durable. Returns the record.
        """
        (found,) = await self._patience.call(self._stores.barrier.batches, [batch.id])
        batch = changes.check_found(found, batch.id)
        for verb in changes.unheard(batch, states):
            await self.reconciler.tell_parts(batch, verb)
        return batch

    async def _surely_ended(self, batch: Batch) -> Batch:
        """Return the batch's record. If its state is final, make the record durable first."""
        if not batch.is_final or (batch.id, batch.version) in self._ended:
            return batch
        (found,) = await self._patience.call(self._stores.barrier.batches, [batch.id])
        batch = changes.check_found(found, batch.id)
        if batch.is_final:
            self._ended.append((batch.id, batch.version))
        return batch

    async def _counts(self, batch: Batch) -> dict[str, PartCounts | None]:
        """Return the counts of each part by part id; None for a part that does not exist."""
        found = await self.reconciler.counts(batch)
        return dict(zip((part.id for part in batch.parts), found, strict=True))

    async def list(self, limit: int = 50, tenant: str = "") -> list[Batch]:
        """Return up to `limit` batches, newest first. `tenant` selects batches of one tenant.

        `await hs.bulk.list(limit=10, tenant="acme")` returns the records of ten batches.
        """
        check_whole("limit", limit, 1, LIST_MAX)
        found = await self._patience.call(self._stores.batches.list, limit, tenant)
        offered = await self._patience.call(self._stores.fleet.offered)
        now = now_ms(self._clock)
        reasons = (changes.reason(b, offered) or changes.waits_to_start(b, now) for b in found)
        known = zip(found, reasons, strict=True)
        return [replace(b, reason=w or changes.paused_by(b, self.controls)) for b, w in known]

    async def limits(self, keys: int = 10) -> Sequence[LimitUse]:
        """Return the limits of all workers, each with the `keys` keys that have the longest lines.

        `(await hs.bulk.limits())[0].uses` says how many items run and wait for each key.
        """
        check_whole("keys", keys, 1, KEYS_MAX)
        asked = self._stores.places, self.settings.limits, keys
        return await self._patience.call(limits_in_use, *asked)

    async def failures(self, id: str) -> AsyncIterator[Failure]:
        """Iterate over all items that failed permanently, with the reason.

        Example::

            async for failure in hs.bulk.failures(batch.id):
                print(failure.index, failure.item, failure.reason)
        """
        batch = await self._get(id)
        for part in batch.parts:
            after = ""
            while page := await self._patience.call(
                self._stores.queue.failures, part.partition, part.id, after, FAILURES_PAGE
            ):
                for failed in page:
                    yield failure(part, failed)
                after = page[-1].place

    async def results(self, id: str, after: int = -1) -> AsyncIterator[Result]:
        """Iterate over the results of the items that are done, in the order of the items.

        `after` is the index of the last result that the caller has: the iteration continues after
        it. While the batch runs, only finished items have results: wait for its end first. Raises
        `Conflict` if the batch was submitted without `results="keep"`::

            async for result in hs.bulk.results(batch.id):
                print(result.index, result.value)
        """
        check_whole("after", after, -1, ITEMS_MAX)
        batch = check_keeps(await self._get(id))
        async for found in read_results(batch, self._ask_results, after):
            yield Result(found.index, found.value)

    async def wait(self, id: str, timeout_s: float | None = None) -> Progress:
        """Wait until the batch ends; return its progress. Raises `Overloaded` after `timeout_s`.

        `(await hs.bulk.wait(batch.id, timeout_s=600)).state` is the final state.
        """
        start_s, pause_s, is_told = self._clock.monotonic_s(), LOOK_S, False
        if changes.is_following(check_text("id", id, TEXT_MAX)):
            await flows.come(self, self._get, id, timeout_s)
        while True:
            looked_s = self._clock.monotonic_s()
            if (progress := await self.status(id)).is_final:
                return progress
            took_s = self._clock.monotonic_s() - looked_s
            waited_s = self._clock.monotonic_s() - start_s
            if timeout_s is not None and waited_s > timeout_s:
                late = f"batch {id!r} has not ended after {timeout_s:g} s: it goes on, wait again"
                raise Overloaded(late)
            if not is_told and waited_s > TELL_S and progress.reason.startswith(changes.NO_WORKER):
                is_told = True
                cure = "start `heatsink worker MODULE:ACTIONS`, or hs.worker(actions).run()"
                self.hooks.event("bulk.waiting", f"{id!r} is {progress.reason}: {cure}", WARNING)
            await self._clock.sleep(max(pause_s, LOOKS_APART * took_s))
            pause_s = min(pause_s * 1.2, LOOK_S_MAX)

    async def trace_of(self, id: str) -> str:
        """Return the trace in which the batch was submitted; empty if there was none."""
        return (await self._get(id)).trace

    async def _look(self, id: str) -> Batch:
        """Return the record. If the submitter died before the seal, first abort the batch."""
        batch = await self._get(id)
        if not is_left_behind(batch, now_ms(self._clock)):
            return batch
        batches = self._stores.batches
        given_up = await self._patience.call(give_up, batches, id, LEFT_BEHIND, self._clock)
        return changes.check_found(given_up, id)

    async def _get(self, id: str) -> Batch:
        check_text("id", id, TEXT_MAX)
        return changes.check_found(await self._patience.call(self._stores.batches.get, id), id)

    # -- steering --------------------------------------------------------------------------

    async def cancel(self, id: str) -> None:
        """Cancel a batch: waiting items will not run, running items may finish.

        Raises `Conflict` if the batch has ended or is still being submitted::

            await hs.bulk.cancel(batch.id)
            progress = await hs.bulk.wait(batch.id)
        """
        await self._look(id)
        await self._steer(id, "cancelling")

    async def pause(self, id: str) -> None:
        """Pause a batch: no more items start, running items finish.

        Raises `Conflict` if the batch is neither running nor paused::

            await hs.bulk.pause(batch.id)
        """
        await self._steer(id, "paused")

    async def resume(self, id: str) -> None:
        """Resume a paused batch.

        Raises `Conflict` if the batch is neither running nor paused::

            await hs.bulk.resume(batch.id)
        """
        await self._steer(id, "running")

    async def retry_failed(self, id: str) -> None:
        """Run the failed items again, as if they had never run. Raises `Conflict` if none failed.

        After `await hs.bulk.retry_failed(batch.id)`, call `wait` again.
        """
        was_running = not (await self._get(id)).is_final
        await self.status(id)  # records an end that is not recorded yet
        batch = await self._get(id)
        if was_running and batch.state == "done":
            return  # an earlier retry, which only now has reached all parts
        if batch.is_final:
            await self.tell_done(batch)  # before the retry replaces that end
        batch = await self.change(id, changes.tried_again)
        await self._tell_durably(batch, "retry")

    async def _steer(self, id: str, wish: State) -> None:
        check_text("id", id, TEXT_MAX)
        batch = await self.change(id, lambda batch: changes.steered(batch, wish))
        await self._tell_durably(batch, VERBS[wish])

    async def _tell_durably(self, batch: Batch, verb: Verb) -> None:
        """Send the command `verb` to the parts, and make the batch's record durable.

        Both the parts and the record hold the command. If a server loses the command in one of
        these places, the other place still has it.
        """
        confirmation = self._patience.call(self._stores.barrier.batches, [batch.id])
        (found,), _ = await asyncio.gather(confirmation, self.reconciler.tell_parts(batch, verb))
        if found is None or found.version < batch.version:
            raise Overloaded(f"the queue may have lost a change of {batch.id!r}: repeat the call")

    async def change(self, id: str, step: Callable[[Batch], Batch]) -> Batch:
        """Store `step(record)` as the batch's new record, and return it. Retry after a conflict."""
        return await self.reconciler.change(id, step)

    async def tell_done(self, batch: Batch) -> None:
        """Submit the batch's callbacks. Their ids depend only on the batch, so a repeat is safe."""
        for callback, item in changes.callbacks(batch, now_ms(self._clock)):
            await self._accept(callback, [item], spread=False)

    @property
    def next_action(self) -> Action:
        """The built-in action that submits the batches that follow an ended batch."""
        return Action(NEXT, self._follow, max_attempts=100, timeout_s=DAY_S, backoff_max_s=60)

    async def _follow(self, told: dict[str, Any], _: Context) -> None:
        batch, now = await self._get(told["batch"]), now_ms(self._clock)
        lap, failures = told["lap"], self.failures(batch.id)
        for wanted, items in flows.following(batch, lap, self._ask_results, failures, now):
            await self._accept(wanted, items, spread=True)
