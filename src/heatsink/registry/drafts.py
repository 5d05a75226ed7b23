"""Which of the decisions that somebody wants to publish are news, and in what form."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from .decision import BUCKETS, Decision
from .layout import EPOCHS_MAX, Layout
from .rules import AHEAD_MS_MAX
from .view import View


def worth_publishing(decisions: Iterable[Decision], view: View) -> list[Decision]:
    """Without those that hold already."""
    settled = (_settled(decision, view) for decision in decisions)
    return [decision for decision in settled if _is_news(decision, view)]


def _settled(decision: Decision, view: View) -> Decision:
    """The last epoch that a key may have is its high-water mark."""
    layout = view.layout(decision.key)
    if decision.setting != BUCKETS or len(layout.epochs) != EPOCHS_MAX - 1:
        return decision
    assert decision.value is not None
    reason = f"{decision.reason}; the last of {EPOCHS_MAX} epochs keeps the high-water mark"
    return structs.replace(decision, value=max(layout.max_buckets, decision.value), reason=reason)


def _waits(layout: Layout, view: View) -> bool:
    """Its last epoch is so far ahead that none may follow yet: others need not wait for it."""
    return layout.epochs[-1].start_ms >= view.horizon_ms + AHEAD_MS_MAX


def _is_news(decision: Decision, view: View) -> bool:
    if decision.setting == BUCKETS:
        layout = view.layout(decision.key)
        return layout.buckets != decision.value and not layout.full and not _waits(layout, view)
    pinned = view.pins.get(decision.key)
    return pinned != decision if decision.value is not None else pinned is not None
