"""What a consumer counts, by action and tenant, with a bound on how many tenants get a label."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from heatsink.bulk.store import BACK, DONE, FAILED, RETRY, Outcome, Slice

TENANTS_MAX = 50
OTHERS = "(others)"


@dataclass
class Tally:
    """Totals since the process began. `waited_s` is from submission to claim, summed over items."""

    claimed: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0
    given_back: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0


class WorkMeter:
    def __init__(self) -> None:
        self.tallies: dict[tuple[str, str], Tally] = {}
        self.claims = 0
        self.fenced = 0
        self._tenants: set[str] = set()

    def claimed(self, slices: Iterable[Slice], now_s: float) -> None:
        self.claims += 1
        for each in slices:
            tally = self._tally(each)
            tally.claimed += each.count
            tally.waited_s += max(now_s - each.submitted_ms / 1000, 0.0) * each.count

    def told(self, claimed: Slice, before: Outcome | None, now: Outcome) -> None:
        """Marks are told again and again until the last item is through: count the new ones."""
        tally = self._tally(claimed)
        old = before.marks if before else ""
        tally.done += now.marks.count(DONE) - old.count(DONE)
        tally.failed += now.marks.count(FAILED) - old.count(FAILED)
        tally.retried += now.marks.count(RETRY) - old.count(RETRY)
        tally.given_back += now.marks.count(BACK) - old.count(BACK)
        tally.busy_s += now.used_us / 1e6

    def _tally(self, claimed: Slice) -> Tally:
        label = claimed.action, self._label(claimed.tenant)
        if label not in self.tallies:
            self.tallies[label] = Tally()
        return self.tallies[label]

    def _label(self, tenant: str) -> str:
        if tenant in self._tenants:
            return tenant
        if len(self._tenants) >= TENANTS_MAX:
            return OTHERS
        self._tenants.add(tenant)
        return tenant
