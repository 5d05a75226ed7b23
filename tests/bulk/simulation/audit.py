"""An observer inside the reference store: every result that it records is checked at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from heatsink.bulk import Limit
from heatsink.bulk.batch import unpacked
from heatsink.bulk.store import Outcome, Slice
from heatsink.stores.memory.queue.parts import PartShare, Place
from heatsink.stores.memory.queue.queue import ClaimLease, QueuePartition
from tests.bulk.process import Process

from .history import History, Violation

Where = tuple[str, Place]  # part, place in it


class Audit:
    """Who holds which item, and what became of it."""

    def __init__(self, history: History, lease_s: float, true_s: Callable[[], float]) -> None:
        self.history = history
        self._lease_s = lease_s
        self._true_s = true_s
        self._kept_s: dict[str, float] = {}
        self.violation: Violation | None = None
        self.done: dict[tuple[str, int], str] = {}  # (part, index): batch
        self.failed: dict[tuple[str, int, int], str] = {}  # (part, index, lap): batch
        self.running = Running(self)
        self._holder: dict[Where, str] = {}
        self._names: dict[str, str] = {}
        self._settling = ""

    def forget(self, parts: set[str]) -> None:
        """The server of these parts goes back in time: what it does again is seen again."""
        self.done = {at: batch for at, batch in self.done.items() if at[0] not in parts}
        self.failed = {at: batch for at, batch in self.failed.items() if at[0] not in parts}
        self._holder = {at: name for at, name in self._holder.items() if at[0] not in parts}
        self._names = {name: part for name, part in self._names.items() if part not in parts}

    def complain(self, text: str) -> None:
        self.violation = self.violation or Violation(text)

    # -- what the store does ---------------------------------------------------------------

    def handed_out(self, claimed: Slice, lease: ClaimLease) -> None:
        if claimed.attempt in self._names:
            self.complain(f"two leases have the name {claimed.attempt}")
        self._names[claimed.attempt] = claimed.part
        self.kept([claimed.attempt])
        for offset in range(claimed.count):
            where = claimed.part, (lease.chunk, claimed.start + offset)
            if where in self._holder:
                self.complain(f"item {where} is handed out to two attempts at once")
            self._holder[where] = claimed.attempt

    def kept(self, attempts: Sequence[str]) -> None:
        self._kept_s |= dict.fromkeys(attempts, self._true_s())

    def lost(self, attempt: str, lease: ClaimLease) -> None:
        """A lease runs out by true time, whatever the server's clock says."""
        age_s = self._true_s() - self._kept_s[attempt]
        if age_s < self._lease_s - 0.01:
            self.complain(f"{attempt} lost its lease {age_s:.3f} s after it was kept")
        for offset, mark in enumerate(lease.marks):
            if mark == ".":
                self._holder.pop((lease.share.part.id, (lease.chunk, lease.start + offset)), None)

    def settles(self, share: PartShare, place: Place) -> None:
        holder = self._holder.pop((share.part.id, place), None)
        if holder != self._settling:
            self.complain(f"a fenced-out attempt changed item {place} of {share.part.batch}")

    def finished(self, share: PartShare, place: Place) -> None:
        if place[0] not in share.chunks:
            return  # damaged: which item it was cannot be told
        batch, index = item_at(share, place)
        if not self.history.successes[batch, index]:
            self.complain(f"item {index} of {batch} is done and never ran")
        self._check_first(share, batch, index)
        self.done[share.part.id, index] = batch

    def gave_up(self, share: PartShare, place: Place) -> None:
        if place[0] not in share.chunks:
            return  # damaged: which item it was cannot be told
        batch, index = item_at(share, place)
        self._check_first(share, batch, index)
        self.failed[share.part.id, index, share.lap] = batch

    def _check_first(self, share: PartShare, batch: str, index: int) -> None:
        part = share.part.id
        if (part, index) in self.done or (part, index, share.lap) in self.failed:
            self.complain(f"item {index} of {batch} has two results")

    # -- how it listens --------------------------------------------------------------------

    @contextmanager
    def listening(self) -> Iterator[None]:
        with ExitStack() as stack:
            for patched in self._patches():
                stack.enter_context(patched)
            yield

    def _patches(self) -> list[Any]:
        take, lose, settle = QueuePartition._take, QueuePartition._lose, QueuePartition._settle
        settle_all = QueuePartition.settle
        finish, fail, delay = PartShare.finish, PartShare.fail, PartShare.delay
        audit = self

        def audited_take(queue: QueuePartition, *arguments: Any) -> int:
            slices = arguments[3]
            before = len(slices)
            taken = take(queue, *arguments)
            for claimed in slices[before:]:
                audit.handed_out(claimed, queue.leases[claimed.attempt])
            return taken

        def audited_lose(
            queue: QueuePartition, attempt: str, lease: ClaimLease, now_ms: float
        ) -> None:
            audit.lost(attempt, lease)
            lose(queue, attempt, lease, now_ms)

        def audited_settle(queue: QueuePartition, outcome: Outcome, now_ms: float) -> bool:
            audit._settling = outcome.attempt
            try:
                return settle(queue, outcome, now_ms)
            finally:
                audit._settling = ""

        def audited_settle_all(
            queue: QueuePartition, outcomes: Any, beats: Sequence[str], *rest: Any
        ) -> list[str]:
            audit.kept(beats)
            return settle_all(queue, outcomes, beats, *rest)

        def audited_finish(share: PartShare, place: Place, result: bytes | None = None) -> None:
            audit.settles(share, place)
            audit.finished(share, place)
            finish(share, place, result)

        def audited_fail(share: PartShare, place: Place, reason: str) -> None:
            if audit._settling:
                audit.settles(share, place)
            audit.gave_up(share, place)
            fail(share, place, reason)

        def audited_delay(share: PartShare, place: Place, due_ms: float, counted: bool) -> None:
            audit.settles(share, place)
            delay(share, place, due_ms, counted)

        return [
            patch.object(QueuePartition, "_take", audited_take),
            patch.object(QueuePartition, "_lose", audited_lose),
            patch.object(QueuePartition, "_settle", audited_settle),
            patch.object(QueuePartition, "settle", audited_settle_all),
            patch.object(PartShare, "finish", audited_finish),
            patch.object(PartShare, "fail", audited_fail),
            patch.object(PartShare, "delay", audited_delay),
        ]


class Running:
    """The items that run and have places at limits, by limit and key.

    A process that stands still for longer than a lease may overlap with others: it cannot know that
    its lease has ended. Such overlaps are counted, and are no violation.
    """

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._runs: dict[int, tuple[Process, list[tuple[Limit, str]]]] = {}
        self._number = 0

    def enter(self, process: Process, keys: list[tuple[Limit, str]]) -> int:
        self._number += 1
        self._runs[self._number] = process, keys
        for limit, key in keys:
            users = [p for p, used in self._runs.values() if (limit, key) in used and not p.is_dead]
            if len(users) <= (limit.running or 0):
                continue
            if any(user.has_stalled for user in users):
                self._audit.history.events["overlaps of stalled processes"] += 1
            else:
                self._audit.complain(f"{len(users)} items run at limit {limit.name!r} ({limit})")
        self._audit.history.events["placed"] += 1
        return self._number

    def leave(self, run: int) -> None:
        self._runs.pop(run, None)


def item_at(share: PartShare, place: Place) -> tuple[str, int]:
    indexes, _ = unpacked(share.chunks[place[0]].body)
    return share.part.batch, indexes[place[1]]
