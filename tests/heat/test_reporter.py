from __future__ import annotations

import asyncio

import pytest

from heatsink.errors import InvalidSetting
from heatsink.heat.count import Tracker
from heatsink.heat.report import Reporter, ReportSettings
from heatsink.stores.memory.messages import MemoryBus
from heatsink.testing import ManualClock


class OneFleet:
    def __init__(self, clock: ManualClock) -> None:
        self.fleet_now_s = clock.now_s
        self.servers = 1


def make(clock: ManualClock, **settings: float) -> tuple[Tracker, MemoryBus, Reporter]:
    tracker, bus = Tracker(alarm_units=800), MemoryBus()
    chosen = ReportSettings(**settings)  # type: ignore[arg-type]
    return tracker, bus, Reporter("a", tracker, bus, OneFleet(clock), clock, chosen)


async def test_one_report_per_window_with_the_keys_above_the_floor(clock: ManualClock) -> None:
    tracker, bus, reporter = make(clock)
    tracker.record("hot", 500)
    tracker.record("warm", 80)
    tracker.record("cold", 79)
    await clock.advance(1.0)
    await reporter.run_once()
    await reporter.run_once()
    (report,) = await bus.receive()
    assert {key: heat.writes for key, heat in report.keys.items()} == {"hot": 500, "warm": 80}
    assert report.unreported == 79
    assert report.final
    assert report.elapsed_s == pytest.approx(1.0)


async def test_the_floor_shrinks_with_the_number_of_servers(clock: ManualClock) -> None:
    tracker, bus, reporter = make(clock)
    reporter._fleet.servers = 10  # type: ignore[misc]
    tracker.record("k", 8)
    await clock.advance(1.0)
    await reporter.run_once()
    assert "k" in (await bus.receive())[0].keys


async def test_a_key_on_the_rise_is_reported_inside_its_window(clock: ManualClock) -> None:
    tracker, bus, reporter = make(clock)
    await clock.advance(0.3)
    tracker.record("k", 900)
    await reporter.run_once()
    (report,) = await bus.receive()
    assert report.keys["k"].writes == 900
    assert not report.final
    assert report.elapsed_s == pytest.approx(0.3)


async def test_only_the_hottest_fit_into_a_report(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsink.heat.report.KEYS_MAX", 2)
    tracker, bus, reporter = make(clock)
    for n in range(5):
        tracker.record(f"k{n}", 100 + n)
    await clock.advance(1.0)
    await reporter.run_once()
    (report,) = await bus.receive()
    assert list(report.keys) == ["k4", "k3"]
    assert report.unreported == 102


async def test_it_runs_by_itself(clock: ManualClock) -> None:
    tracker, bus, reporter = make(clock)
    running = asyncio.ensure_future(reporter.run())
    for _ in range(3):
        tracker.record("k", 100)
        await clock.advance(1.2)
    running.cancel()
    assert [r.keys["k"].writes for r in await bus.receive() if r.keys] == [100, 100, 100]


@pytest.mark.parametrize(
    ("name", "value"),
    [("window_s", 0.0), ("bucket_units_s", 0)],
)
def test_a_wrong_setting_is_named(name: str, value: float) -> None:
    with pytest.raises(InvalidSetting, match=name):
        ReportSettings(**{name: value})  # type: ignore[arg-type]


async def test_a_late_look_does_not_inflate_the_rate(clock: ManualClock) -> None:
    tracker, bus, reporter = make(clock)
    tracker.record("k", 1_300)
    await clock.advance(1.3)
    await reporter.run_once()
    (report,) = await bus.receive()
    assert report.keys["k"].writes / report.elapsed_s == pytest.approx(1_000)


async def test_a_new_length_of_windows_starts_a_new_window(clock: ManualClock) -> None:
    """Counts from before would be a report that no leader can place."""
    tracker, bus, reporter = make(clock)
    await clock.advance(0.6)
    tracker.record("before", 500)
    reporter.adopt(ReportSettings(window_s=4.0))
    await reporter.run_once()
    assert await bus.receive() == []
    start_s = clock.now_s()
    tracker.record("k", 500)
    await clock.advance(4.0 - start_s % 4.0)
    await reporter.run_once()
    (report,) = await bus.receive()
    assert list(report.keys) == ["k"]
    assert report.window == int(start_s / 4.0)
    assert report.elapsed_s == pytest.approx(clock.now_s() - start_s)


async def test_other_settings_leave_the_running_window_alone(clock: ManualClock) -> None:
    tracker, bus, reporter = make(clock)
    tracker.record("k", 50)
    reporter.adopt(ReportSettings(floor_share=0.05))
    await clock.advance(1.0)
    await reporter.run_once()
    (report,) = await bus.receive()
    assert list(report.keys) == ["k"]
