"""The options of `hs.bulk.submit`, checked and turned into fields of the batch's record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import check_names, check_number, check_text, shown

from . import changes

TEXT_MAX = 256
PRIORITY_MAX = 1_000
AHEAD_S_MAX = 366 * 86_400.0


class BatchOptions(TypedDict, total=False):
    """Further options of `hs.bulk.submit`, such as `delay=60`."""

    at: datetime | None
    """The time before which no item starts. It needs a time zone."""
    delay: float | timedelta | None
    """The time from now on before which no item starts, in seconds or as a `timedelta`."""


def check_options(options: BatchOptions, now_ms: int) -> dict[str, Any]:
    """Return the fields of the record that these options set. Raises `InvalidSetting`."""
    check_names("submit()", options, BatchOptions.__annotations__)
    return {"start_ms": start_of(options.get("at"), options.get("delay"), now_ms)}


def start_of(at: object, delay: object, now_ms: int) -> int:
    """Return the time before which no item starts, in milliseconds; 0 without such a time.

    A time in the past is allowed: then items start immediately.
    """
    if at is not None and delay is not None:
        raise InvalidSetting("at and delay cannot be used together: leave one out", field="at")
    if at is not None:
        return _instant_ms(at, now_ms)
    if delay is None:
        return 0
    length_s = delay.total_seconds() if isinstance(delay, timedelta) else delay
    seconds = check_number("delay", length_s, 0, AHEAD_S_MAX, "seconds")
    return now_ms + round(seconds * 1000) if seconds else 0


def _instant_ms(at: object, now_ms: int) -> int:
    if not isinstance(at, datetime):
        raise InvalidSetting(
            f"at must be a datetime with a time zone, not {shown(at)}: for a number of seconds "
            "from now on, use delay",
            field="at",
        )
    if at.utcoffset() is None:
        raise InvalidSetting(
            "at needs a time zone: write datetime(…, tzinfo=UTC), or at.astimezone() for the "
            "zone of this machine",
            field="at",
        )
    at_ms = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if at_ms - now_ms > AHEAD_S_MAX * 1000:
        days = int(AHEAD_S_MAX / 86_400)
        raise InvalidSetting(f"at must be at most {days} days ahead, not {at}", field="at")
    return max(at_ms, 0)


def check_id(id: str) -> str:
    """Return the id that a caller chose for a batch. Raises `InvalidSetting`."""
    check_text("id", id, TEXT_MAX)
    if changes.CALLBACK in id:
        why = f"id {shown(id)} contains {changes.CALLBACK!r}, reserved for callbacks"
        raise InvalidSetting(f"{why}: choose another", field="id")
    return id
