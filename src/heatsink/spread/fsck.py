"""Is every row where its layout puts it? And if the layouts are lost: what do the rows say?

Every row carries the epoch that placed it, so the registry's epochs can be made anew from the data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from heatsink.hashing import seeded_hash
from heatsink.ids import IdScheme
from heatsink.keys import key_of, partition_of
from heatsink.registry.decision import BUCKETS, Decision, Meta, Snapshot, for_key
from heatsink.registry.layout import COLD, FIRST_EPOCH, Epoch, Layout
from heatsink.registry.store import RegistryStore

from .store import CounterStore, Row

EXAMPLES_MAX = 20
SPARE_MS = 1_000  # room for the epochs that a rebuild adds


class Rows(Protocol):
    def scan(self) -> AsyncIterator[tuple[str, Row]]:
        """All rows of all partitions, deleted ones too, in any order."""


class RepairStore(RegistryStore, Protocol):
    async def restore(self, meta: Meta, snapshot: Snapshot) -> None:
        """Replace the whole registry, in one transaction. Its log starts anew."""

    def layouts(self) -> AsyncIterator[tuple[str, Layout]]:
        """Every layout as reads of its key find it: in a sound store, those of the snapshot."""


class Findings(msgspec.Struct):
    """What a check found. `problems` names a few of the rows that are wrong."""

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
    log: Rows, counters: CounterStore, registry: RepairStore, scheme: IdScheme
) -> Findings:
    """Verify the place of every row and counter share. What is written meanwhile is judged too."""
    findings = await _check_rows(log, registry, scheme)
    async for partition in counters.shares():
        findings.shares += 1
        key, _ = key_of(partition)
        if partition not in (await registry.layout(key)).partitions(key):
            findings.unread_shares += 1
            findings.note(f"{partition}: holds a part of a counter that nobody reads")
    await _check_layouts(findings, registry)
    return findings


async def _check_layouts(findings: Findings, registry: RepairStore) -> None:
    """Who reads a key and who starts must find the same layout; one just changing may differ."""
    found = {key: layout async for key, layout in registry.layouts()}
    listed = (await registry.snapshot()).layouts
    suspects = [k for k in found | listed if found.get(k, COLD) != listed.get(k, COLD)]
    before = {key: await registry.layout(key) for key in suspects}
    listed = (await registry.snapshot()).layouts if suspects else {}
    for key in suspects:
        if listed.get(key, COLD) != before[key] == await registry.layout(key):
            findings.unlike_layouts += 1
            findings.note(f"{key}: processes that start find another layout than readers of it")


async def _check_rows(log: Rows, registry: RegistryStore, scheme: IdScheme) -> Findings:
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
        stamp = f"{row.buckets} buckets since {row.epoch_ms}"
        findings.note(f"{partition} {row.raw.hex()}: placed by {stamp}, which the registry lacks")
    elif partition != expected:
        findings.misplaced += 1
        findings.note(f"{partition} {row.raw.hex()}: belongs into {expected}")


async def rebuild(
    log: Rows,
    counters: CounterStore,
    registry: RepairStore,
    scheme: IdScheme,
    incarnation: str,
    secret: bytes,
) -> int:
    """Add the epochs that rows and shares prove and the registry lacks. Returns the keys mended.

    Where a layout is kept twice and a half was lost, what either half has is kept.

    The registry gets another incarnation, and another secret for its news: processes that run
    have to reconnect.
    """
    meta = (await registry.meta()).meta
    snapshot = await registry.snapshot()
    proven, newest_ms = await _proven_epochs(log, scheme)
    closed_ms = max(meta.closed_ms, newest_ms + 1)
    found = {key: layout async for key, layout in registry.layouts()}
    layouts = dict(snapshot.layouts)
    for key in {**found, **proven}:
        known = {*layouts.get(key, COLD).later, *found.get(key, COLD).later}
        layouts[key] = Layout(sorted(known | proven.get(key, set())))
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
    """A share says how wide its counter once was, not when: an epoch of a moment makes it read."""
    async for partition in counters.shares():
        key, bucket = key_of(partition)
        layout = layouts.get(key, COLD)
        if bucket is not None and bucket >= layout.max_buckets:
            start_ms = max(closed_ms, layout.epochs[-1].start_ms + 1)
            widened = layout.then(start_ms, bucket + 1)
            layouts[key] = widened.then(start_ms + 1, layout.buckets)


def _mended(key: str, layout: Layout) -> Decision:
    return for_key(key, BUCKETS, layout.buckets, "rebuilt from the rows")


async def _proven_epochs(log: Rows, scheme: IdScheme) -> tuple[dict[str, set[Epoch]], int]:
    epochs: dict[str, set[Epoch]] = {}
    newest_ms = 0
    async for partition, row in log.scan():
        newest_ms = max(newest_ms, scheme.time_ms(row.raw))
        epoch = Epoch(row.epoch_ms, row.buckets)
        if epoch != FIRST_EPOCH:
            epochs.setdefault(key_of(partition)[0], set()).add(epoch)
    return epochs, newest_ms
