"""Notices items that are never spread since their sort keys carry no usable time.

A sort key under a prefix `by_time` may carry no time that the rule can read, or one from before the
key was spread, as local times west of UTC are. Or the declaration misspells the prefix, so that
sort keys with a time match no rule. Such items stay where they are, and the key stays hot. So some
of the recent puts of a table are looked at. If many of them are like that, the log says so, and so
does `explain`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

from heatsink.primitives.checks import shown
from heatsink.registry.layouts import Layout
from heatsink.stores.dynamodb.wire.values import Native

from .declaration import UNSPREAD, Rule, SpreadTable, misspelt

logger = logging.getLogger("heatsink")
LOOK_AT_EACH = 4
KEPT = 256
ENOUGH = 16
MANY = 0.5
WARN_EACH_MS = 3_600_000
CURE = (
    "so these items are not spread. Write UTC times in the form that the declaration names, or "
    "correct its time_of"
)


class Seen(NamedTuple):
    """A put that was checked: whether its sort key has no time, or an old time.

    If it matched no rule, `meant` is the rule whose prefix may be misspelt.
    """

    prefix: str
    sort: Native
    is_timeless: bool = False
    is_old: bool = False
    meant: Rule | None = None


class RecentPuts:
    """Some recent puts of one table, under prefixes that are spread by time, or under none."""

    def __init__(self, table: SpreadTable) -> None:
        self._table = table
        self._prefixes = {rule.prefix for rule in table.rules if rule.time_of}
        self._count = 0
        self._seen: deque[Seen] = deque(maxlen=KEPT)
        self._warned_ms: int | None = None

    def note(self, rule: Rule, sort: Native, layout: Layout, now_ms: int) -> None:
        """Look at one put of several. `now_ms` limits how often the log warns."""
        if rule.time_of is None and (rule is not UNSPREAD or not self._prefixes):
            return
        self._count += 1
        if self._count % LOOK_AT_EACH:
            return
        if rule is UNSPREAD:
            seen = Seen("", sort, meant=self._table.meant_for(sort))
        else:
            time_ms = rule.time_ms(sort)
            newest = layout.epochs[-1]
            is_old = time_ms is not None and newest.buckets > 1 and time_ms < newest.start_ms
            seen = Seen(rule.prefix, sort, time_ms is None, is_old)
        self._seen.append(seen)
        if self._count % (LOOK_AT_EACH * ENOUGH):
            return
        is_due = self._warned_ms is None or now_ms - self._warned_ms >= WARN_EACH_MS
        if is_due and (said := self.words()):
            self._warned_ms = now_ms
            logger.warning("table %s: %s", self._table.name, said)

    def words(self) -> str:
        """Say what share of recent puts has no usable time; empty if it is small or unknown."""
        seen = list(self._seen)
        used = {one.prefix for one in seen}
        strangers = [one for one in seen if one.meant is not None and one.meant.prefix not in used]
        if len(seen) >= ENOUGH and len(strangers) >= MANY * len(seen):
            assert strangers[-1].meant is not None
            return misspelt(strangers[-1].meant, strangers[-1].sort)
        seen = [one for one in seen if one.prefix in self._prefixes]
        without = [one for one in seen if one.is_timeless]
        old = [one for one in seen if one.is_old]
        if len(seen) < ENOUGH or len(without) + len(old) < MANY * len(seen):
            return ""
        example = (without or old)[-1]
        shares = f"{len(without) / len(seen):.0%} of the recent puts that this process looked at "
        shares += "carry no time that it can read"
        if old:
            shares += f", {len(old) / len(seen):.0%} one from before their key was spread"
        return f"{shares}, such as {shown(example.sort)}, {CURE}"
