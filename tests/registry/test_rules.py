from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.errors import Deposed, Outdated
from heatsink.registry import closed_time as rules
from heatsink.registry.decisions import BUCKETS, PIN, LogEntry, Meta, Reading, for_key
from heatsink.registry.layouts import COLD, Layout

NOW_MS = 1_800_000_000_000
YEAR_MS = 365 * 86_400_000
META = Meta(
    closed_ms=NOW_MS, version=4, term=2, beat=0, leader="a", incarnation="i", seed=b"", id_scheme=""
)


def entry(start_ms: int = NOW_MS, version: int = 5, setting: str = BUCKETS) -> LogEntry:
    return LogEntry(version, NOW_MS, start_ms, (for_key("k", setting, 3, "hot"),))


def test_an_epoch_from_the_leader_at_the_closed_time_is_right() -> None:
    rules.check_append(entry(), 2, META, {})
    rules.check_append(entry(NOW_MS + 5_000), 2, META, {"k": Layout.of([(NOW_MS - 1, 2)])})


@pytest.mark.parametrize("term", [1, 3, None])
def test_nobody_but_the_leader_appends_epochs(term: int | None) -> None:
    with pytest.raises(Deposed, match="a leads term 2"):
        rules.check_append(entry(), term, META, {})


def test_an_operator_may_pin_without_leading() -> None:
    rules.check_append(entry(setting=PIN), None, META, {})


@pytest.mark.parametrize("version", [4, 6])
def test_versions_have_no_gaps_and_no_twins(version: int) -> None:
    with pytest.raises(Outdated):
        rules.check_append(entry(version=version), 2, META, {})


@pytest.mark.parametrize("start_ms", [NOW_MS - 1, NOW_MS + 5_001])
def test_an_epoch_starts_at_the_closed_time_or_within_5_s_after(start_ms: int) -> None:
    with pytest.raises(Outdated, match="closed time"):
        rules.check_append(entry(start_ms), 2, META, {})


def test_an_epoch_starts_after_the_keys_last() -> None:
    with pytest.raises(Outdated, match="must start after"):
        rules.check_append(entry(), 2, META, {"k": Layout.of([(NOW_MS, 2)])})


@given(
    now_ms=st.sampled_from([NOW_MS, NOW_MS - YEAR_MS, NOW_MS + YEAR_MS]),
    last_ms=st.integers(-3_000, 4_000),
)
def test_the_start_we_choose_is_always_allowed(now_ms: int, last_ms: int) -> None:
    """Whatever the leader's clock says; the last epoch was allowed when it was appended."""
    layout = COLD.then(NOW_MS + last_ms, 2)
    start_ms = rules.start_of_epochs(META, now_ms, [layout])
    rules.check_append(entry(start_ms), 2, META, {"k": layout})


@pytest.mark.parametrize(
    ("remaining_ms", "enough_ms", "advances"),
    [(400, 500, True), (400, 250, False), (200, 250, True), (-10_000, 250, True)],
)
def test_who_advances_the_closed_time(remaining_ms: int, enough_ms: int, advances: bool) -> None:
    now_ms = NOW_MS - remaining_ms
    closed_ms = rules.new_closed_time(Reading(META, now_ms), now_ms, enough_ms)
    assert closed_ms == (now_ms + 500 if advances else None)


@pytest.mark.parametrize(
    ("latency_s", "horizon_ms"), [(0.0, 500), (0.04, 500), (0.3, 2_300), (2.0, 5_000)]
)
def test_the_slower_the_store_the_further_ahead_is_the_closed_time(
    latency_s: float, horizon_ms: int
) -> None:
    assert rules.horizon_for(latency_s) == horizon_ms
    assert rules.thin_ms(latency_s) == horizon_ms // 2
