"""Cron expressions in time zones, compared with a walk through every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatsink.bulk.cron import Cron, last_time, next_time, parse_cron, zone_of
from heatsink.errors import InvalidSetting

MINUTE_MS = 60_000
DAY_MS = 86_400_000
ZONES: tuple[str, ...] = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "UTC",
)
ZONES += ("America/Sao_Paulo", "Africa/Casablanca", "Pacific/Apia", "America/St_Johns")
CHANGES: tuple[str, ...] = (
    "2018-02-17",
    "2018-11-03",
    "2026-03-28",
    "2026-10-24",
    "2026-03-07",
    "2026-10-31",
)
CHANGES += ("2026-04-04", "2026-10-03", "2011-12-29", "2026-02-14", "2026-03-21", "2026-06-01")


def at_ms(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1000


def said(time_ms: int | None) -> str:
    return "" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1000, UTC):%m-%d %H:%M}"


def fits(cron: Cron, local: datetime) -> bool:
    return cron.fits(local.date()) and local.hour in cron.hours and local.minute in cron.minutes


def walked(cron: Cron, zone: ZoneInfo, first_ms: int, days: int) -> list[int]:
    """The times in these days, found minute by minute. Skipped local minutes are counted on."""
    found, before = set(), None
    for time_ms in range(first_ms - 2 * DAY_MS, first_ms + days * DAY_MS, MINUTE_MS):
        local = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(zone)
        if fits(cron, local.replace(tzinfo=None)) and (not local.fold or cron.all_day):
            found.add(time_ms)
        naive = local.replace(tzinfo=None)
        skipped = before + timedelta(minutes=1) if before is not None else naive
        late_ms = time_ms
        while skipped < naive:  # a gap
            if fits(cron, skipped):
                found.add(late_ms)
            skipped, late_ms = skipped + timedelta(minutes=1), late_ms + MINUTE_MS
        before = naive
    return sorted(time for time in found if first_ms <= time < first_ms + days * DAY_MS)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    several = st.lists(number, min_size=1, max_size=3).map(lambda found: ",".join(map(str, found)))
    span = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    step = st.integers(1, 20).map(lambda by: f"*/{by}")
    return st.one_of(several, span, step, st.just("*"))


crons = st.tuples(
    field(0, 59),
    field(0, 23),
    st.just("*") | field(1, 28),
    st.just("*"),
    st.just("*") | field(0, 7),
).map(" ".join)


@settings(max_examples=20, deadline=None)
@given(text=crons, zone=st.sampled_from(ZONES), day=st.sampled_from(CHANGES))
def test_times_are_those_of_a_walk_through_every_minute(text: str, zone: str, day: str) -> None:
    cron, of, first_ms = parse_cron(text), ZoneInfo(zone), at_ms(day)
    expected = walked(cron, of, first_ms, 3)
    found, time_ms = [], first_ms - 1
    while (following := next_time(cron, of, time_ms)) and following < first_ms + 3 * DAY_MS:
        found.append(following)
        time_ms = following
        if len(found) > 20:  # enough: the others are like these
            break
    assert found == expected[: len(found)]
    if len(found) <= 20:
        assert found == expected
    last = last_time(cron, of, first_ms - 1, first_ms + 3 * DAY_MS - 1)
    assert last == (expected[-1] if expected else None)


@pytest.mark.parametrize(
    ("text", "zone", "after", "times"),
    [
        ("0 9 * * MON-FRI", "Europe/Berlin", "2026-03-27", ["03-27 08:00", "03-30 07:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29", ["03-29 01:30", "03-30 00:30"]),  # 03:30
        ("30 2 * * *", "Europe/Berlin", "2026-10-25", ["10-25 00:30", "10-26 01:30"]),  # once
        ("30 * * * *", "Europe/Berlin", "2026-10-25", ["10-25 00:30", "10-25 01:30"]),  # twice
        ("0 12 29 2 *", "UTC", "2026-01-01", ["02-29 12:00"]),
        ("0 0 13 * FRI", "UTC", "2026-02-01", ["02-06 00:00", "02-13 00:00"]),
        ("@monthly", "Asia/Kolkata", "2026-01-15", ["01-31 18:30"]),
    ],
)
def test_next_times(text: str, zone: str, after: str, times: list[str]) -> None:
    cron, of = parse_cron(text), zone_of(zone)
    time_ms: int | None = at_ms(after) if text != "30 * * * *" else at_ms("2026-10-25T00:00")
    for expected in times:
        assert time_ms is not None
        time_ms = next_time(cron, of, time_ms)
        assert said(time_ms) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 9 * *", "it needs 5 fields"),
        ("60 9 * * *", "the minute must be 0 to 59, not '60'"),
        ("0 5-1 * * *", "the hour must be 0 to 23, not '5-1'"),
        ("0 9 * FOO *", "the month cannot be 'FOO'"),
        ("*/0 * * * *", "the minute must be 0 to 59, not '\\*/0'"),
        ("0 0 30 2 *", "no day fits"),
        ("", "it needs 5 fields"),
    ],
)
def test_a_wrong_expression_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        parse_cron(text)


@pytest.mark.parametrize("name", ["Nowhere/City", "", "../etc/passwd", "x" * 300])
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match="use a name such as 'Europe/Berlin'"):
        zone_of(name)
