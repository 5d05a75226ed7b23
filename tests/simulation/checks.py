"""The invariants of the design, stated over histories, rows and the registry's log."""

from __future__ import annotations

from collections import Counter

from heatsink.primitives.ids import Uuid7
from heatsink.primitives.keys import key_of, partition_of, seeded_hash
from heatsink.registry.decisions import LogEntry, Meta, Reading
from heatsink.registry.layouts import COLD, Layout
from heatsink.spread.log import Entry, Receipt
from heatsink.stores.stores import Stores

from .history import Append, History, Outcome, Violation

AHEAD_MS_MAX = 12_000


def check_read(
    must_see: set[bytes], must_not_see: set[bytes], still_wanted: set[bytes], entries: list[Entry]
) -> None:
    """Invariants 1 and 3: complete, each once, in order. `still_wanted` were not deleted since."""
    ids = [entry.id for entry in entries]
    if ids != sorted(ids, reverse=True):
        raise Violation("a read is out of order")
    bodies = Counter(entry.body for entry in entries)
    twice = [body for body, count in bodies.items() if count > 1]
    if twice:
        raise Violation(f"{twice[0]!r} was returned {bodies[twice[0]]} times")
    lost = (must_see & still_wanted) - bodies.keys()
    if lost:
        raise Violation(f"{len(lost)} acknowledged appends are missing, {min(lost)!r} among them")
    risen = must_not_see & bodies.keys()
    if risen:
        raise Violation(f"{min(risen)!r} came back from the dead")


def check_receipt(append: Append, receipt: Receipt) -> None:
    """An append under an id of its own is new, however often its attempts met each other."""
    if append.id is None and not receipt.is_new:
        raise Violation(f"{append.body!r} was appended without an id and is told to be old")


def check_get(append: Append, entry: Entry | None) -> None:
    """Invariant 2: an acknowledged id is found, with its body."""
    if append.delete_asked:
        return
    if entry is None or entry.body != append.body:
        raise Violation(f"get does not find {append.body!r}")


def check_value(low: int, value: int, high: int) -> None:
    """Invariant 4: every acknowledged add counts once, and nothing that was not asked for."""
    if not low <= value <= high:
        raise Violation(f"a counter says {value}, not between {low} and {high}")


async def check_rows(stores: Stores, history: History) -> None:
    """Invariant 2 on the store itself: one row per append, where its layout puts it."""
    seed = (await stores.registry.meta()).meta.seed
    hash_64 = seeded_hash(seed)
    places: dict[bytes, str] = {}
    async for partition, row in stores.log.scan():
        key, _ = key_of(partition)
        layout = await stores.registry.layout(key)
        epoch = layout.epoch_at(Uuid7().time_ms(row.raw))
        if partition != partition_of(key, epoch.bucket(hash_64(row.raw))):
            raise Violation(f"a row of {key} is in {partition}, where nobody looks for it")
        if row.deleted:
            continue
        if row.body in places:
            raise Violation(f"{row.body!r} is stored twice: {places[row.body]} and {partition}")
        places[row.body] = partition
    kept = {a.body for a in history.acknowledged() if not a.delete_asked}
    if kept - places.keys():
        raise Violation(f"{min(kept - places.keys())!r} was acknowledged and is not stored")


async def check_registry(stores: Stores) -> None:
    """Invariants 2 and 3 on what processes read when they start or fall behind.

    They find the layouts that readers of the keys find, and a log without a gap up to META.
    """
    registry = stores.registry
    snapshot = await registry.snapshot()
    for key, layout in snapshot.layouts.items():
        if layout != await registry.layout(key):
            raise Violation(f"a process that starts finds {layout} for {key}, its readers another")
    versions = [entry.version for entry in await registry.log(0, snapshot.version)]
    if versions != list(range(snapshot.version - len(versions) + 1, snapshot.version + 1)):
        raise Violation(f"the log has a gap below version {snapshot.version}: {versions}")
    if snapshot.version and not versions:
        raise Violation(f"version {snapshot.version} is not in the log")


class RegistryAudit:
    """Invariant 5: watches the store's registry from the inside, at every change."""

    def __init__(self) -> None:
        self.ahead_ms_max: float = AHEAD_MS_MAX
        self._closed_ms = 0
        self._version = 0
        self._term = 0
        self._layouts: dict[str, Layout] = {}

    def see(self, reading: Reading) -> None:
        meta: Meta = reading.meta
        if meta.closed_ms < self._closed_ms:
            raise Violation("the closed time went back")
        if meta.version < self._version or meta.term < self._term:
            raise Violation("the registry went back")
        if meta.closed_ms > reading.store_ms + self.ahead_ms_max:
            raise Violation("the closed time is far ahead: layouts cannot change for long")
        self._closed_ms, self._version, self._term = meta.closed_ms, meta.version, meta.term

    def see_append(self, entry: LogEntry, term: int | None, before: Meta) -> None:
        if entry.version != before.version + 1:
            raise Violation(f"version {entry.version} was committed after {before.version}")
        for decision in entry.bucket_decisions:
            if term != before.term:
                raise Violation("a deposed leader changed a layout")
            if entry.start_ms < before.closed_ms:
                raise Violation("an epoch starts before the closed time")
            layout = self._layouts.get(decision.key, COLD)
            self._layouts[decision.key] = layout.then(entry.start_ms, decision.value or 1)


def check_all_answered(history: History) -> None:
    """Invariant 10: nothing hangs and nothing is dropped without a word."""
    pending = [a for a in history.appends.values() if a.outcome is Outcome.PENDING]
    if pending:
        raise Violation(f"{len(pending)} appends never got an answer")
