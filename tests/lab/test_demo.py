"""The demo: its traffic, a run on virtual time, the page, and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import cache
from math import ceil
from pathlib import Path
from random import Random
from typing import Any, cast

import httpx
import pytest
from click.testing import CliRunner

from heatsink import __version__
from heatsink.cli import main
from heatsink.errors import Closed, InvalidSetting
from heatsink.lab.demo import stage as stage_module
from heatsink.lab.demo.act import ActVerdict, Offer, Outcome
from heatsink.lab.demo.acts import ACTS, likes
from heatsink.lab.demo.acts.chat import (
    ALL_OFFERED,
    ChatAct,
    ChatNow,
    ChatVerdict,
    ReadBack,
    Recovery,
    reach_verdict,
)
from heatsink.lab.demo.calibration import calibrated, fitted
from heatsink.lab.demo.headless import worst
from heatsink.lab.demo.lanes import LaneMeter, Totals
from heatsink.lab.demo.page import Front, make_site, serve
from heatsink.lab.demo.stage import Stage
from heatsink.lab.demo.traffic import (
    BURST_S_MAX,
    CATCH_UP,
    SHAPES,
    Leg,
    Pacer,
    Traffic,
    TrafficPlan,
    jump,
    ramp,
)
from heatsink.lab.demo.world import DemoWorld
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.connections import ConnectionLimits, listen
from heatsink.server.process import ServeSettings, running_app
from heatsink.server.running import Ending
from heatsink.server.shell import Endpoint
from heatsink.testing import ManualClock, SkewedClock, run_on_virtual_time
from tests.raw_http import hang_up, open_line

from .demo_world import memory_world, play

ORIGIN = {"origin": "http://127.0.0.1"}
PATIENCE_S = 60.0
SIZED = ["demo", "--peak", "400"]  # a chosen size needs no calibration


def burst(peak: float) -> Traffic:
    """Two seconds that are too much for one partition."""
    return Traffic((Leg("calm", 0.5, peak / 20, peak / 20), Leg("burst", 1.5, peak, peak)))


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in SHAPES:
        monkeypatch.setitem(SHAPES, shape, burst)


@cache
def run_virtually(plan: TrafficPlan) -> tuple[ChatVerdict, list[ChatNow]]:
    verdict, told = play(ChatAct(), plan)
    assert isinstance(verdict, ChatVerdict)
    return verdict, cast("list[ChatNow]", told)


# --- traffic


@pytest.mark.parametrize("peak", [100, 400, 4_000, 20_000])
def test_the_ramp_rises_by_at_most_a_fifth_a_second(peak: int) -> None:
    traffic = ramp(peak)
    seconds = [tenth / 10 for tenth in range(int(traffic.seconds) * 10)]
    assert all(traffic.rate_at(s + 1) <= 1.2 * traffic.rate_at(s) + 1e-6 for s in seconds)


def test_the_ramp_goes_from_200_to_4000_and_down_to_100() -> None:
    traffic = ramp(4_000)
    rates = [traffic.rate_at(second) for second in range(int(traffic.seconds) + 1)]
    assert [rates[0], max(rates), rates[-1]] == pytest.approx([200, 4_000, 100])
    assert 45 <= traffic.seconds <= 60


def test_the_jump_comes_within_no_time() -> None:
    traffic = jump(4_000)
    assert traffic.jump_s is not None
    assert traffic.rate_at(traffic.jump_s - 0.001) == 200
    assert traffic.rate_at(traffic.jump_s) == 4_000


def test_faster_traffic_is_the_same_in_less_time() -> None:
    slow, fast = jump(400), jump(400).faster(4)
    assert (fast.seconds, fast.jump_s) == (slow.seconds / 4, 1.5)
    assert [fast.rate_at(s / 4) for s in range(30)] == [slow.rate_at(s) for s in range(30)]


async def test_the_pacer_offers_the_rate_and_makes_up_for_a_stall() -> None:
    clock, offered = ManualClock(), list[int]()
    pacer = Pacer(Traffic((Leg("even", 2, 1_000, 1_000),)), clock)
    pacing = asyncio.ensure_future(pacer.run(offered.append))
    await clock.advance(1.0)
    assert sum(offered) == pytest.approx(1_000, abs=11)
    await clock.advance(1.02)
    await pacing
    assert sum(offered) == pytest.approx(2_000, abs=11)


@pytest.mark.parametrize("rate", [3, 90, 110, 150, 199, 1_010])
def test_the_pacer_offers_every_rate_in_full(rate: int) -> None:
    traffic = Traffic((Leg("even", 10, rate, rate),))

    async def offered() -> int:
        pacer = Pacer(traffic, SkewedClock())
        await pacer.run(lambda _: None)
        return pacer.offered

    assert abs(run_on_virtual_time(offered()) - traffic.calls) <= 0.01 * traffic.calls + 1


async def test_the_pacer_makes_up_for_a_stall_without_a_burst() -> None:
    clock, offered = OnceStallingClock(), list[int]()
    pacer = Pacer(Traffic((Leg("even", 2, 1_000, 1_000),)), clock)
    await pacer.run(offered.append)
    assert max(offered) <= ceil(1_000 * CATCH_UP * BURST_S_MAX)
    assert sum(offered) == pytest.approx(2_000, abs=25)


@pytest.mark.parametrize("wrong", [{"shape": "zigzag"}, {"peak": 5}, {"limit": 0}])
def test_a_plan_refuses_what_it_cannot_do(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(wrong))):
        TrafficPlan(**wrong)  # type: ignore[arg-type]


def test_a_meter_reads_rates_since_the_last_reading() -> None:
    clock = ManualClock()
    meter = LaneMeter(clock)
    asyncio.run(clock.advance(2.0))
    for latency_s in (0.001, 0.002, 0.9):
        meter.take("chat#0")
        meter.accept(latency_s)
    meter.refuse("chat", b"id")
    rates = meter.read()
    assert (rates.accepted_s, rates.throttled_s) == (2, 0)  # three and one in two seconds
    assert (rates.p50_ms, rates.p99_ms) == (2, 2)
    assert [heat.name for heat in rates.partitions] == ["chat", "chat#0"]
    assert meter.read().partitions == []


# --- a whole run


@pytest.mark.slow("traffic in real time")
@pytest.mark.full("plain runs play the jump, which is harder")
def test_on_a_ramp_heatsink_keeps_everything_and_the_plain_store_does_not() -> None:
    verdict, told = run_virtually(TrafficPlan("ramp", peak=400, limit=100))
    plain, spread = verdict.plain, verdict.heatsink
    assert verdict.outcome == "held"
    assert spread.totals.offered == spread.totals.accepted == spread.found
    assert verdict.throttled_share < 0.01
    assert plain.totals.dropped > 1_000
    assert plain.totals.throttled > 1_000
    assert plain.lost == plain.duplicated == 0
    assert plain.totals.offered == spread.totals.offered
    buckets = [snapshot.heatsink.spread.buckets for snapshot in told]
    assert max(buckets) >= 4
    assert buckets[0] == buckets[-1] == 1


def test_the_chat_ends_with_why_a_young_table_needs_both() -> None:
    verdict, _ = run_virtually(TrafficPlan("ramp", peak=400, limit=100))
    plain, adaptive, salted, both = (table.throttled_s for table in verdict.young)
    assert plain > adaptive > salted > both == 0
    assert verdict.findings[-1].good
    assert "cannot split one key" in verdict.findings[-1].text


@pytest.mark.slow("traffic in real time")
def test_a_jump_is_spread_within_three_seconds_and_nothing_is_lost() -> None:
    verdict, _ = run_virtually(TrafficPlan("jump", peak=400, limit=100))
    assert verdict.outcome == "held"
    assert verdict.recovery is not None
    assert 0 < verdict.recovery.spread_s <= 3.0


def test_a_run_says_what_happens_in_every_phase() -> None:
    _, told = run_virtually(TrafficPlan("ramp", peak=400, limit=100))
    plain = " ".join(snapshot.narration.plain for snapshot in told)
    spread = " ".join(snapshot.narration.heatsink for snapshot in told)
    for words in ("so none is refused", "The rest is refused", "Calm again"):
        assert words in plain
    for words in ("one partition is enough", "sees the limit coming", "goes back from"):
        assert words in spread


def ended(**counts: int) -> ReadBack:
    totals = Totals(offered=100, accepted=100, throttled=0, dropped=counts.get("dropped", 0))
    return ReadBack(totals, 100, counts.get("lost", 0), counts.get("duplicated", 0))


@pytest.mark.parametrize("fault", ["dropped", "lost", "duplicated"])
def test_the_verdict_is_bad_if_heatsink_fails_in_any_way(fault: str) -> None:
    verdict = reach_verdict(ended(), ended(**{fault: 1}), None)
    assert verdict.outcome == "not_held"
    assert verdict.findings[0].good is False


def test_a_slow_recovery_is_called_one() -> None:
    verdict = reach_verdict(ended(), ended(), Recovery(spread_s=1.2, drained_s=3.4))
    assert [finding.good for finding in verdict.findings] == [True, None, True, False, None]
    assert verdict.outcome == "not_held"


SHORT = Offer("messages", due=54_168, made=15_752)


def test_a_machine_that_offers_too_little_convicts_nobody() -> None:
    verdict = reach_verdict(ended(), ended(dropped=30), Recovery(9.0, 9.0), offer=SHORT)
    assert verdict.outcome == "too_busy"
    assert verdict.line == "This machine was too busy: play again."
    assert {finding.good for finding in verdict.findings} == {None}
    assert "15,752 of 54,168 messages (29%)" in verdict.findings[0].text
    assert any("dropped 30" in finding.text for finding in verdict.findings)


@pytest.mark.parametrize("fault", ["lost", "duplicated"])
def test_no_busy_machine_excuses_acknowledged_data_that_is_wrong(fault: str) -> None:
    verdict = reach_verdict(ended(), ended(**{fault: 1}), None, offer=SHORT)
    assert verdict.outcome == "not_held"
    assert verdict.findings[0].good is False


async def test_a_stalled_machine_offers_less_than_is_due() -> None:
    clock, offered = StallingClock(), list[int]()
    traffic = Traffic((Leg("even", 2, 1_000, 1_000), Leg("rising", 2, 1_000, 2_000)))
    pacer = Pacer(traffic, clock)
    await pacer.run(offered.append)
    assert traffic.calls == pytest.approx(2_000 + 2_885, abs=1)
    assert pacer.offered == sum(offered) < 0.5 * traffic.calls


class OnceStallingClock(ManualClock):
    """The tenth sleep takes 0.15 s longer than asked for."""

    slept = 0

    async def sleep(self, seconds: float) -> None:
        self.slept += 1
        seconds += 0.15 if self.slept == 10 else 0.0
        sleeping = asyncio.ensure_future(super().sleep(seconds))
        await self.advance(seconds)
        await sleeping


class StallingClock(ManualClock):
    """Each sleep takes half a second longer than asked for."""

    async def sleep(self, seconds: float) -> None:
        sleeping = asyncio.ensure_future(super().sleep(seconds + 0.5))
        await self.advance(seconds + 0.5)
        await sleeping


# --- the size


def test_traffic_is_sized_by_what_the_machine_can_offer() -> None:
    fast, slow, slowest = (fitted(TrafficPlan(), calls_s) for calls_s in (99_999, 6_110, 9))
    assert fast == TrafficPlan()
    assert (slow.peak, slow.limit, slow.size) == (1_200, 300, 0.3)
    assert (slow.items, slow.threshold) == (300_000, 240)
    assert (slowest.peak, slowest.limit) == (100, 25)


def test_a_peak_sets_the_limit_and_a_limit_the_peak() -> None:
    plan = TrafficPlan()
    assert (plan.sized(400, None).limit, plan.sized(None, 50).peak) == (100, 200)
    assert plan.sized(400, 1_000).limit == 1_000


def test_a_plan_gets_smaller_until_there_is_too_little_to_show() -> None:
    half = TrafficPlan(peak=400, limit=100).smaller()
    assert half is not None
    assert (half.peak, half.limit, half.size) == (200, 50, 0.5)
    assert half.shape == "ramp"
    assert TrafficPlan(peak=180, limit=100).smaller() is None


async def test_calibration_measures_a_machine_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("heatsink.lab.demo.calibration.MEASURED_S", 0.05)
    plan = await calibrated(TrafficPlan(shape="jump"), SystemClock(), Random(7))
    assert plan.shape == "jump"
    assert 100 <= plan.peak <= 4_000
    assert plan.limit == plan.peak // 4
    assert os.listdir(tmp_path) == []


def test_few_refusals_are_promised_only_of_a_gentle_rise() -> None:
    refused = ReadBack(Totals(100, 100, 50, 0), 100, 0, 0)
    gentle, hasty = (reach_verdict(ended(), refused, None, gentle=g) for g in (True, False))
    assert (gentle.findings[1].good, hasty.findings[1].good) == (False, None)
    assert (gentle.outcome, hasty.outcome) == ("not_held", "held")
    assert gentle.line.startswith("Throttled writes: 50 with Heatsink, 0 without.")


# --- the page


@asynccontextmanager
async def staged(plan: TrafficPlan) -> AsyncIterator[tuple[Stage, httpx.AsyncClient]]:
    """The whole application, asked without a socket."""
    clock = SystemClock()
    async with memory_world(plan, clock, Random(7)) as world:
        stage = Stage(plan)
        stage.enter(world)
        settings = ServeSettings(data=Path())
        async with running_app(world.hs, settings, clock, pages=make_site(stage)) as app:
            asked = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=asked, base_url="http://127.0.0.1") as client:
                yield stage, client
            await stage.close()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with staged(TrafficPlan(peak=400, limit=100)) as (_, client):
        yield client


@pytest.mark.parametrize(
    ("path", "kind", "within"),
    [
        ("/demo", "text/html", "Skip to the act"),
        ("/demo/static/main.js", "text/javascript", "EventSource"),
        ("/demo/static/charts.js", "text/javascript", "look.js"),
        ("/demo/static/demo.css", "text/css", "prefers-color-scheme"),
        *((f"/demo/static/acts/{act.name}.js", "text/javascript", "make()") for act in ACTS),
        ("/static/page.css", "text/css", "prefers-color-scheme"),
        ("/plotly.min.js", "text/javascript", "plotly"),
    ],
)
async def test_the_page_and_its_parts(
    client: httpx.AsyncClient, path: str, kind: str, within: str
) -> None:
    answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    assert within in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy


async def test_the_dashboard_of_the_same_heatsink_is_beside_it(client: httpx.AsyncClient) -> None:
    overview = (await client.get("/")).text
    assert '<a href="/demo">Demo</a>' in overview
    assert (await client.get("/v1/recent")).status_code == 200
    demo = (await client.get("/demo")).text
    for tab in ("/", "/keys", "/bulk", "/reads", "/timelines", "/registry"):
        assert f'<a href="{tab}">' in demo


async def test_the_page_asks_nobody_else_and_has_no_inline_script(
    client: httpx.AsyncClient,
) -> None:
    page = (await client.get("/demo")).text
    assert "http:" not in page
    assert "https:" not in page
    assert "<script>" not in page
    assert "onclick" not in page


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {}, 403),
        ("", {"origin": "http://elsewhere.example"}, 403),
        ("?shape=zigzag", ORIGIN, 400),
        ("?act=7", ORIGIN, 400),
        ("", {**ORIGIN, "host": "elsewhere.example"}, 421),
    ],
)
async def test_only_the_page_itself_may_start_a_run(
    client: httpx.AsyncClient, query: str, headers: dict[str, str], status: int
) -> None:
    answer = await client.post(f"/demo/run{query}", headers=headers)
    assert answer.status_code == status


@pytest.mark.usefixtures("short_runs")
async def test_a_second_run_of_an_act_has_to_wait_for_the_first(client: httpx.AsyncClient) -> None:
    assert (await client.post("/demo/run?shape=jump", headers=ORIGIN)).status_code == 204
    assert (await client.post("/demo/run", headers=ORIGIN)).status_code == 409


LIMITS = ConnectionLimits()


@asynccontextmanager
async def serving(
    plan: TrafficPlan, limits: ConnectionLimits = LIMITS
) -> AsyncIterator[tuple[Stage, httpx.AsyncClient]]:
    (listener,) = listen("127.0.0.1", 0)
    clock, endpoint = SystemClock(), Endpoint("127.0.0.1", 0, limits=limits)
    async with memory_world(plan, clock, Random(7)) as world:
        stage = Stage(plan)
        stage.enter(world)
        front = Front(stage)
        async with front.showing(world):
            server = endpoint.server(front, front.end_streams)
            running = asyncio.ensure_future(server.serve(sockets=[listener]))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
                try:
                    yield stage, client
                finally:
                    server.end()
                    await running
                    await stage.close()


@pytest.mark.server("it listens")
async def test_half_sent_requests_keep_no_viewer_out() -> None:
    async with serving(
        TrafficPlan(peak=200, limit=500), ConnectionLimits(connections=20, headers=20)
    ) as (
        _,
        client,
    ):
        assert client.base_url.port is not None
        crowd = [await open_line(client.base_url.port) for _ in range(60)]
        for line in crowd:
            line.writer.write(b"GET /demo HTTP/1.1\r\nhost: localhost\r\nx: ")
        assert (await client.get("/demo")).status_code == 200
        many = {f"x-{number}": "y" for number in range(30)}
        assert (await client.get("/demo", headers=many)).status_code == 431
        wrong = await client.get("/demo", headers={"host": "evil.example"})
        assert wrong.status_code == 421
        await hang_up(*crowd)


async def events(client: httpx.AsyncClient) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("GET", "/demo/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line:
                yield json.loads(line.removeprefix("data: "))


@pytest.mark.server("it listens")
@pytest.mark.usefixtures("short_runs")
async def test_a_viewer_who_comes_late_sees_the_run_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_module, "EVERY_S", 0.2)
    async with serving(TrafficPlan(peak=200, limit=500)) as (stage, client):
        first = [event async for event in until(client, "snapshot", 3)]
        late = [event async for event in until(client, "verdict", 1)]
        assert late[: len(first)] == first
        assert [kind(event) for event in late[:2]] == ["hello", "start"]
        stage.end()
        after = [event async for event in events(client)]
        assert after[:-1] == late
        assert kind(after[-1]) == "stop"


def kind(told: dict[str, Any]) -> str:
    return str(told["event"]["type"])


async def until(
    client: httpx.AsyncClient, wanted: str, times: int
) -> AsyncIterator[dict[str, Any]]:
    """The events so far and on, up to the n-th of a kind."""
    async with aclosing(events(client)) as following:  # type: ignore[type-var]
        async for event in following:
            yield event
            times -= kind(event) == wanted
            if not times:
                return


@pytest.mark.usefixtures("short_runs")
async def test_stepping_on_breaks_the_run_off_and_keeps_what_was_shown() -> None:
    async with staged(TrafficPlan(peak=400, limit=100, brief=True)) as (stage, _):
        told, acts = [], []
        async for event in stage.follow():
            told.append(json.loads(event))
            acts.append((told[-1]["act"], kind(told[-1])))
            if acts[-1] == ("chat", "start"):
                assert stage.start("likes")
            if acts.count(("likes", "snapshot")) == 2:
                break
        assert acts[:3] == [("", "hello"), ("chat", "start"), ("likes", "start")]
        assert ("chat", "broken") in acts
        assert not stage.start("likes")
        again = []
        async for event in stage.follow():
            again.append(json.loads(event))
            if kind(again[-1]) == "snapshot":
                break
        assert again[0]["event"]["playing"] == "likes"
        assert again[0]["event"]["played"] == ["likes"]
        assert [kind(event) for event in again[1:3]] == ["start", "broken"]


@pytest.mark.usefixtures("short_runs")
async def test_whoever_runs_through_the_acts_leaves_none_of_them_playing() -> None:
    async with staged(TrafficPlan(peak=400, limit=100, brief=True)) as (stage, _):
        for name in ("chat", "likes", "product", "chat"):
            assert stage.start(name)
            await asyncio.sleep(0)
        told = []
        async for event in stage.follow():
            told.append(json.loads(event))
            if (told[-1]["act"], kind(told[-1])) == ("chat", "snapshot"):
                break
        broken = {event["act"] for event in told if kind(event) == "broken"}
        assert broken == {"likes", "product"}
        assert not stage.start("chat")


@pytest.mark.server("it listens")
@pytest.mark.usefixtures("short_runs")
async def test_a_run_that_was_too_busy_is_played_smaller_in_a_world_of_its_own() -> None:
    opened: list[TrafficPlan] = []

    @asynccontextmanager
    async def worlds(plan: TrafficPlan) -> AsyncIterator[DemoWorld]:
        opened.append(plan)
        async with memory_world(plan, SystemClock(), Random(7)) as world:
            yield world

    (listener,) = listen("127.0.0.1", 0)
    stage, endpoint = Stage(TrafficPlan(peak=400, limit=100)), Endpoint("127.0.0.1", 0)
    starting = asyncio.current_task()
    assert starting is not None
    ending, started = Ending(starting), asyncio.Event()
    run = serve(worlds, stage, endpoint, [listener], ending, started.set)
    serving = asyncio.ensure_future(run)
    await started.wait()
    plans = []
    async with aclosing(stage.follow()) as following:  # type: ignore[type-var]
        async for event in following:
            told = json.loads(event)
            if kind(told) == "start":
                plans.append(told["event"]["plan"]["limit"])
                assert f" {plans[-1]} " in " ".join(told["event"]["about"]["sentences"])
            if kind(told) == "snapshot":
                if len(plans) == 1:
                    assert stage.start("likes", smaller=True)
                if told["act"] == "likes":
                    break
    ending.end(signal.SIGTERM)
    await serving
    assert plans == [100, 50]
    assert [plan.limit for plan in opened] == [100, 50]


async def test_requests_wait_while_the_world_changes() -> None:
    plan, clock = TrafficPlan(peak=400, limit=100), SystemClock()
    front = Front(Stage(plan))
    asked = httpx.ASGITransport(front)
    async with httpx.AsyncClient(transport=asked, base_url="http://127.0.0.1") as client:
        early = asyncio.ensure_future(client.get("/demo"))
        await asyncio.sleep(0)
        async with memory_world(plan, clock, Random(7)) as world, front.showing(world):
            assert (await early).status_code == 200


@pytest.mark.usefixtures("short_runs")
async def test_a_run_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> ActVerdict:
        raise Closed("the disk went away")

    monkeypatch.setattr(ChatAct, "run", fail)
    async with staged(TrafficPlan(peak=400, limit=100)) as (stage, _):
        told = []
        async for event in stage.follow():
            told.append(json.loads(event))
            if kind(told[-1]) == "failed":
                await stage.close()
        assert [kind(event) for event in told] == ["hello", "start", "failed", "stop"]
        assert told[2]["event"]["text"] == "the disk went away"
        assert not stage.start("chat")


# --- the command line


@pytest.mark.slow("traffic in real time")
@pytest.mark.usefixtures("short_runs")
def test_headless_prints_a_table_and_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    result = CliRunner().invoke(main, ["demo", "--headless", "--peak", "400", "--brief"])
    assert result.exit_code == 0, result.output
    assert "hot partition" in " ".join(result.output.split())
    assert "Reading them back found each exactly once." in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full("plain runs print the table, which reads the same events")
@pytest.mark.slow("traffic in real time")
@pytest.mark.usefixtures("short_runs")
def test_json_prints_one_object_per_line() -> None:
    result = CliRunner().invoke(main, ["demo", "--json", "--peak", "200", "--limit", "500"])
    assert result.exit_code == 0, result.output
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["type"] for event in told][-2:] == ["snapshot", "verdict"]
    assert told[-1]["heatsink"]["lost"] == told[-1]["heatsink"]["duplicated"] == 0


def test_headless_plays_another_act_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likes, "traffic_of", lambda plan: burst(plan.peak))
    flags = ["--headless", "--act", "2", "--peak", "200", "--limit", "500"]
    result = CliRunner().invoke(main, ["demo", *flags])
    assert result.exit_code == 0, result.output
    assert "Act 2 of 6: A like counter" in result.output
    assert "its number is exact" in result.output
    assert "the plain counter" in result.output


def test_all_acts_are_played_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    async def perform(act: Any, *_: object) -> ActVerdict:
        played.append(act.name)
        return ActVerdict("so it was", "not_held" if act.name == "bulk" else "held", [])

    monkeypatch.setattr("heatsink.lab.demo.headless.perform", perform)
    assert CliRunner().invoke(main, [*SIZED, "--json", "--act", "all"]).exit_code == 1
    assert CliRunner().invoke(main, [*SIZED, "--headless"]).exit_code == 0
    assert played == [*(act.name for act in ACTS), "chat"]


def test_a_failed_run_ends_with_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lossy(*_: object) -> ActVerdict:
        return reach_verdict(ended(), ended(lost=1), None)

    monkeypatch.setattr("heatsink.lab.demo.headless.perform", lossy)
    result = CliRunner().invoke(main, [*SIZED, "--headless"])
    assert result.exit_code == 1
    assert "Did not hold. Throttled writes" in result.output


def test_a_busy_machine_has_words_and_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def busy(*_: object) -> ActVerdict:
        return reach_verdict(ended(), ended(dropped=1), None, offer=SHORT)

    monkeypatch.setattr("heatsink.lab.demo.headless.perform", busy)
    result = CliRunner().invoke(main, [*SIZED, "--headless"])
    assert result.exit_code == 3
    assert "Too busy. This machine was too busy: play again." in result.output
    assert "--peak 200 --limit 50" in result.output
    assert "✗" not in result.output


def test_without_a_chosen_size_a_busy_machine_plays_again_with_half_the_traffic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peaks: list[int] = []

    async def sized(plan: TrafficPlan, *_: object) -> TrafficPlan:
        return plan.sized(4_000, None)

    async def perform(_: object, plan: TrafficPlan, *__: object) -> ActVerdict:
        peaks.append(plan.peak)
        offer = SHORT if plan.peak > 1_000 else ALL_OFFERED
        return reach_verdict(ended(), ended(), None, offer=offer)

    monkeypatch.setattr("heatsink.lab.demo.command.calibrated", sized)
    monkeypatch.setattr("heatsink.lab.demo.headless.perform", perform)
    result = CliRunner().invoke(main, ["demo", "--headless"])
    assert (result.exit_code, peaks) == (0, [4_000, 2_000, 1_000]), result.output
    assert "too busy: playing again with half the traffic." in result.output
    assert CliRunner().invoke(main, ["demo", "--json", "--act", "all"]).exit_code == 0
    assert peaks[3:] == [4_000, 2_000] + [1_000] * len(ACTS)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["held", "held"], "held"),
        (["too_busy", "held"], "too_busy"),
        (["not_held", "too_busy", "held"], "not_held"),
    ],
)
def test_the_worst_outcome_is_that_of_all_acts(outcomes: list[Outcome], expected: str) -> None:
    assert worst(outcomes) == expected


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Closed("no more"), 1, "heatsink: no more\n"),
        (ExceptionGroup("tasks", [Closed("no more")]), 1, "heatsink: no more\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_one_line_and_ctrl_c_is_quiet(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    async def fail(*_: object) -> ActVerdict:
        raise error

    monkeypatch.setattr("heatsink.lab.demo.headless.perform", fail)
    result = CliRunner().invoke(main, [*SIZED, "--json"])
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", said)


@pytest.mark.server("it listens")
def test_a_busy_port_names_the_way_out() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = CliRunner().invoke(main, ["demo", "--port", str(port)])
    assert result.exit_code == 1
    assert result.stderr == f"heatsink: port {port} is in use: choose another with --port\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 0),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.full("a second process and its page")),
    ],
)
def test_the_page_ends_by_a_signal_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = [sys.executable, "-m", "heatsink", *SIZED, "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        with httpx.stream("GET", f"{url}/events", timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()
            assert '"hello"' in next(lines)
            assert len(list(tmp_path.iterdir())) == 1
            process.send_signal(number)
            assert '"stop"' in "".join(lines)
    assert process.returncode == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["demo", "--headless", "--peak", "7"], 2, "Invalid value for '--peak'"),
        (["demo", "--headless", "--limit", "0"], 2, "Invalid value for '--limit'"),
        (["demo", "--headless", "--shape", "zigzag"], 2, "'zigzag' is not one of"),
        (["demo", "--port", "70000"], 2, "--port"),
        (["demo", "--headless", "--act", "7"], 2, "'7' is not one of"),
        (["melt"], 2, "No such command 'melt'"),
    ],
)
def test_bad_input_is_refused_in_words(arguments: list[str], code: int, said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_it_tells_its_version() -> None:
    assert __version__ in CliRunner().invoke(main, ["--version"]).output
