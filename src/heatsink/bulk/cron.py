"""The times of a cron expression in a time zone: `0 9 * * MON-FRI` in Europe/Berlin.

The five fields are minute, hour, day of the month, month and day of the week (0 or 7 is Sunday).
If both days are restricted, one of them is enough, as in every cron.

A zone changes its clocks twice a year, and a zone's rules say what a local time means then:

- The clocks skip a local time (a *gap*): it is counted from before the change, so 02:30 becomes
  03:30.
- A local time occurs twice: the first one counts. If the hour field begins with `*`, both count,
  because such a schedule runs all day long.

If two local times become the same moment, that is one time of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import shown

DAYS_MAX = 366 * 9  # 29 February may be 8 years away
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * SUN",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(MONTHS, 1)}),
    ("day of the week", 0, 7, {name: number for number, name in enumerate(WEEKDAYS)}),
)


@dataclass(frozen=True)
class Cron:
    """A cron expression.

    A day must fit both the day of the month and the day of the week. With `either_day`, one of the
    two is enough: cron's rule if the expression restricts both.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    all_day: bool
    """Whether the hour field begins with `*`."""

    def fits(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_month or by_week if self.either_day else by_month and by_week

    def times_of(self, day: date, zone: ZoneInfo) -> list[int]:
        """Return the moments of this local day, in milliseconds since 1970, in order."""
        if not self.fits(day):
            return []
        found = set()
        for hour in self.hours:
            for minute in self.minutes:
                local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                found.add(_ms(local))
                if self.all_day:
                    found |= _second_time(local)
        return sorted(found)


def _second_time(local: datetime) -> set[int]:
    """Return the second moment of a local time that occurs twice."""
    later = local.replace(fold=1)
    is_repeated = (local.utcoffset() or timedelta()) > (later.utcoffset() or timedelta())
    return {_ms(later)} if is_repeated else set()


def _ms(local: datetime) -> int:
    return int(local.timestamp()) * 1000


@lru_cache(maxsize=1_000)
def parse_cron(text: str) -> Cron:
    """Return the expression. Raises `InvalidSetting` if it is not valid, or if it never fits."""
    words = NAMED.get(text.strip().lower(), text).split()
    if len(words) != len(FIELDS):
        raise _wrong(text, "it needs 5 fields, as in '0 9 * * MON-FRI'")
    minutes, hours, days, months, weekdays = (
        _field(text, word, *field) for word, field in zip(words, FIELDS, strict=True)
    )
    found = Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        days,
        months,
        frozenset(number % 7 for number in weekdays),
        either_day=not (words[2].startswith("*") or words[4].startswith("*")),
        all_day=words[1].startswith("*"),
    )
    if next_time(found, ZoneInfo("UTC"), 0) is None:
        raise _wrong(text, "no day fits")
    return found


def _field(
    text: str, word: str, name: str, low: int, high: int, names: dict[str, int]
) -> frozenset[int]:
    found: set[int] = set()
    for part in word.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            begin, end = low, high
        else:
            begin = _number(text, name, first, names)
            end = _number(text, name, last, names) if dash else high if slash else begin
        by = _number(text, name, step, {}) if slash else 1
        if not low <= begin <= end <= high or by < 1:
            raise _wrong(text, f"the {name} must be {low} to {high}, not {part!r}")
        found |= set(range(begin, end + 1, by))
    return frozenset(found)


def _number(text: str, name: str, word: str, names: dict[str, int]) -> int:
    if word.upper() in names:
        return names[word.upper()]
    if not (word.isascii() and word.isdecimal() and len(word) <= 2):
        raise _wrong(text, f"the {name} cannot be {word!r}")
    return int(word)


def _wrong(text: str, why: str) -> InvalidSetting:
    return InvalidSetting(f"cron {shown(text)} is not valid: {why}", field="cron")


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone with this name. Raises `InvalidSetting` if there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise InvalidSetting(
            f"zone {shown(name)} is unknown: use a name such as 'Europe/Berlin'. On a system "
            "without time zones: pip install tzdata",
            field="zone",
        ) from None


def next_time(cron: Cron, zone: ZoneInfo, after_ms: int) -> int | None:
    """Return the first time after `after_ms`; None if there is none for years."""
    first = _local_day(after_ms, zone) - timedelta(days=1)
    for day in _days(first, 1):
        found = [
            time
            for near in (day, day + timedelta(days=1), day + timedelta(days=2))
            for time in cron.times_of(near, zone)
            if time > after_ms
        ]
        if found:
            return min(found)
    return None


def last_time(cron: Cron, zone: ZoneInfo, after_ms: int, until_ms: int) -> int | None:
    """Return the last time after `after_ms` and at or before `until_ms`; None if there is none."""
    earliest = _local_day(after_ms, zone) - timedelta(days=1)
    for day in _days(_local_day(until_ms, zone) + timedelta(days=1), -1):
        if day < earliest:
            return None
        found = [
            time
            for near in (day, day - timedelta(days=1), day - timedelta(days=2))
            for time in cron.times_of(near, zone)
            if after_ms < time <= until_ms
        ]
        if found:
            return max(found)
    return None


def _days(first: date, step: int) -> Iterator[date]:
    for number in range(DAYS_MAX):
        yield first + timedelta(days=step * number)


def _local_day(time_ms: int, zone: ZoneInfo) -> date:
    return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(zone).date()
