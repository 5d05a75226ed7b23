"""Check and repair: verify every row's place, rebuild lost layouts, reset the closed time.

Every row carries the epoch that placed it. So a check can compare each row with the registry, and
a rebuild can restore the registry's epochs from the data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from heatsink.primitives.ids import TIME_MS_MAX, IdScheme, scheme_named
from heatsink.primitives.keys import key_of, partition_of, seeded_hash
from heatsink.primitives.subjects import Kind, Subject, subject_of
from heatsink.primitives.words import counted
from heatsink.registry.closed_time import FAR_AHEAD_MS
from heatsink.registry.decisions import (
    BUCKETS,
    Decision,
    Evidence,
    Meta,
    RegistryStore,
    Snapshot,
    for_key,
)
from heatsink.registry.layouts import COLD, EPOCHS_MAX, FIRST_EPOCH, Epoch, Layout

from .store import CounterStore, Row

EXAMPLES_MAX = 20
SPARE_MS = 1_000  # room for the epochs that a rebuild adds
RESET = "the closed time was reset"
RESET_HELD = f"{RESET}, and the key has later rows: its layout changes only after their time"


class StoredRows(Protocol):
    def scan(self) -> AsyncIterator[tuple[str, Row]]:
        """Iterate over all rows of all partitions, including tombstones, in any order."""


class RepairStore(RegistryStore, Protocol):
    async def restore(self, meta: Meta, snapshot: Snapshot) -> None:
        """Replace the whole registry, in one transaction, and start an empty log."""

    def layouts(self) -> AsyncIterator[tuple[str, Layout]]:
        """Iterate over the layouts of all keys, from the copies that readers of a key use.

        Each layout should equal the key's layout in the snapshot.
        """


class Findings(msgspec.Struct):
    """The result of a check. `problems` describes the first 20 problems in words."""

    rows: int = 0
    keys: int = 0
    shares: int = 0
    misplaced: int = 0
    unread_shares: int = 0
    unknown_epochs: int = 0
    unlike_layouts: int = 0
    problems: list[str] = []

    @property
    def clean(self) -> bool:
        lost = self.unknown_epochs or self.unread_shares or self.unlike_layouts
        return not (self.misplaced or lost)

    def note(self, problem: str) -> None:
        if len(self.problems) < EXAMPLES_MAX:
            self.problems.append(problem)


async def check(
    log: StoredRows, counters: CounterStore, registry: RepairStore, scheme: IdScheme
) -> Findings:
    """Verify that every row and every counter share is in the bucket where readers look for it.

    Other processes may write rows during the check.
    """
    findings = await _check_rows(log, registry, scheme)
    async for partition in counters.shares():
        findings.shares += 1
        key, _ = key_of(partition)
        if partition not in (await registry.layout(key)).partitions(key):
            findings.unread_shares += 1
            findings.note(f"{partition}: holds part of a counter, but no reader looks there")
    await _check_layouts(findings, registry)
    return findings


async def _check_layouts(findings: Findings, registry: RepairStore) -> None:
    """Verify that readers of a key find the same layout as processes that start.

    While a layout changes, the two may differ for a moment. So layouts that differ are read a
    second time.
    """
    found = {key: layout async for key, layout in registry.layouts()}
    listed = (await registry.snapshot()).layouts
    suspects = [k for k in found | listed if found.get(k, COLD) != listed.get(k, COLD)]
    before = {key: await registry.layout(key) for key in suspects}
    listed = (await registry.snapshot()).layouts if suspects else {}
    for key in suspects:
        if listed.get(key, COLD) != before[key] == await registry.layout(key):
            findings.unlike_layouts += 1
            findings.note(f"{key}: processes that start find another layout than the key's readers")


async def _check_rows(log: StoredRows, registry: RegistryStore, scheme: IdScheme) -> Findings:
    hash_64 = seeded_hash((await registry.meta()).meta.seed)
    findings = Findings()
    keys: dict[str, Layout] = {}
    async for partition, row in log.scan():
        key, _ = key_of(partition)
        if key not in keys:
            keys[key] = await registry.layout(key)
        findings.rows += 1
        epoch = keys[key].epoch_at(scheme.time_ms(row.raw))
        if epoch != Epoch(row.epoch_ms, row.buckets):
            keys[key] = await registry.layout(key)
            epoch = keys[key].epoch_at(scheme.time_ms(row.raw))
        _judge(findings, row, epoch, partition, partition_of(key, epoch.bucket(hash_64(row.raw))))
    findings.keys = len(keys)
    return findings


def _judge(findings: Findings, row: Row, epoch: Epoch, partition: str, expected: str) -> None:
    if epoch != Epoch(row.epoch_ms, row.buckets):
        findings.unknown_epochs += 1
        stamp = f"an epoch of {counted(row.buckets, 'bucket')} from {row.epoch_ms}"
        findings.note(f"{partition} row {row.raw.hex()}: placed by {stamp}, not in the registry")
    elif partition != expected:
        findings.misplaced += 1
        findings.note(f"{partition} row {row.raw.hex()}: belongs in {expected}")


async def rebuild(
    log: StoredRows,
    counters: CounterStore,
    registry: RepairStore,
    scheme: IdScheme,
    incarnation: str,
    secret: bytes,
) -> int:
    """Restore epochs that the registry has lost, from rows and counter shares that they placed.

    Returns the number of changed keys. Some stores keep two copies of a layout; an epoch that only
    one copy has is kept. The registry gets a new incarnation and a new secret for its news, so
    running processes must reconnect.
    """
    meta = (await registry.meta()).meta
    snapshot = await registry.snapshot()
    proven, newest_ms = await _proven_epochs(log, scheme)
    closed_ms = max(meta.closed_ms, newest_ms + 1)
    found = {key: layout async for key, layout in registry.layouts()}
    layouts = dict(snapshot.layouts)
    for key in {**found, **proven}:
        known = {*layouts.get(key, COLD).pairs, *found.get(key, COLD).pairs}
        layouts[key] = Layout.of(sorted(known | proven.get(key, set())))
    await _widen_for_shares(layouts, counters, closed_ms)
    changed = {
        key: layout
        for key, layout in layouts.items()
        if not layout == snapshot.layouts.get(key, COLD) == found.get(key, COLD)
    }
    reasons = {**snapshot.reasons, **{key: _mended(key, changed[key]) for key in changed}}
    kept = {key: layout for key, layout in layouts.items() if key in reasons}
    version, closed_ms = meta.version + 1, closed_ms + SPARE_MS
    meta = msgspec.structs.replace(
        meta, closed_ms=closed_ms, version=version, incarnation=incarnation, secret=secret
    )
    await registry.restore(meta, Snapshot(version, kept, snapshot.pins, reasons))
    return len(changed)


async def _widen_for_shares(
    layouts: dict[str, Layout], counters: CounterStore, closed_ms: int
) -> None:
    """Add an epoch for each counter share in a bucket of no epoch, so that the share is read.

    A share does not show when it was written. So the time of the added epoch, 1 ms long, is
    arbitrary.
    """
    async for partition in counters.shares():
        key, bucket = key_of(partition)
        layout = layouts.get(key, COLD)
        if bucket is not None and bucket >= layout.max_buckets:
            start_ms = max(closed_ms, layout.epochs[-1].start_ms + 1)
            widened = layout.then(start_ms, bucket + 1)
            layouts[key] = widened.then(start_ms + 1, layout.buckets)


def _mended(key: str, layout: Layout) -> Decision:
    return for_key(key, BUCKETS, layout.buckets, "rebuilt from the rows")


async def _proven_epochs(
    log: StoredRows, scheme: IdScheme
) -> tuple[dict[str, set[tuple[int, int]]], int]:
    epochs: dict[str, set[tuple[int, int]]] = {}
    newest_ms = 0
    async for partition, row in log.scan():
        newest_ms = max(newest_ms, scheme.time_ms(row.raw))
        if row.epoch_ms > FIRST_EPOCH.start_ms:
            stamp = (row.epoch_ms, row.buckets)
            epochs.setdefault(key_of(partition)[0], set()).add(stamp)
    return epochs, newest_ms


class SoleStore(Protocol):
    """A store that no other process has open.

    In its methods, a *trace* is anything that an epoch placed: a row, a token or a running total.
    """

    def traces(self, scheme: IdScheme) -> Iterator[tuple[str, int]]:
        """Iterate over pairs: a partition, and the time of its newest trace."""

    def ends(self, from_ms: int, below_ms: int, scheme: IdScheme) -> tuple[int, int] | None:
        """Return the times of the oldest and the newest trace in a span.

        The span begins at `from_ms` and ends before `below_ms`. Returns None if there is no trace
        in the span.
        """

    def seals(self) -> dict[str, int]:
        """For each partition of a counter, the later of its `sealed_ms` and `folded_ms`.

        Both are explained at `Total`.
        """

    async def reset(self, meta: Meta, snapshot: Snapshot, opened: list[str]) -> None:
        """Replace the registry, and let the counter shares `opened` accept adds again.

        Both happen in one transaction.
        """


class Reset(msgspec.Struct, frozen=True):
    """The result of a reset of the closed time.

    `held_keys` is the number of keys that have traces (rows, tokens, running totals) from after the
    new closed time. The newest of all these traces is before `held_until_ms`. `sealed` is the
    number of counter shares that refuse adds until `held_until_ms`. These shares have deleted
    tokens from after the new closed time, so they cannot tell which adds are new.
    """

    closed_before_ms: int
    closed_ms: int
    held_keys: int
    held_until_ms: int
    sealed: int


class OtherSubjects(msgspec.Struct, frozen=True):
    """Kinds of subjects whose layouts also decide on rows that are stored under other names.

    A reset must know the newest of these rows. A layout of a kind in `unseen` decides on rows of
    other tables, which the reset cannot see. A pair (first, second) in `follow` are two kinds: the
    layout of a subject of the first kind also decides on the rows of the subject of the second kind
    with the same name. With `(Kind.AUTHOR, Kind.POSTS)`, the layout of author ada decides on ada's
    posts.
    """

    unseen: tuple[Kind, ...] = ()
    follow: tuple[tuple[Kind, Kind], ...] = ()


async def reset_closed_time(
    alone: SoleStore,
    registry: RepairStore,
    counters: CounterStore,
    evidence: Evidence,
    elsewhere: OtherSubjects,
    incarnation: str,
) -> Reset:
    """Set the closed time back to the time of the evidence, after a wrong clock moved it far ahead.

    The store must pass `check`. Lowering the closed time is safe because no other process has the
    store open. The registry gets a new incarnation, so a process that still knows the old closed
    time is refused when it reconnects.

    A *trace* is a row, a token or a running total. Traces from after the new closed time must stay
    where (key, id) places them. So each key with such a trace gets a **floor**: an epoch that
    starts after the key's newest trace, with the same number of buckets. Epochs are appended in
    order, so no epoch can start before the floor. An epoch that starts after the new closed time
    and after all traces of its key placed nothing. Such epochs are dropped, so that a key without
    traces can get a new layout immediately.
    """
    meta, snapshot = (await registry.meta()).meta, await registry.snapshot()
    scheme, now_ms = scheme_named(meta.id_scheme), evidence.time_ms
    near = alone.ends(now_ms, now_ms + FAR_AHEAD_MS, scheme)  # from clocks a little ahead
    closed_ms = 1 + (near[1] if near else now_ms)
    newest = _newest_traces(alone.traces(scheme), elsewhere)
    for key in snapshot.layouts:
        if subject_of(key).kind in elsewhere.unseen:
            _raise(newest, key, meta.closed_ms - 1)
    opened, sealed = _sort_seals(alone, snapshot, closed_ms, scheme)
    for partition, until_ms in sealed.items():
        _raise(newest, key_of(partition)[0], until_ms - 1)
    async for partition in counters.shares():
        key, bucket = key_of(partition)
        before = snapshot.layouts.get(key, COLD)
        after = reset_layout(before, newest.get(key, 0), closed_ms)
        if bucket is not None and bucket >= after.max_buckets:
            _raise(newest, key, before.epochs[-1].start_ms)
    held = {key: time_ms for key, time_ms in newest.items() if time_ms >= closed_ms}
    version = meta.version + 1
    founded = msgspec.structs.replace(
        meta,
        closed_ms=closed_ms,
        version=version,
        term=meta.term + 1,
        beat=0,
        leader="",
        incarnation=incarnation,
        evidence=evidence,
    )
    await alone.reset(founded, _reset_snapshot(snapshot, version, held, closed_ms), opened)
    until_ms = max(held.values(), default=closed_ms - 1) + 1
    return Reset(meta.closed_ms, closed_ms, len(held), until_ms, len(sealed))


def reset_layout(layout: Layout, newest_ms: int, closed_ms: int) -> Layout:
    """Return the layout of a key after the closed time was lowered to `closed_ms`.

    Rows of the key up to `newest_ms`, the time of its newest row, stay in their buckets.
    """
    needed_ms = max(newest_ms, closed_ms - 1)
    kept = [pair for pair in layout.pairs if pair[0] <= needed_ms]
    if newest_ms >= closed_ms:
        is_last = len(kept) + 2 >= EPOCHS_MAX  # with the first one and this
        kept.append((newest_ms + 1, layout.max_buckets if is_last else layout.buckets))
    return Layout.of(kept)


def _reset_snapshot(
    snapshot: Snapshot, version: int, held: Mapping[str, int], closed_ms: int
) -> Snapshot:
    layouts, reasons = dict(snapshot.layouts), dict(snapshot.reasons)
    for key in {**snapshot.layouts, **held}:
        before = snapshot.layouts.get(key, COLD)
        layouts[key] = reset_layout(before, held.get(key, 0), closed_ms)
        if layouts[key] != before:
            reason = RESET_HELD if key in held else RESET
            reasons[key] = for_key(key, BUCKETS, layouts[key].buckets, reason)
        if layouts[key] == COLD:
            del layouts[key]
            reasons.pop(key, None)
    return Snapshot(version, layouts, snapshot.pins, reasons)


def _newest_traces(traces: Iterable[tuple[str, int]], elsewhere: OtherSubjects) -> dict[str, int]:
    newest: dict[str, int] = {}
    for partition, time_ms in traces:
        key, _ = key_of(partition)
        _raise(newest, key, time_ms)
        subject = subject_of(key)
        for follower, followed in elsewhere.follow:
            if subject.kind is followed:
                _raise(newest, Subject(follower, subject.name).text, time_ms)
    return newest


def _sort_seals(
    alone: SoleStore, snapshot: Snapshot, closed_ms: int, scheme: IdScheme
) -> tuple[list[str], dict[str, int]]:
    """Decide for each counter share that is sealed past the new closed time whether to unseal it.

    Returns the shares to unseal and, for each other share, the time at which its seal ends. A share
    has deleted its tokens from before its seal's end. But if no trace and no epoch lies between the
    closed time and the seal's end, the clock jumped over that time. Then the share has deleted no
    token of that time, and it can be unsealed.
    """
    ends = alone.ends(closed_ms, TIME_MS_MAX, scheme)
    starts = [e.start_ms for layout in snapshot.layouts.values() for e in layout.later]
    lived = [time_ms for time_ms in starts if time_ms >= closed_ms]
    lived_ms = min([*lived, *(ends or ())], default=TIME_MS_MAX)
    ahead = {part: until_ms for part, until_ms in alone.seals().items() if until_ms > closed_ms}
    opened = [part for part, until_ms in ahead.items() if until_ms <= lived_ms]
    return opened, {part: until_ms for part, until_ms in ahead.items() if until_ms > lived_ms}


def _raise(times: dict[str, int], key: str, time_ms: int) -> None:
    times[key] = max(times.get(key, 0), time_ms)
