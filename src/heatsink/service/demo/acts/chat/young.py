"""The same kind of rush on a young table, whose store adapts: on virtual time, when all is over."""

from __future__ import annotations

import msgspec

from heatsink.clock import Clock
from heatsink.lab.partitions import CASES, LAST_S, PARTITIONS, Second, seconds
from heatsink.service.demo.act import Finding

NAMES = ("plain", "adaptive", "buckets", "buckets + adaptive")


class YoungTable(msgspec.Struct, frozen=True):
    """One case: what was throttled in each second, and the table at the end."""

    case: str
    throttled: list[int]
    buckets: int
    partitions: int

    @property
    def throttled_s(self) -> float:
        """Of the last seconds, when everything that reacts has reacted."""
        return sum(self.throttled[-LAST_S:]) / LAST_S


async def young_tables(clock: Clock) -> list[YoungTable]:
    """Second by second, so that others get their turns."""
    found = []
    for name, case in zip(NAMES, CASES, strict=True):
        run: list[Second] = []
        for second in seconds(case):
            run.append(second)
            await clock.sleep(0)
        throttled, last = [second.throttled for second in run], run[-1]
        found.append(YoungTable(name, throttled, last.buckets, len(last.partitions)))
    return found


def why_both(tables: list[YoungTable]) -> Finding:
    plain, adaptive, salted, both = tables
    return Finding(
        both.throttled_s == 0,
        f"On a young table of {PARTITIONS} partitions (virtual time) {plain.throttled_s:,.0f} "
        f"writes/s are throttled. A store that adapts leaves {adaptive.throttled_s:,.0f}: one key "
        f"is never split. Buckets alone leave {salted.throttled_s:,.0f}: some share a partition. "
        f"With both the store parts them: {both.throttled_s:,.0f}.",
    )
