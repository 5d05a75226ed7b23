"""Is every row where its layout puts it? And if the layouts are lost: what do the rows say?

Every row carries the epoch that placed it, so the registry's epochs can be made anew from the data.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from heatsink.hashing import seeded_hash
from heatsink.ids import IdScheme
from heatsink.keys import key_of, partition_of
from heatsink.registry.decision import BUCKETS, Decision, Meta, Snapshot, for_key
from heatsink.registry.layout import COLD, FIRST_EPOCH, Epoch, Layout
from heatsink.registry.store import RegistryStore

from .store import LogStore, Row

EXAMPLES_MAX = 20


class RepairStore(RegistryStore, Protocol):
    async def restore(self, meta: Meta, snapshot: Snapshot) -> None:
        """Replace the whole registry, in one transaction. Its log starts anew."""


class Findings(msgspec.Struct):
    """What a check found. `problems` names a few of the rows that are wrong."""

    rows: int = 0
    keys: int = 0
    misplaced: int = 0
    unknown_epochs: int = 0
    problems: list[str] = []

    @property
    def clean(self) -> bool:
        return not (self.misplaced or self.unknown_epochs)

    def note(self, problem: str) -> None:
        if len(self.problems) < EXAMPLES_MAX:
            self.problems.append(problem)


async def check(log: LogStore, registry: RegistryStore, scheme: IdScheme) -> Findings:
    """Verify the place of every row. Rows written meanwhile are judged by today's layouts too."""
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


async def rebuild(log: LogStore, registry: RepairStore, scheme: IdScheme, incarnation: str) -> int:
    """Add the epochs that rows prove and the registry lacks. Returns the number of keys mended.

    The registry gets another incarnation: processes that run have to reconnect.
    """
    meta = (await registry.meta()).meta
    snapshot = await registry.snapshot()
    proven, newest_ms = await _proven_epochs(log, scheme)
    layouts = dict(snapshot.layouts)
    reasons = dict(snapshot.reasons)
    for key, epochs in proven.items():
        mended = Layout(sorted({*layouts.get(key, COLD).later, *epochs}))
        if mended != layouts.get(key, COLD):
            layouts[key] = mended
            reasons[key] = _mended(key, mended)
    changed = sum(layouts[key] != snapshot.layouts.get(key) for key in layouts)
    closed_ms = max(meta.closed_ms, newest_ms + 1)
    version = meta.version + 1
    meta = msgspec.structs.replace(
        meta, closed_ms=closed_ms, version=version, incarnation=incarnation
    )
    await registry.restore(meta, Snapshot(version, layouts, snapshot.pins, reasons))
    return changed


def _mended(key: str, layout: Layout) -> Decision:
    return for_key(key, BUCKETS, layout.buckets, "rebuilt from the rows")


async def _proven_epochs(log: LogStore, scheme: IdScheme) -> tuple[dict[str, set[Epoch]], int]:
    epochs: dict[str, set[Epoch]] = {}
    newest_ms = 0
    async for partition, row in log.scan():
        newest_ms = max(newest_ms, scheme.time_ms(row.raw))
        epoch = Epoch(row.epoch_ms, row.buckets)
        if epoch != FIRST_EPOCH:
            epochs.setdefault(key_of(partition)[0], set()).add(epoch)
    return epochs, newest_ms
