"""`heatsink fsck`: a check of a store at rest or in use, and its repair."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from heatsink.client.chance import fresh_secret
from heatsink.client.urls import open_stores
from heatsink.clock import Clock
from heatsink.ids import scheme_named
from heatsink.spread.fsck import Findings, Rows, check, rebuild
from heatsink.spread.store import Row


class Outcome(msgspec.Struct, frozen=True):
    findings: Findings
    keys_mended: int | None

    def as_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        findings = self.findings
        lines = [f"{findings.rows:,} rows of {findings.keys:,} keys checked"]
        if self.keys_mended is not None:
            lines.insert(0, f"epochs of {self.keys_mended:,} keys rebuilt: reconnect all clients")
        if findings.clean:
            return "\n".join([*lines, "every row is where its layout puts it"])
        lines.append(f"{findings.misplaced:,} rows are in the wrong partition")
        lines.append(f"{findings.unread_shares:,} parts of counters are where nobody reads them")
        lines.append(f"{findings.unknown_epochs:,} rows were placed by epochs the registry lacks")
        lines.append(f"{findings.unlike_layouts:,} layouts are not the same for all")
        lines += [f"  {problem}" for problem in findings.problems]
        if findings.unknown_epochs or findings.unread_shares or findings.unlike_layouts:
            lines.append(
                "cure: heatsink fsck URL --rebuild makes the epochs anew from what is there"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class _Counted:
    """Rows that tell how far a scan is."""

    rows: Rows
    tick: Callable[[], object]

    async def scan(self) -> AsyncIterator[tuple[str, Row]]:
        async for found in self.rows.scan():
            self.tick()
            yield found


async def run_fsck(
    url: str, mend: bool, clock: Clock, tick: Callable[[], object] = lambda: None
) -> Outcome:
    """Open the store without taking part: nothing is published, nobody leads."""
    stores = open_stores(url, clock, must_exist=True)
    try:
        meta = (await stores.registry.meta()).meta
        scheme = scheme_named(meta.id_scheme)
        mended, log = None, _Counted(stores.log, tick)
        if mend:
            parts = (log, stores.counters, stores.registry)
            mended = await rebuild(*parts, scheme, uuid4().hex, fresh_secret())
        findings = await check(log, stores.counters, stores.registry, scheme)
        return Outcome(findings, mended)
    finally:
        await stores.close()
