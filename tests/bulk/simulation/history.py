"""What was asked for and what happened: the only evidence the checks may use."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.simulation.history import Violation

__all__ = ["History", "Submitted", "Violation"]


@dataclass
class Submitted:
    """One batch id. `accepted` when some submission of it returned.

    A single is submitted as a list of one item, which is accepted in one call.
    """

    id: str
    action: str
    tenant: str
    size: int
    on_done: str = ""
    accepted: bool = False
    is_single: bool = False
    rate: str | None = None


@dataclass
class History:
    submitted: dict[str, Submitted] = field(default_factory=dict)
    starts: Counter[tuple[str, int]] = field(default_factory=Counter)
    successes: Counter[tuple[str, int]] = field(default_factory=Counter)
    lane_starts_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    told: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    errors: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    ended: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Final states that somebody was shown, with the lap and the number of restorations."""
    broken: set[str] = field(default_factory=set)
    """Batches of which a server lost what it had confirmed: what they promise is weaker."""
