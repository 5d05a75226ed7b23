"""What became of an acknowledged batch, and whether that may be: pure.

It ends with a result for every item, or it says exactly which items are lost. Nothing else will do:
no batch that never ends, no count that is wrong, no item missing in silence. What is lost can be
submitted again under the same id; then the lost items run, and no others.

A batch is lost as a whole if the queue does not know it, or knows it only as it was before it was
accepted (`open`, two minutes later `aborted`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

Range = tuple[int, int]
FINAL = frozenset(("done", "failed", "cancelled", "aborted", "lost"))
UNSEALED = frozenset(("open", "aborted"))
NAMED_MAX = 3  # so many ranges a reason must name; it may say "and so many more"


class Seen(msgspec.Struct, frozen=True):
    """A batch's progress. `state` is `gone` if the queue knows no such batch."""

    state: str
    accepted: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0
    waiting: int = 0
    lost: int = 0
    missing: tuple[Range, ...] = ()
    """First index and count of each range of lost items."""
    reason: str = ""

    @property
    def is_final(self) -> bool:
        return self.state in FINAL or self.is_wholly_lost

    @property
    def is_wholly_lost(self) -> bool:
        """The queue does not know that it accepted it: nothing of it runs."""
        return self.state == "gone" or self.state in UNSEALED

    def __str__(self) -> str:
        counts = ("accepted", "done", "failed", "cancelled", "running", "waiting", "lost")
        said = ", ".join(f"{name} {getattr(self, name):,}" for name in counts)
        return f"{self.state} ({said}{', ' if self.reason else ''}{self.reason})"


def seen(progress: object) -> Seen:
    """A queue that cannot lose anything has no `lost` and no `missing`."""
    ranges = getattr(progress, "missing", ()) or ()
    plain = {
        name: getattr(progress, name, 0)
        for name in ("accepted", "done", "failed", "cancelled", "running", "waiting", "lost")
    }
    return Seen(
        state=str(getattr(progress, "state", "")),
        missing=tuple((int(first), int(count)) for first, count in ranges),
        reason=str(getattr(progress, "reason", "")),
        **plain,
    )


def lost_items(items: int, found: Seen) -> set[int]:
    """The indexes that a batch names as lost: all of them if it is lost as a whole."""
    if found.is_wholly_lost:
        return set(range(items))
    return {i for first, count in found.missing for i in range(first, first + count)}


def wrong_counts(items: int, found: Seen) -> list[str]:
    """Faults that a batch must never show, whether it has ended or not."""
    if found.is_wholly_lost:
        return []
    counts = (found.done, found.failed, found.cancelled, found.running, found.waiting, found.lost)
    faults = []
    if min(counts) < 0:
        faults.append(f"a count is negative: {found}")
    if found.accepted != items:
        faults.append(f"{items:,} items were submitted, not {found.accepted:,}: {found}")
    if found.done + found.failed + found.cancelled + found.running + found.lost > items:
        faults.append(f"there are more items than were submitted: {found}")
    return faults


def wrong_ranges(items: int, found: Seen) -> list[str]:
    """Of a batch that is lost: whether it names what it lost."""
    faults, end = [], 0
    for first, count in found.missing:
        if first < end or count < 1 or first + count > items:
            faults.append(f"range {first}+{count} overlaps another, is empty or out of bounds")
        end = first + count
    named = len(lost_items(items, found))
    if named != found.lost or not named:
        faults.append(f"{found.lost:,} items are lost but {named:,} are named: {found}")
    unnamed = [first for first, _ in found.missing[:NAMED_MAX] if str(first) not in found.reason]
    if unnamed:
        faults.append(f"the reason does not name the ranges from {unnamed}: {found}")
    return faults


def wrong_end(
    items: int, found: Seen, ran: Collection[int], is_cancelled: bool = False
) -> list[str]:
    """Faults of an acknowledged batch's end. `ran` are the items whose handler was called."""
    if not found.is_final:
        return [f"it does not end: {found}"]
    if found.is_wholly_lost:
        return []  # its state says so
    faults = wrong_counts(items, found)
    allowed = {"done", "lost", "cancelled"} if is_cancelled else {"done", "lost"}
    if found.state not in allowed:
        faults.append(f"it was acknowledged and ended otherwise: {found}")
    if found.state == "lost":
        faults += wrong_ranges(items, found)
    elif found.lost or found.missing:
        faults.append(f"it names lost items but is not lost: {found}")
    ended = found.done + found.failed + found.cancelled + found.lost
    if ended != items:
        faults.append(f"{ended:,} of {items:,} items have ended: {found}")
    if not is_cancelled:
        silent = set(range(items)) - set(ran) - lost_items(items, found)
        if silent:
            faults.append(f"items never ran, and are not named as lost: {as_text(silent)}")
    return faults


def wrong_restoration(
    items: int, lost: Collection[int], ran_since: Collection[int], found: Seen
) -> list[str]:
    """Faults after the same items were submitted again under the same id."""
    faults = wrong_end(items, found, range(items))
    if found.state != "done":
        faults.append(f"submitted again, it did not end done: {found}")
    if never := set(lost) - set(ran_since):
        faults.append(f"lost items did not run when submitted again: {as_text(never)}")
    if again := set(ran_since) - set(lost):
        faults.append(f"items that were not lost ran again: {as_text(again)}")
    return faults


def as_ranges(indexes: Collection[int]) -> list[Range]:
    ranges: list[Range] = []
    for index in sorted(indexes):
        if ranges and sum(ranges[-1]) == index:
            ranges[-1] = ranges[-1][0], ranges[-1][1] + 1
        else:
            ranges.append((index, 1))
    return ranges


def as_text(indexes: Collection[int], most: int = 4) -> str:
    ranges: Sequence[Range] = as_ranges(indexes)
    said = [f"{first}–{first + count - 1}" if count > 1 else f"{first}" for first, count in ranges]
    more = f" and {len(said) - most} more ranges" if len(said) > most else ""
    return f"{len(indexes):,} ({', '.join(said[:most])}{more})"
