"""`heatsink lab scaling --live`: the experiment on a real Redis, beside its simulation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from heatsink.cli import main
from heatsink.lab import live
from heatsink.lab.scaling import WORKERS, ScalingSetup
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisServer
from tests.servers import real

SPEED = 20.0


async def test_the_fast_clock_goes_faster_and_sleeps_shorter() -> None:
    clock = ManualClock()
    fast = live.FastClock(10.0, clock)
    began_s, wall_s = fast.monotonic_s(), fast.now_s()
    asleep = asyncio.ensure_future(fast.sleep(25.0))
    await clock.advance(2.0)
    assert not asleep.done()
    await clock.advance(1.0)
    assert asleep.done()
    assert fast.monotonic_s() - began_s == pytest.approx(30)
    assert fast.now_s() - wall_s == pytest.approx(30)


@pytest.mark.parametrize(("policy", "grows"), [("littles_law", True), ("", False)])
async def test_a_live_run_scales_as_its_policy_does(policy: str, grows: bool) -> None:
    plan = ScalingSetup(1_000 if grows else 100)
    with real(RedisServer) as redis:
        run = await live.drive_live(policy, plan, redis.url, SPEED)
    assert (run.peak > WORKERS) is grows
    assert run.worker_hours > 0
    assert run.moments[-1].done <= plan.items
    assert run.took_s >= run.moments[-1].time_s


@pytest.mark.full("all policies, on virtual time and on Redis")
def test_the_command_compares_both(tmp_path: Path) -> None:
    words = ["lab", "scaling", "--live", "--items", "1000", "--json", "--speed", f"{SPEED:g}"]
    result = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    report = msgspec.json.decode(result.output)
    assert [row[0] for row in report["tables"][0]["rows"]][:2] == [
        "8 fixed workers",
        "Little's law",
    ]
    assert "difference" in report["tables"][0]["columns"]
    assert "simulated and live" in (tmp_path / "page.html").read_text()
