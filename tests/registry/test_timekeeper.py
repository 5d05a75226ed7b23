from __future__ import annotations

import pytest

from heatsink.registry.timekeeper import BELIEVE_S, Timekeeper

NOW_MS = 1_800_000_000_000
YEAR_MS = 365 * 86_400_000


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS, 5_001, -5_001])
def test_a_clock_that_is_far_off_is_replaced_by_the_stores(off_ms: int) -> None:
    time = Timekeeper()
    time.observe(NOW_MS + off_ms, NOW_MS, 100.0)
    assert (time.correction_ms, time.offset_ms) == (-off_ms, -off_ms)


@pytest.mark.parametrize("off_ms", [0, 4_000, -4_000])
def test_a_clock_that_is_a_little_off_is_used_as_it_is(off_ms: int) -> None:
    time = Timekeeper()
    time.observe(NOW_MS + off_ms, NOW_MS, 100.0)
    assert (time.correction_ms, time.offset_ms) == (0, -off_ms)


def test_a_jump_of_both_clocks_is_believed_only_when_it_lasts() -> None:
    """On one machine the store's clock is ours: nobody else can say that it is wrong."""
    time = Timekeeper()
    time.observe(NOW_MS, NOW_MS, 100.0)
    for second in range(1, int(BELIEVE_S)):
        wall_ms = NOW_MS + YEAR_MS + second * 1_000
        time.observe(wall_ms, wall_ms, 100.0 + second)
        assert wall_ms + time.correction_ms == NOW_MS + second * 1_000
    later_ms, later_s = NOW_MS + YEAR_MS + 60_000, 160.0
    time.observe(later_ms, later_ms, later_s)
    assert time.correction_ms == 0


def test_a_jump_that_is_taken_back_leaves_no_trace() -> None:
    time = Timekeeper()
    time.observe(NOW_MS, NOW_MS, 100.0)
    time.observe(NOW_MS + YEAR_MS, NOW_MS + YEAR_MS, 102.0)
    time.observe(NOW_MS + 4_000, NOW_MS + 4_000, 104.0)
    assert (time.correction_ms, time.offset_ms) == (0, 0)
