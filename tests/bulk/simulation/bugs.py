"""Bugs that somebody might write, each planted into the production code for one run.

They show that the simulation bites: every one of them must be found within 200 seeds, or by the
scenario in `test_scenarios.py` that has its name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from heatsink.bulk import changes, submit
from heatsink.bulk.batch import KEEP_SINGLE_MS, Batch, Cursor, PartEnd, PartPlace
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.controls import Controls
from heatsink.bulk.limits import HoldRequest
from heatsink.bulk.lost_records import LostRecords
from heatsink.bulk.moving import MoveProgress, PartitionMover
from heatsink.bulk.plan import PartitionMove, QueuePlan, Remains, Spot
from heatsink.bulk.reconcile import PartitionRouter, Reconciler
from heatsink.bulk.store import (
    RUNNING,
    Claimed,
    ClaimRequest,
    Handover,
    Outcome,
    PartCounts,
    Single,
)
from heatsink.bulk.submit import Submission
from heatsink.bulk.work import consumer
from heatsink.bulk.work.consumer import Housekeeping
from heatsink.bulk.work.division import PLAIN, Division
from heatsink.bulk.work.held import Lanes, Ledger
from heatsink.bulk.work.home_clock import HomeClock, Standing
from heatsink.bulk.work.pump import Pump
from heatsink.bulk.work.remote import Desk, ItemLease, lease_of
from heatsink.primitives import slot_time
from heatsink.primitives.slot_time import SlotEvidence, SlotTime
from heatsink.stores.memory.queue import homes
from heatsink.stores.memory.queue.homes import MemoryBatches, MemoryLimits
from heatsink.stores.memory.queue.moves import MemoryMoves
from heatsink.stores.memory.queue.parts import PartShare
from heatsink.stores.memory.queue.places import LimitHome, LimitKey
from heatsink.stores.memory.queue.queue import ClaimLease, QueuePartition
from heatsink.stores.memory.queue.singles import MemorySingles
from tests.planted import Bugs

from .server import LossyServer

BUGS = bug = Bugs()


SCENARIO_BUGS = scenario_bug = Bugs()


async def nothing(*_: Any) -> None:
    """In place of what does something."""


@bug
def an_outcome_taken_whoever_tells_it() -> Iterator[None]:
    """The attempt is not compared: who lost a lease settles what another one holds."""
    settle, lose = QueuePartition._settle, QueuePartition._lose
    names: dict[str, tuple[str, int, int]] = {}

    def remember(self: QueuePartition, attempt: str, lease: ClaimLease, now_ms: float) -> None:
        names[attempt] = lease.share.part.id, lease.chunk, lease.start
        lose(self, attempt, lease, now_ms)

    def trusting(self: QueuePartition, outcome: Outcome, now_ms: float) -> bool:
        for attempt, lease in self.leases.items():
            place = lease.share.part.id, lease.chunk, lease.start
            if names.get(outcome.attempt) == place and len(outcome.marks) == len(lease.marks):
                return settle(self, replace(outcome, attempt=attempt), now_ms)
        return settle(self, outcome, now_ms)

    with (
        patch.object(QueuePartition, "_lose", remember),
        patch.object(QueuePartition, "_settle", trusting),
    ):
        yield


@bug
def a_lease_that_expires_without_a_fence() -> Iterator[None]:
    """What expired runs again, but its first worker may still settle it."""

    def lose(self: QueuePartition, _attempt: str, lease: ClaimLease, now_ms: float) -> None:
        lease.until_ms = float("inf")
        for offset, mark in enumerate(lease.marks):
            if mark == RUNNING:
                lease.share.lose((lease.chunk, lease.start + offset))
        self._put(lease.share, now_ms)

    with patch.object(QueuePartition, "_lose", lose):
        yield


@bug
def marks_counted_twice() -> Iterator[None]:
    """An outcome that is told again, as its answer was lost, counts again."""
    settle = QueuePartition._settle

    def forgetful(self: QueuePartition, outcome: Outcome, now_ms: float) -> bool:
        if lease := self.leases.get(outcome.attempt):
            lease.marks = RUNNING * len(lease.marks)
        return settle(self, outcome, now_ms)

    with patch.object(QueuePartition, "_settle", forgetful):
        yield


@bug
def leases_that_never_expire() -> Iterator[None]:
    with patch.object(QueuePartition, "_expire", lambda *_: None):
        yield


@bug
def a_claim_repeated_under_its_name() -> Iterator[None]:
    """A claim that lands late takes back what the repeated one handed out, and reuses its names."""
    names: dict[Pump, str] = {}
    store_claim = QueuePartition.claim

    async def same_name(self: Pump, want: int, granted: dict[str, int]) -> Claimed:
        name = names.setdefault(self, f"{self._rng.getrandbits(96):024x}")
        request = ClaimRequest(self._owner, name, want, int(self._lease_s * 1000), granted)
        claimed = await self._stores.queue.claim(self.partition, request)
        del names[self]
        return claimed

    def take_back(self: QueuePartition, request: Any, now_ms: float) -> Claimed:
        return store_claim(self, replace(request, unanswered=[request.attempt]), now_ms)

    with patch.object(Pump, "_claim", same_name), patch.object(QueuePartition, "claim", take_back):
        yield


@bug
def parts_released_before_the_seal() -> Iterator[None]:
    seal = Submission._seal

    async def hasty(self: Submission) -> Batch:
        for spread in self._staged:
            part = self._part(spread).id
            await self._stores.queue.steer(spread[0], part, "release")
        return await seal(self)

    with patch.object(Submission, "_seal", hasty):
        yield


@bug
def a_seal_that_ignores_the_version() -> Iterator[None]:
    update = MemoryBatches.update

    async def blind(self: MemoryBatches, batch: Batch) -> Batch | None:
        known = self._batches.get(batch.id)
        return await update(
            self, replace(batch, version=known.version, tag=known.tag) if known else batch
        )

    with patch.object(MemoryBatches, "update", blind):
        yield


@bug
def stale_parts_dropped_without_a_word() -> Iterator[None]:
    """The record is not changed first: a submission that stood still seals what is gone."""

    async def quietly(batches: Any, id: str, *_: Any) -> Batch | None:
        found: Batch | None = await batches.get(id)
        return found

    with patch("heatsink.bulk.work.consumer.give_up", quietly):
        yield


@bug
def a_dead_producers_parts_left_alone() -> Iterator[None]:
    clear = Housekeeping._clear

    async def respectful(self: Housekeeping, partition: int, part: str, id: str, at: int) -> None:
        batch = await self._stores.batches.get(id)
        if batch is None or batch.state != "open":
            await clear(self, partition, part, id, at)

    with patch.object(Housekeeping, "_clear", respectful):
        yield


@bug
def a_callback_without_an_id_of_its_own() -> Iterator[None]:
    tell = Bulk._accept

    async def anew(self: Bulk, wanted: Batch, *rest: Any, **named: Any) -> Batch:
        if ":done:" in wanted.id:
            wanted = replace(wanted, id=f"{wanted.id}:{self._new_id()}")
        return await tell(self, wanted, *rest, **named)

    with patch.object(Bulk, "_accept", anew):
        yield


@bug
def an_end_forgotten_before_home_knows() -> Iterator[None]:
    """Reported at once, then told: what dies in between is never told."""

    async def hasty(self: Housekeeping, partition: int) -> None:
        chores = await self._stores.queue.chores(partition, [])
        if chores.ends:
            await self._stores.queue.chores(partition, chores.ends)
            await self._bulk.reconciler.record_ends(partition, chores.ends)
        for part, batch, stamp in chores.stale:
            await self._clear(partition, part, batch, stamp)

    with patch.object(Housekeeping, "tidy", hasty), _ends_are_not_looked_for():
        yield


@bug
def an_end_counted_for_every_report() -> Iterator[None]:
    def credulous(batch: Batch, new: Sequence[PartEnd], now_ms: int, *_: Any) -> Batch:
        ends = (*batch.ends, *new)
        if len(ends) < len(batch.parts):
            return replace(batch, ends=ends)
        return replace(batch, ends=ends, state=changes.final_state(batch, ends), ended_ms=now_ms)

    with patch.object(changes, "with_ends", credulous):
        yield


@bug
def wishes_that_are_told_only_once() -> Iterator[None]:
    """Whoever dies between the record and the parts leaves the batch as it is for ever."""
    with patch.object(changes, "unheard", lambda *_: []):
        yield


@bug
def starts_that_are_not_forfeited() -> Iterator[None]:
    """What could not start in time starts late, and the limit was not told of it."""
    window = HomeClock.window

    def longer(self: HomeClock, home_s: float) -> tuple[float, float]:
        earliest_s, latest_s = window(self, home_s)
        return earliest_s, latest_s + 5.0

    with patch.object(HomeClock, "window", longer):
        yield


@scenario_bug
def a_generation_for_all_submissions() -> Iterator[None]:
    """Two submissions of one id share their parts, and each its own chunks in them."""

    def shared(batch: str, _generation: str, partition: int) -> str:
        return f"{batch}/{partition}"

    with patch.object(submit, "part_id", shared):
        yield


# -- servers that lose their newest writes ---------------------------------------------------------


@contextmanager
def _ends_are_not_looked_for() -> Iterator[None]:
    """Ends are also found by whoever looks at a batch: without that, who reports them matters."""
    odd = changes.is_odd

    def only_losses(
        batch: Batch, end: PartEnd | None, place: PartPlace, counts: PartCounts | None
    ) -> bool:
        return odd(batch, end, place, counts) and (counts is None or counts.state != "finished")

    with patch.object(changes, "is_odd", only_losses):
        yield


@bug
def a_seal_before_the_parts_are_verified() -> Iterator[None]:
    async def trust(self: Submission) -> None:
        await self._finish_calls(0)

    with patch.object(Submission, "_confirm", trust):
        yield


async def _verified_only(self: Submission) -> list[int]:
    """The partitions whose part is not as it was sent, by a read that makes nothing durable."""
    await self._finish_calls(0)
    wrong = []
    for spread, place in zip(sorted(self._staged), self._places(), strict=True):
        found = await self._patience.call(self._stores.queue.part, place.partition, place.id)
        if not self._staged[spread].is_as_sent(found):
            await self._stage_again(spread, found)
            wrong.append(place.partition)
    return wrong


@bug
def no_sync_before_the_seal() -> Iterator[None]:
    """Verified, but not made durable: another server may keep the seal and lose the parts."""

    async def hasty(self: Submission) -> None:
        while await _verified_only(self):
            pass

    with patch.object(Submission, "_confirm", hasty):
        yield


@bug
def no_verification_after_a_restart() -> Iterator[None]:
    """Verified, then made durable by another call: a restarted server confirms what it has lost."""

    async def two_calls(self: Submission) -> None:
        while await _verified_only(self):
            pass
        await self._patience.call(self._stores.barrier.parts, self._places())

    with patch.object(Submission, "_confirm", two_calls):
        yield


@bug
def a_seal_that_is_not_read_back() -> Iterator[None]:
    """Whoever was told that the batch is in may find that it never was."""

    async def trusting(self: Submission) -> Batch:
        await self._confirm()
        while True:
            kept = await self._patience.call(
                self._stores.batches.update, self._accepted(self._batch)
            )
            if kept is not None:
                return kept
            found = await self._patience.call(self._stores.batches.get, self._batch.id)
            if found is not None and found.is_sealed:
                return found
            self._batch = found or await self._reopened()

    with patch.object(Submission, "_seal", trusting):
        yield


@bug
def an_end_that_is_told_before_it_is_durable() -> Iterator[None]:
    async def at_once(_: Bulk, batch: Batch) -> Batch:
        return batch

    with patch.object(Bulk, "_surely_ended", at_once):
        yield


@bug
def an_end_forgotten_before_its_record_is_durable() -> Iterator[None]:
    async def hopeful(self: Reconciler, ids: list[str]) -> dict[str, None]:
        for id in ids:
            found = await self._patience.call(self._stores.batches.get, id)
            if found is not None:
                await self._end(found)
        return dict.fromkeys(ids)

    with patch.object(Reconciler, "_conclude", hopeful), _ends_are_not_looked_for():
        yield


@bug
def a_lost_part_that_is_waited_for() -> Iterator[None]:
    with patch.object(changes, "gone", lambda batch, _: PartEnd(batch.id, "", 0, 0, 0, 0)):
        yield


@scenario_bug
def a_lost_record_that_is_not_rebuilt() -> Iterator[None]:
    async def ignore(*_: Any) -> None:
        pass

    with patch.object(LostRecords, "adopt", ignore):
        yield


@bug
def a_pump_that_dies_of_a_missing_chunk() -> Iterator[None]:
    with (
        patch.object(PartShare, "take", PartShare._next),
        patch.object(PartShare, "_skip_gaps", lambda _: None),
    ):
        yield


@bug
def a_restoration_that_doubles_items() -> Iterator[None]:
    """All items are staged again, not only those that were lost."""
    with patch.object(submit, "Cursor", lambda _: Cursor([(0, 1 << 60)])):
        yield


@scenario_bug
def a_version_that_is_compared_without_its_tag() -> Iterator[None]:
    """A server that went back gives a version out again: an old change replaces a newer one."""
    update = MemoryBatches.update

    async def trusting(self: MemoryBatches, batch: Batch) -> Batch | None:
        known = self._batches.get(batch.id)
        return await update(self, replace(batch, tag=known.tag) if known else batch)

    with patch.object(MemoryBatches, "update", trusting):
        yield


@scenario_bug
def an_end_forgotten_though_its_record_went_back() -> Iterator[None]:
    """The partition forgets every end that was added, and nobody submits the batch's callback."""
    with patch.object(changes, "counted_ends", lambda _, ends: ends):
        yield


# -- batches of one item --------------------------------------------------------------------------


@bug
def a_single_answered_before_it_is_durable() -> Iterator[None]:
    """The call does not wait for the disk: a batch that somebody was promised is gone."""

    async def at_once(*_: Any) -> None:
        pass

    with patch.object(LossyServer, "synced", at_once):
        yield


@bug
def a_single_accepted_though_its_id_is_taken() -> Iterator[None]:
    """Whoever submits again, perhaps to another partition, runs the item again."""

    async def blind(self: MemorySingles, queue: QueuePartition, single: Single, ms: float) -> bool:
        queue.accept(single.part, single.chunk, self._batches, ms)
        self._batches._keep(single.record)
        return True

    with patch.object(MemorySingles, "_accept", blind):
        yield


@bug
def a_single_done_without_its_record() -> Iterator[None]:
    """The partition forgets the part, and nothing says that its item was done."""
    with patch.object(MemoryBatches, "conclude", lambda *_: True):
        yield


@bug
def a_single_that_ignores_its_rate_limit() -> Iterator[None]:
    accept = MemorySingles._accept

    async def unlimited(self: MemorySingles, *call: Any) -> bool:
        async def none(_: str) -> None:
            return None

        with patch.object(self._limits, "rate_of", none):
            return await accept(self, *call)

    with patch.object(MemorySingles, "_accept", unlimited):
        yield


@scenario_bug
def a_rate_that_nobody_declared() -> Iterator[None]:
    """The queue accepts a single without looking which rate its lane has."""
    with patch.object(MemoryLimits, "is_declared", lambda *_: True):
        yield


@scenario_bug
def a_result_forgotten_with_its_part() -> Iterator[None]:
    """The partition forgets the part of each single that is done."""
    end = QueuePartition._end

    def forgetful(self: QueuePartition, share: PartShare, now_ms: float) -> None:
        end(self, share, now_ms)
        if share.part.id not in self.outbox:
            self.shares.pop(share.part.id, None)

    with patch.object(QueuePartition, "_end", forgetful):
        yield


@scenario_bug
def a_handover_that_gets_lost() -> Iterator[None]:
    """The next claim does not name the standing claim as unanswered."""
    claim = Pump._claim

    async def forgetful(self: Pump, want: int, granted: dict[str, int]) -> Claimed:
        self._standing = None
        return await claim(self, want, granted)

    with patch.object(Pump, "_claim", forgetful):
        yield


@scenario_bug
def a_handover_that_comes_late() -> Iterator[None]:
    """A worker takes whatever is handed over."""
    take_over = Pump.take_over

    def trusting(self: Pump, handover: Handover) -> bool:
        attempt = handover.slice.attempt.partition(":")[0]
        self._standing = Standing(attempt, self._clock.monotonic_s(), handover.now_ms)
        return take_over(self, handover)

    with patch.object(Pump, "take_over", trusting):
        yield


@scenario_bug
def a_handover_to_a_worker_that_stops() -> Iterator[None]:
    """The worker leaves its standing claim behind."""
    with patch.object(Pump, "recall", nothing):
        yield


@scenario_bug
def a_handover_for_a_claim_that_is_over() -> Iterator[None]:
    """The worker ignores what it does not expect."""
    with patch.object(consumer, "give_back", nothing):
        yield


@scenario_bug
def a_follow_up_that_nobody_submits() -> Iterator[None]:
    """The script ends the record of a single, and nobody hears of the end."""
    concluded = changes.concluded

    def hasty(batch: Batch, end: PartEnd, now_ms: int) -> Batch | None:
        plain = concluded(replace(batch, then=None, otherwise=None), end, now_ms)
        return plain and replace(plain, then=batch.then, otherwise=batch.otherwise)

    with patch.object(changes, "concluded", hasty):
        yield


@scenario_bug
def an_item_that_is_gone_when_others_follow() -> Iterator[None]:
    """The part of a single drops its item when the item is done."""
    let_go = PartShare._let_go

    def careless(self: PartShare, place: tuple[int, int]) -> None:
        let_go(self, place)
        if self.is_single:
            self.chunks.clear()

    with patch.object(PartShare, "_let_go", careless):
        yield


@scenario_bug
def a_key_forgotten_within_its_window() -> Iterator[None]:
    """The record of a single without an id is kept for an hour, whatever its window."""
    with patch.object(Batch, "keep_single_ms", KEEP_SINGLE_MS):
        yield


# -- partitions that move -------------------------------------------------------------------------


@scenario_bug
def a_closed_place_that_still_answers() -> Iterator[None]:
    """No script looks at the tombstone: who has an old plan leaves items where nobody runs them."""
    with patch.object(QueuePartition, "check_open", lambda *_: None):
        yield


@bug
def a_partition_given_away_with_its_parts() -> Iterator[None]:
    async def close(self: MemoryMoves, partition: int, version: int, to: str) -> Remains:
        queue = self._queue.held(partition)
        queue.marks = replace(queue.marks, moved=max(version, queue.marks.moved), to=to)
        return Remains(queue.marks.moved)

    with patch.object(MemoryMoves, "close_place", close):
        yield


@bug
def a_place_adopted_before_all_is_copied() -> Iterator[None]:
    async def hasty(
        self: PartitionMover, source: Spot, move: PartitionMove
    ) -> AsyncIterator[MoveProgress]:
        await self._adopt(int(source), move)
        yield MoveProgress(int(source), move.to, "copying")

    with patch.object(PartitionMover, "_copy", hasty):
        yield


@scenario_bug
def a_tombstone_that_is_not_durable() -> Iterator[None]:
    """The old place forgets that it gave the partition away, and takes items from old plans."""

    async def trusting(self: PartitionMover, source: Spot, move: PartitionMove) -> bool:
        left = await self._call(self._stores.moves.close_place, source, move.version, "")
        return bool(left.closed == move.version)

    with patch.object(PartitionMover, "_is_closed", trusting):
        yield


@scenario_bug
def copies_that_are_not_read_back() -> Iterator[None]:
    async def trusting(*_: Any) -> bool:
        return True

    with patch.object(PartitionMover, "_is_durable", trusting):
        yield


@scenario_bug
def a_plan_followed_before_it_is_durable() -> Iterator[None]:
    """The home goes back to the plan before: accepted items are at a place that is given up."""

    async def trusting(_: PartitionRouter, stored: QueuePlan) -> QueuePlan:
        return stored

    with patch.object(PartitionRouter, "_durable", trusting):
        yield


@scenario_bug
def a_move_that_was_given_up_and_goes_on() -> Iterator[None]:
    """The mover does not look whether the plan still has its move."""

    async def stubborn(self: PartitionMover, partition: int, move: PartitionMove) -> None:
        plan = await self._call(self._stores.fleet.plan, self._first)
        await self._call(self._stores.fleet.change, plan.placed(partition, move.to))

    with patch.object(PartitionMover, "_adopt", stubborn):
        yield


@scenario_bug
def a_new_place_that_is_cleared_again() -> Iterator[None]:
    """A mover that comes late clears a place that another mover has filled."""

    async def prepare(self: MemoryMoves, partition: int, version: int) -> int:
        queue = self._queue.held(partition)
        queue.shares = {n: s for n, s in queue.shares.items() if s.state != "finished"}
        queue.marks = replace(queue.marks, prepared=version)
        return version

    with patch.object(MemoryMoves, "prepare", prepare):
        yield


# -- clocks that step ---------------------------------------------------------------------------


@bug
def time_that_runs_backwards() -> Iterator[None]:
    """The clock of the server is the time: when it is set back, all that waits waits longer."""
    passed = SlotTime.passed

    def followed(self: SlotTime, server_ms: float, evidence: SlotEvidence) -> SlotTime:
        if server_ms < self.server_ms:
            own_ms = self.own_ms + server_ms - self.server_ms
            return SlotTime(server_ms, own_ms, evidence.wall_ms)
        return passed(self, server_ms, evidence)

    with patch.object(SlotTime, "passed", followed):
        yield


@bug
def a_forward_step_that_is_believed_at_once() -> Iterator[None]:
    """All leases run out together, and lanes start what they have just started."""
    with patch.object(slot_time, "STEP_MS", float("inf")):
        yield


@bug
def a_gap_that_nobody_may_refuse() -> Iterator[None]:
    """Callers that know the slot's time may not object: a step ahead is believed at once."""
    passed = SlotTime.passed

    def deaf(self: SlotTime, server_ms: float, evidence: SlotEvidence) -> SlotTime:
        return passed(self, server_ms, replace(evidence, due_ms=0.0))

    with (
        patch.object(SlotTime, "passed", deaf),
        patch.object(slot_time, "BELIEVE_MS", 0.0),
    ):
        yield


# -- places at limits ------------------------------------------------------------------------------


@bug
def a_place_lost_with_a_dead_worker() -> Iterator[None]:
    with patch.object(LimitKey, "expire", lambda *_: None):
        yield


@scenario_bug
def a_place_given_twice_after_a_fail_over() -> Iterator[None]:
    """The new server grants at once, before the holders have told it what they run."""

    def believing(self: LimitHome, request: HoldRequest, server: str, _now_ms: float) -> None:
        self.server, self.lease_ms = server, request.lease_ms

    with patch.object(LimitHome, "meet", believing):
        yield


@scenario_bug
def a_grant_that_is_lost_with_its_home() -> Iterator[None]:
    """A home grants places before its server's replicas know of it."""
    with patch.object(LimitHome, "is_new", False):
        yield


@scenario_bug
def a_promoted_server_without_the_home() -> Iterator[None]:
    """It takes a limit that it does not know for one that nobody has used yet."""
    with patch("heatsink.stores.memory.queue.places.PROMOTED", "(never)"):
        yield


@scenario_bug
def a_release_that_wakes_nobody() -> Iterator[None]:
    deal = LimitKey.deal

    def silent(self: LimitKey, *rest: Any) -> Any:
        return deal(self, *rest)[0], []

    with patch.object(LimitKey, "deal", silent):
        yield


@scenario_bug
def a_place_taken_back_by_a_late_call() -> Iterator[None]:
    """A call from before gives back what its holder has been granted since."""
    hold = LimitKey.hold

    def forgetful(self: LimitKey, request: HoldRequest, *rest: Any) -> Any:
        if mine := self.holders.get(request.holder):
            mine.turn = 0
        return hold(self, request, *rest)

    with patch.object(LimitKey, "hold", forgetful):
        yield


@scenario_bug
def a_change_that_a_worker_does_not_hear_of() -> Iterator[None]:
    """The home grants what the caller says, and the caller may be cut off from the registry."""
    with patch.object(LimitHome, "follow", lambda _, rule: rule):
        yield


@scenario_bug
def a_waiting_item_that_holds_up_others() -> Iterator[None]:
    """A place that is offered to a holder that has died stays offered to it."""
    with patch("heatsink.stores.memory.queue.places.OFFER_MS", float("inf")):
        yield


@scenario_bug
def a_dead_process_that_costs_a_place_for_each_partition() -> Iterator[None]:
    """The home offers a place to each of its partitions in turn, for a tenth of a second each."""
    with patch("heatsink.stores.memory.queue.places.process_of", lambda holder: holder):
        yield


@scenario_bug
def a_copy_of_the_record_that_groups_do_not_share() -> Iterator[None]:
    """A part does not know which other part carries the copy."""
    keep = PartShare.keep

    def forgetful(self: PartShare, record: Batch | str, version: int) -> None:
        if not isinstance(record, str):
            keep(self, record, version)

    with patch.object(PartShare, "keep", forgetful):
        yield


@scenario_bug
def a_pump_that_ends_while_a_handler_runs() -> Iterator[None]:
    """Nobody renews the places of items whose lease was lost, and their handlers go on."""
    with patch.object(Pump, "is_empty", property(lambda self: not len(self._ledger))):
        yield


@scenario_bug
def items_without_places_that_take_up_the_room() -> Iterator[None]:
    """They wait for a place, and the items that have one wait to be claimed."""
    with patch.object(Lanes, "startable", Lanes.held):
        yield


@scenario_bug
def a_rate_that_begins_too_early() -> Iterator[None]:
    """Workers still start items without start times, and the new rate does not count these."""
    declared = homes.declared

    def at_once(limit: homes.RateState, *rest: Any) -> homes.RateState:
        return declared(replace(limit, free_ms=0.0), *rest)

    with patch.object(homes, "declared", at_once):
        yield


# -- remote workers --------------------------------------------------------------------------------


@scenario_bug
def a_place_kept_for_the_next_item() -> Iterator[None]:
    """The next item gets the place of one that runs elsewhere now."""
    ended = Lanes.ended

    def keeping(self: Lanes, places: Any, _is_elsewhere: bool = False) -> None:
        ended(self, places)

    with patch.object(Lanes, "ended", keeping):
        yield


@scenario_bug
def a_renewal_without_the_place() -> Iterator[None]:
    """Only the lease of the item is renewed."""
    hold = Desk._hold
    held: set[str] = set()

    async def once(self: Desk, lease: ItemLease, running: int) -> None:
        if not running or lease.attempt not in held:
            held.add(lease.attempt)
            await hold(self, lease, running)

    with patch.object(Desk, "_hold", once):
        yield


@scenario_bug
def a_lease_that_items_share() -> Iterator[None]:
    claim = QueuePartition.claim

    def together(self: QueuePartition, request: ClaimRequest, now_ms: float) -> Claimed:
        return claim(self, replace(request, each_max=0), now_ms)

    with patch.object(QueuePartition, "claim", together):
        yield


@scenario_bug
def a_dead_worker_whose_server_lives() -> Iterator[None]:
    """The server goes on renewing the leases of the items that it has handed over."""
    with patch.object(Ledger, "lose", lambda *_: 0):
        yield


@scenario_bug
def a_server_that_dies_with_items_elsewhere() -> Iterator[None]:
    """A server renews only what it has handed over itself."""
    make, renew = Desk._lease, Desk.renew
    makers: dict[str, Desk] = {}

    def noted(self: Desk, *rest: Any) -> ItemLease:
        lease = make(self, *rest)
        makers[lease.attempt] = self
        return lease

    async def own_only(self: Desk, tokens: list[str]) -> list[str]:
        own = [each for each in tokens if makers[lease_of(each, "").attempt] is self]
        return [*(await renew(self, own)), *({*tokens} - {*own})]

    with patch.object(Desk, "_lease", noted), patch.object(Desk, "renew", own_only):
        yield


@scenario_bug
def a_paused_tenant_that_the_next_owner_serves() -> Iterator[None]:
    """A claim does not say which pauses its worker knows."""
    claim = QueuePartition.claim

    def trusting(self: QueuePartition, request: ClaimRequest, now_ms: float) -> Claimed:
        return claim(self, replace(request, controls=self.controls), now_ms)

    with patch.object(QueuePartition, "claim", trusting):
        yield


@scenario_bug
def a_resume_that_a_late_process_undoes() -> Iterator[None]:
    """Whoever owns the partition is right, also if it knows less than the last owner."""
    with patch.object(Controls, "replaces", lambda self, other: self != other):
        yield


@scenario_bug
def a_resume_that_wakes_nobody() -> Iterator[None]:
    """What was held back waits for the next command on its batch."""

    def lazy(self: QueuePartition, controls: Controls, _now_ms: float) -> None:
        self.controls = controls

    with patch.object(QueuePartition, "control", lazy):
        yield


@scenario_bug
def an_item_that_waits_for_the_wrong_worker() -> Iterator[None]:
    """Who lacks an action keeps the partition: somebody else's turn may come."""
    with patch.object(Division, "lacks", lambda *_: False):
        yield


@scenario_bug
def a_worker_without_actions_that_takes_its_share() -> Iterator[None]:
    announced = vars(Division)["announced"].fget

    def silent(self: Division) -> list[str]:
        return [word for word in announced(self) if not word.startswith(PLAIN)]

    with patch.object(Division, "announced", property(silent)):
        yield
