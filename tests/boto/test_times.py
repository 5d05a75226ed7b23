"""Readers of time: what they accept sorts as its times do, and the rest is refused by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.boto import times
from heatsink.door.declaration import BACKWARDS_MS_MAX
from heatsink.door.times import first_text
from heatsink.errors import InvalidId

ZONES = st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-11)), None])
MOMENTS = st.datetimes(datetime(2026, 11, 14), datetime(2026, 11, 16))  # noqa: DTZ001
UNITS = st.sampled_from(["hours", "minutes", "seconds", "milliseconds", "microseconds"])
SPELLINGS = st.sampled_from(
    [
        lambda text: text,
        lambda text: text.replace("+00:00", "Z"),
        lambda text: text.replace("+00:00", "z"),
        lambda text: text.replace("-", "").replace(":", ""),
        lambda text: text.replace(".", ","),
        lambda text: text[:10],
    ]
)


@st.composite
def iso_texts(draw: st.DrawFn) -> str:
    text = (
        draw(MOMENTS)
        .replace(tzinfo=draw(ZONES))
        .isoformat(draw(st.sampled_from("T t")), draw(UNITS))
    )
    return str(draw(SPELLINGS)(text))


def read_or_none(text: str) -> int | None:
    try:
        return times.careful(times.iso_text)(text)
    except InvalidId:
        return None


@given(iso_texts(), iso_texts())
def test_iso_texts_that_are_read_sort_as_their_times_do(one: str, other: str) -> None:
    earlier, later = (read_or_none(text) for text in sorted((one, other)))
    if earlier is not None and later is not None:
        assert earlier <= later + BACKWARDS_MS_MAX


TEXTS = st.one_of(
    st.from_regex(r"2026-11-15T12:00:0[0-9](\.[0-9]{1,4})?(Z|#x|,1|)", fullmatch=True),
    st.from_regex(r"17947440[0-9]{5}(#x)?", fullmatch=True),
)


@given(text=TEXTS, earlier_ms=st.sampled_from([0, 1, 500, 1_000, 60_000]))
def test_no_text_before_the_first_text_of_a_time_has_this_time_or_a_later_one(
    text: str, earlier_ms: int
) -> None:
    time_of = times.iso_text if "T" in text else times.millis_text
    read = times.careful(times.after("MSG#", time_of))
    first = first_text(read, read(f"MSG#{text}") - earlier_ms)
    assert f"MSG#{text}" >= first > "MSG#"


def test_old_sort_keys_are_before_the_first_text_of_a_horizon() -> None:
    horizon_ms = times.iso_text("2026-11-15T12:00:00.500Z")
    first = first_text(times.careful(times.after("MSG#", times.iso_text)), horizon_ms)
    assert "MSG#2026-11-15T12:00:00.499Z#1" < first < "MSG#2026-11-15T12:00:00.501Z"
    assert first_text(times.careful(times.millis_text), horizon_ms) == str(horizon_ms)
    assert first_text(times.ulid_text, horizon_ms) == ""  # must be read


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-15T12:00:00",
        "2026-11-15T12:00:00Z",
        "2026-11-15T12:00:00.5Z",
        "2026-11-15T12:00:00.123456789Z",
        "2026-11-15T12:00:00+00:00",
        "2026-11-15T12:00:00.123456+00:00",
    ],
)
def test_extended_utc_is_read_to_any_fraction(text: str) -> None:
    assert read_or_none(text) is not None


@pytest.mark.parametrize(
    ("time_of", "value"),
    [
        (times.iso_text, "2026-11-15T12:00:00+02:00"),
        (times.iso_text, "2026-11-15 12:00:00Z"),
        (times.iso_text, "20261115T120000Z"),
        (times.iso_text, "2026-W46-7T12:00:00Z"),
        (times.iso_text, "2026-11-15T12:00Z"),
        (times.iso_text, "2026-11-15"),
        (times.iso_text, "２026-11-15T12:00:00Z"),
        (times.seconds, "1794744000"),
        (times.millis, "1794744000000"),
        (times.uuid7_text, "01A1DF14-1E00-7000-8000-000000000000"),
        (times.uuid7_text, "01a1df141e0070008000000000000000"),
        (times.ulid_text, "01m7fh87g00000000000000000"),
    ],
)
def test_a_form_that_does_not_sort_with_the_others_is_refused_with_the_cure(
    time_of: times.TimeOf, value: Any
) -> None:
    with pytest.raises(InvalidId, match=r"sort key .* carries no time: .*(write|own time_of)"):
        times.careful(time_of)(value)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("2026-02-30T12:00:00Z", "day"),
        ("2026-13-01T12:00:00Z", "month"),
        ("2026-11-15T24:00:00Z", "hour"),
        ("2026-11-15T23:59:60Z", "second"),
        ("0000-01-01T00:00:00Z", "year"),
        (5, "must be text, not 5"),
        (None, "must be text, not None"),
        (b"2026-11-15T12:00:00Z", "must be text"),
    ],
)
def test_a_time_that_never_was_is_refused_by_its_field(value: Any, field: str) -> None:
    with pytest.raises(InvalidId, match=field):
        times.iso_text(value)


def test_milliseconds_are_exact() -> None:
    assert times.iso_text("2026-11-15T12:00:00.0019Z") % 1000 == 1
    assert times.iso_text("9999-12-31T23:59:59.999999Z") == 253_402_300_799_999
    assert times.iso_text("1970-01-01T00:00:00") == 0
