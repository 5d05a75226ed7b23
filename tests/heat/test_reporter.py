from __future__ import annotations

import asyncio
from random import Random

import pytest

from heatsink.errors import InvalidSetting
from heatsink.heat.count import Tracker
from heatsink.heat.report import Reporter, ReportSettings, Sampling
from heatsink.stores.memory.messages import MemoryBus
from heatsink.testing import ManualClock

SETTINGS = ReportSettings()


class OneFleet:
    def __init__(self, clock: ManualClock) -> None:
        self.fleet_now_s = clock.now_s
        self.servers = 1
        self.notice = b""


def make(clock: ManualClock, **settings: float) -> tuple[Tracker, MemoryBus, Reporter]:
    tracker, bus = Tracker(alarm_units=800, rng=Random(1)), MemoryBus()
    chosen = ReportSettings(**settings)  # type: ignore[arg-type]
    return tracker, bus, Reporter("a", tracker, bus, OneFleet(clock), clock, chosen)


async def test_one_report_per_window_with_every_key_that_cost_tau(clock: ManualClock) -> None:
    tracker, bus, reporter = make(clock)
    await clock.advance(1.0)
    await reporter.run_once()
    tracker.record("hot", 500)
    tracker.record("warm", 16)
    tracker.record("cold", 1)
    await clock.advance(1.0)
    await reporter.run_once()
    await reporter.run_once()
    _, report = await bus.receive()
    listed = {key: heat.writes for key, heat in report.keys.items() if not heat.tau}
    assert listed == {"hot": 500, "warm": 16}
    assert (report.tau, report.units) == (16, 517)
    assert report.final
    assert report.elapsed_s == pytest.approx(1.0)


async def test_servers_report_at_different_times_of_a_second(clock: ManualClock) -> None:
    """Ten thousand reports at the same moment would come in one burst."""
    times = set()
    for n in range(40):
        reporter = Reporter(f"s{n}", Tracker(), MemoryBus(), OneFleet(clock), clock, SETTINGS)
        times.add(int(10 * reporter._phase))
    assert len(times) >= 8


async def test_the_leader_says_how_to_sample_and_what_to_watch(clock: ManualClock) -> None:
    """A key that is new to watch is reported again at once, for the window that ended last."""
    tracker, bus, reporter = make(clock)
    fleet = reporter._fleet
    await clock.advance(1.0)
    await reporter.run_once()
    tracker.record("spread", 3)
    tracker.record("cold", 1)
    await clock.advance(1.0)
    await reporter.run_once()
    await bus.receive()
    fleet.notice = Sampling(32, 40).watching({"spread": 1}).encoded()  # type: ignore[misc]
    await reporter.run_once()
    (amends,) = await bus.receive()
    assert (amends.amends, amends.final) == (True, False)
    assert {key: heat.writes for key, heat in amends.keys.items()} == {"spread": 3}
    tracker.record("spread", 2)
    await clock.advance(1.0)
    await reporter.run_once()
    (final,) = await bus.receive()
    assert final.keys["spread"].writes == 2
    await clock.advance(1.0)
    await reporter.run_once()
    assert [report.tau for report in await bus.receive()] == [32]


async def test_a_server_of_a_large_fleet_that_hears_nothing_reports_less(
    clock: ManualClock,
) -> None:
    tracker, bus, reporter = make(clock)
    reporter._fleet.servers = 5_000  # type: ignore[misc]
    for n in range(500):
        tracker.record(f"k{n}", 20)
    await clock.advance(1.0)
    await reporter.run_once()
    (report,) = await bus.receive()
    assert len(report.keys) < 100
    assert sum(heat.writes for heat in report.keys.values()) == pytest.approx(10_000, rel=0.3)


@pytest.mark.parametrize("notice", [b"junk", b"", b"\x93\x00\x01\xc4\x00"])
async def test_a_notice_that_cannot_be_read_is_as_none(clock: ManualClock, notice: bytes) -> None:
    tracker, bus, reporter = make(clock)
    reporter._fleet.notice = notice  # type: ignore[misc]
    tracker.record("k", 100)
    await clock.advance(1.0)
    await reporter.run_once()
    assert (await bus.receive())[0].keys["k"].writes == 100


async def test_a_key_on_the_rise_is_reported_inside_its_window(clock: ManualClock) -> None:
    tracker, bus, reporter = make(clock)
    await clock.advance(0.3)
    tracker.record("k", 900)
    await reporter.run_once()
    (report,) = await bus.receive()
    assert report.keys["k"].writes == 900
    assert not report.final
    assert report.elapsed_s == pytest.approx(0.3)


async def test_about_so_many_keys_fit_into_a_report(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsink.heat.report.KEYS_MAX", 20)
    tracker, bus, reporter = make(clock)
    for n in range(100):
        tracker.record(f"k{n}", 100)
    tracker.record("hot", 5_000)
    await clock.advance(1.0)
    await reporter.run_once()
    (report,) = await bus.receive()
    assert report.keys["hot"].writes == 5_000
    assert 10 <= len(report.keys) <= 35
    assert report.tau > 400


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
    await clock.advance(4.0)
    await reporter.run_once()
    (report,) = await bus.receive()
    assert list(report.keys) == ["k"]
    assert report.window == int(start_s / 4.0 - reporter._phase)
    assert report.elapsed_s == pytest.approx(clock.now_s() - start_s)


async def test_other_settings_leave_the_running_window_alone(clock: ManualClock) -> None:
    tracker, bus, reporter = make(clock)
    tracker.record("k", 50)
    reporter.adopt(ReportSettings(floor_share=0.05))
    await clock.advance(1.0)
    await reporter.run_once()
    (report,) = await bus.receive()
    assert list(report.keys) == ["k"]


async def test_a_flush_reports_the_running_window_once(clock: ManualClock) -> None:
    """A frozen process reports before it returns, for a whole window, and what follows later."""
    tracker, bus, reporter = make(clock)
    await clock.advance(1.0)
    await reporter.run_once()
    await bus.receive()
    tracker.record("hot", 500)
    await clock.advance(0.1)
    await reporter.flush()
    (report,) = await bus.receive()
    assert report.final
    assert report.keys["hot"].writes == 500
    assert report.elapsed_s == pytest.approx(SETTINGS.window_s)
    tracker.record("hot", 70)
    await reporter.flush()
    assert await bus.receive() == []
    await clock.advance(1.0)
    await reporter.flush()
    (later,) = await bus.receive()
    assert later.keys["hot"].writes == 70
    assert later.window > report.window


async def test_counts_after_a_flush_go_with_the_next_window(clock: ManualClock) -> None:
    tracker, bus, reporter = make(clock)
    await clock.advance(1.0)
    await reporter.run_once()
    await bus.receive()
    await reporter.flush()
    tracker.record("hot", 70)
    for _ in range(3):
        await clock.advance(0.9)
        await reporter.run_once()
    reports = await bus.receive()
    assert sum(one.keys["hot"].writes for one in reports if one.final and "hot" in one.keys) == 70
    windows = [one.window for one in reports if one.final]
    assert windows == sorted(set(windows))
