"""Who leads, or since when nobody does: what operators are told.

META names the last leader also after that process has died, so the name alone proves nothing: a
leader is one whose lease has not run out, by the store's clock.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from heatsink.registry.decision import Meta

CURE = (
    "start `heatsink coordinator` or `heatsink serve`; until one leads, layouts stand still and "
    "new pins wait"
)


class Leadership(msgspec.Struct, frozen=True):
    """Who leads at `now_ms`, a time of the store's clock."""

    last: str
    """Who led last; empty if that one gave its lease back, or nobody ever led."""
    until_ms: int
    """Until when the lease lasts, or lasted; 0 if nobody ever led."""
    now_ms: int

    @property
    def leader(self) -> str:
        """Empty: nobody leads."""
        return self.last if self.now_ms <= self.until_ms else ""

    @property
    def leaderless_s(self) -> float:
        """For how long nobody has led: 0 while somebody does, infinite if nobody ever did."""
        if self.leader:
            return 0.0
        return max(self.now_ms - self.until_ms, 0) / 1000 if self.until_ms else float("inf")

    @property
    def vacancy(self) -> str | None:
        """Since when and why nobody leads, in words; None while somebody leads."""
        if self.leader:
            return None
        if not self.until_ms:
            return "nobody has led yet"
        since = datetime.fromtimestamp(self.until_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        why = f"; the lease of {self.last} ran out" if self.last else ""
        return f"nobody leads since {since} UTC ({self.leaderless_s:,.0f} s ago{why})"


def leadership_of(meta: Meta, now_ms: int, led_until_ms: int = 0) -> Leadership:
    """`led_until_ms`: until when somebody leads for sure, whatever META said when it was read."""
    return Leadership(meta.leader, max(meta.lease_ms, led_until_ms), now_ms)
