"""Whose turn it is: tenants by virtual time, a tenant's parts by what is left of them.

A tenant pays for its items with virtual time, by their cost and its weight; the one that paid
least is next. Who was away comes back at the time of who was served last, never with savings.
Parts with a rate limit are lined up in lanes of their own: they cost nothing until granted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heatsink.bulk.store import Part


@dataclass
class Rotation:
    lanes: dict[str, dict[str, float]] = field(default_factory=dict)
    _tenants: dict[str, dict[str, float]] = field(default_factory=dict)
    _times: dict[str, float] = field(default_factory=dict)
    _now: float = 0.0

    @property
    def has_tenants(self) -> bool:
        return bool(self._tenants)

    def add(self, part: Part, score: float) -> None:
        if part.limited:
            self.lanes.setdefault(part.lane, {})[part.id] = score
            return
        if part.tenant not in self._tenants:
            self._times[part.tenant] = max(self._times.get(part.tenant, 0.0), self._now)
        self._tenants.setdefault(part.tenant, {})[part.id] = score

    def remove(self, part: Part) -> None:
        lines, name = (self.lanes, part.lane) if part.limited else (self._tenants, part.tenant)
        line = lines.get(name, {})
        line.pop(part.id, None)
        if not line:
            lines.pop(name, None)
            self._forget_savings(part.tenant)

    def _forget_savings(self, tenant: str) -> None:
        if tenant not in self._tenants and self._times.get(tenant, 0.0) <= self._now:
            self._times.pop(tenant, None)

    def forget_all_savings(self) -> None:
        """Tenants that may never come back."""
        for tenant in [name for name in self._times if name not in self._tenants]:
            self._forget_savings(tenant)

    def next(self) -> str | None:
        """The part to serve: of the tenant that has had least, the one with least to go."""
        if not self._tenants:
            return None
        tenant = min(self._tenants, key=lambda name: (self._times[name], name))
        self._now = max(self._now, self._times[tenant])
        return _first(self._tenants[tenant])

    def first_of_lane(self, lane: str) -> str | None:
        line = self.lanes.get(lane)
        return _first(line) if line else None

    def charge(self, part: Part, cost_us: float) -> None:
        paid = self._times.get(part.tenant, self._now)
        self._times[part.tenant] = max(paid + cost_us / part.weight, 0.0)
        if part.limited and not self._tenants:  # nobody else was kept waiting: there is no debt
            self._now = max(self._now, self._times[part.tenant])


def _first(line: dict[str, float]) -> str:
    return min(line, key=lambda id: (line[id], id))
