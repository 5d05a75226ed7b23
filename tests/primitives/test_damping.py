from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heatsink.primitives.damping import RecentPeak, forecast


def test_a_rising_rate_is_followed_ahead_and_a_falling_one_is_not() -> None:
    assert forecast(100, 200, interval_s=1, lead_s=3) == 500
    assert forecast(100, 200, interval_s=2, lead_s=3) == 350
    assert forecast(200, 100, interval_s=1, lead_s=3) == 100


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100)), min_size=1, max_size=50),
    st.integers(1, 10),
)
def test_the_recent_peak_is_the_maximum_of_its_span(
    steps: list[tuple[int, int]], span_s: int
) -> None:
    peak, time_s, seen = RecentPeak(span_s), 0, []
    for gap_s, value in steps:
        time_s += gap_s
        peak.add(time_s, value)
        seen.append((time_s, value))
        assert peak.at(time_s) == max(v for t, v in seen if t >= time_s - span_s)
    assert peak.at(time_s + span_s + 1) == 0.0
