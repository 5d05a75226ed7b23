"""Notices items that are never spread since their sort keys carry no usable time.

There are three causes. A sort key under a prefix `by_time` may carry no time that the rule can
read. Or its time is from before the key was spread: for example, a local time west of UTC looks
hours old. Or the declaration misspells the prefix, so that sort keys with a time match no rule.
Such items are not spread, and the key stays hot. So Heatsink looks at the first puts to a table,
and at some of the later ones. If many of them have such a sort key, it logs a warning. `explain`
shows the warning already after the first few puts.
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
ENOUGH = 16  # puts for a warning in the log
FEW = 4  # for somebody who asks
MANY = 0.5
WARN_EACH_MS = 3_600_000
LATE_MS = 600_000  # less than the offset of any time zone; new items may be some seconds old
TIMELESS = "carry no time that it can read"
OLD = "carry a time from before their key was spread, more than 10 minutes ago"
CURE = (
    "so these items are not spread. Write UTC times in the form that the declaration names, or "
    "correct its time_of"
)


class Seen(NamedTuple):
    """A put that was looked at.

    Its sort key may have no time (`is_timeless`), or an old one (`is_old`).

    If it matched no rule, `meant` is the rule whose prefix may be misspelt.
    """

    prefix: str
    sort: Native
    is_timeless: bool = False
    is_old: bool = False
    meant: Rule | None = None


class RecentPuts:
    """The newest puts of a table that were looked at, to see whether its declaration fits them.

    Only puts whose sort keys are spread by time, or match no rule, are looked at.
    """

    def __init__(self, table: SpreadTable) -> None:
        self._table = table
        self._prefixes = {rule.prefix for rule in table.rules if rule.time_of}
        self._count = 0
        self._seen: deque[Seen] = deque(maxlen=KEPT)
        self._warned_ms: int | None = None

    def is_due(self, rule: Rule) -> bool:
        """Count a put. Return whether to look at it: yes for the first puts, and later for some."""
        if rule.time_of is None and (rule is not UNSPREAD or not self._prefixes):
            return False
        self._count += 1
        return self._count <= ENOUGH or self._count % LOOK_AT_EACH == 0

    def note(self, rule: Rule, sort: Native, layout: Layout, now_ms: int) -> None:
        """Look at a put. `now_ms` is the closed time, close to now."""
        if rule is UNSPREAD:
            seen = Seen("", sort, meant=self._table.meant_for(sort))
        else:
            time_ms = rule.time_ms(sort)
            newest = layout.epochs[-1]
            is_spread_ms = newest.start_ms if newest.buckets > 1 else 0
            is_old = time_ms is not None and time_ms < min(is_spread_ms, now_ms - LATE_MS)
            seen = Seen(rule.prefix, sort, time_ms is None, is_old)
        self._seen.append(seen)
        if self._count != ENOUGH and self._count % (LOOK_AT_EACH * ENOUGH):
            return
        is_due = self._warned_ms is None or now_ms - self._warned_ms >= WARN_EACH_MS
        if is_due and (said := self.words()):
            self._warned_ms = now_ms
            logger.warning("table %s: %s", self._table.name, said)

    def words(self, enough: int = ENOUGH) -> str:
        """Return a warning if many recent puts have no usable time; otherwise an empty text.

        It is also empty if fewer than `enough` puts were looked at.
        """
        seen = list(self._seen)
        used = {one.prefix for one in seen}
        strangers = [one for one in seen if one.meant is not None and one.meant.prefix not in used]
        if len(seen) >= enough and len(strangers) >= MANY * len(seen):
            assert strangers[-1].meant is not None
            return misspelt(strangers[-1].meant, strangers[-1].sort)
        seen = [one for one in seen if one.prefix in self._prefixes]
        without = [one for one in seen if one.is_timeless]
        old = [one for one in seen if one.is_old]
        if len(seen) < enough or len(without) + len(old) < MANY * len(seen):
            return ""
        example = (without or old)[-1]
        shares = [
            f"{len(some) / len(seen):.0%} of the recent puts that this process looked at {what}"
            for some, what in ((without, TIMELESS), (old, OLD))
            if some
        ]
        return f"{' and '.join(shares)}, such as {shown(example.sort)}, {CURE}"
