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
from heatsink.lab.demo.act import ActVerdict
from heatsink.lab.demo.acts import ACTS, likes
from heatsink.lab.demo.acts.chat import (
    ChatAct,
    ChatNow,
    ChatVerdict,
    ReadBack,
    Recovery,
    reach_verdict,
)
from heatsink.lab.demo.lanes import LaneMeter, Totals
from heatsink.lab.demo.page import make_server, make_site
from heatsink.lab.demo.stage import Stage
from heatsink.lab.demo.traffic import SHAPES, Leg, Pacer, Traffic, TrafficPlan, jump, ramp
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.connections import ConnectionLimits, listen
from heatsink.server.process import ServeSettings, running_app
from heatsink.server.shell import Endpoint
from heatsink.testing import ManualClock
from tests.raw_http import hang_up, open_line

from .demo_world import memory_world, play

ORIGIN = {"origin": "http://127.0.0.1"}
PATIENCE_S = 60.0


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
def test_on_a_ramp_heatsink_keeps_everything_and_the_plain_store_does_not() -> None:
    verdict, told = run_virtually(TrafficPlan("ramp", peak=400, limit=100))
    plain, spread = verdict.plain, verdict.heatsink
    assert verdict.kept_everything
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
    assert verdict.kept_everything
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
    assert not verdict.kept_everything
    assert verdict.findings[0].good is False


def test_a_slow_recovery_is_called_one() -> None:
    verdict = reach_verdict(ended(), ended(), Recovery(spread_s=1.2, drained_s=3.4))
    assert [finding.good for finding in verdict.findings] == [True, None, True, False, None]


def test_few_refusals_are_promised_only_of_a_gentle_rise() -> None:
    refused = ReadBack(Totals(100, 100, 50, 0), 100, 0, 0)
    gentle, hasty = (reach_verdict(ended(), refused, None, gentle=g) for g in (True, False))
    assert (gentle.findings[1].good, hasty.findings[1].good) == (False, None)
    assert gentle.kept_everything
    assert gentle.line.startswith("Throttled writes: 50 with Heatsink, 0 without.")


# --- the page


@asynccontextmanager
async def staged(plan: TrafficPlan) -> AsyncIterator[tuple[Stage, httpx.AsyncClient]]:
    """The whole application, asked without a socket."""
    clock = SystemClock()
    async with memory_world(plan, clock, Random(7)) as world:
        stage = Stage(world, plan)
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
        ("/demo/static/charts.js", "text/javascript", "Plotly.react"),
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
        ("?act=6", ORIGIN, 400),
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
        stage = Stage(world, plan)
        settings = ServeSettings(data=Path())
        async with running_app(world.hs, settings, clock, pages=make_site(stage)) as app:
            server = make_server(app, stage, endpoint)
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
    result = CliRunner().invoke(main, ["demo", "--headless", "--peak", "400", "--limit", "100"])
    assert result.exit_code == 0, result.output
    assert "hot partition" in result.output
    assert "Reading them back found each exactly once." in result.output
    assert list(tmp_path.iterdir()) == []


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
    assert "Act 2 of 5: A like counter" in result.output
    assert "its number is exact" in result.output
    assert "the plain counter" in result.output


def test_all_acts_are_played_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    async def perform(act: Any, *_: object) -> ActVerdict:
        played.append(act.name)
        return ActVerdict("so it was", act.name != "bulk", [])

    monkeypatch.setattr("heatsink.lab.demo.headless.perform", perform)
    assert CliRunner().invoke(main, ["demo", "--json", "--act", "all"]).exit_code == 1
    assert CliRunner().invoke(main, ["demo", "--headless"]).exit_code == 0
    assert played == [*(act.name for act in ACTS), "chat"]


def test_a_failed_run_ends_with_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lossy(*_: object) -> ActVerdict:
        return reach_verdict(ended(), ended(lost=1), None)

    monkeypatch.setattr("heatsink.lab.demo.headless.perform", lossy)
    assert CliRunner().invoke(main, ["demo", "--headless"]).exit_code == 1


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
    result = CliRunner().invoke(main, ["demo", "--json"])
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_page_ends_by_a_signal_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = [sys.executable, "-m", "heatsink", "demo", "--port", "0"]
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
        (["demo", "--headless", "--act", "6"], 2, "'6' is not one of"),
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
