"""The demo's page in a real browser: stepping, replaying, verdicts, and every act in every look."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
import pytest
from playwright.sync_api import Page, ViewportSize, expect

from heatsink.lab.demo.act import Offer
from heatsink.lab.demo.acts import ACTS, NAMES
from heatsink.lab.demo.acts.chat import ChatAct, ReadBack, reach_verdict
from heatsink.lab.demo.lanes import Totals
from heatsink.lab.demo.stage import Event, Hello, Start, Told
from heatsink.lab.demo.traffic import TrafficPlan

from .conftest import ROOT, SHOTS, Visit, expect_to_fit
from .test_screenshots import DRAWN_MS

pytestmark = pytest.mark.timeout(240)
TITLES = [act.about(TrafficPlan(brief=True)).title for act in ACTS]
VERDICT_MS = 60_000
PHONE: ViewportSize = {"width": 390, "height": 844}
WIDE: ViewportSize = {"width": 1280, "height": 900}
LOOKS: dict[str, tuple[Literal["light", "dark"], ViewportSize]] = {
    "light": ("light", WIDE),
    "dark": ("dark", WIDE),
    "phone": ("light", PHONE),
    "phone-dark": ("dark", PHONE),
}
DRAWN = "document.querySelectorAll('#picture .chart .main-svg').length"
ACTED = pytest.mark.full("plays acts in a browser for many seconds")
AS_EVENTS = {"content-type": "text/event-stream"}
EDGE = "(one) => getComputedStyle(one).borderLeftColor"
INK = "(one) => getComputedStyle(one).color"
POINTS = "#picture path.js-line, #picture .point path"


@contextmanager
def running_demo() -> Iterator[str]:
    """`heatsink demo` as a process of its own; its address, as it says it."""
    command = [sys.executable, "-m", "heatsink", "demo", "--brief", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[1]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """Several tests play in it, in any order."""
    with running_demo() as url:
        yield url


@pytest.fixture
def new_demo() -> Iterator[str]:
    with running_demo() as url:
        yield url


def shows(page: Page, act: str, snapshots: int = 1) -> None:
    """A page that is only beginning to load has no body yet."""
    page.wait_for_function(
        "([act, least]) => document.body?.dataset.act === act"
        " && Number(document.body.dataset.snapshots) >= least",
        arg=[act, snapshots],
    )


@ACTED
def test_a_newcomer_steps_through_the_acts(new_demo: str, visit: Visit) -> None:
    page = visit(new_demo)
    shows(page, "chat", 2)
    expect(page.locator("h1")).to_contain_text("Act 1 of 6")
    expect(page.locator("#story p")).to_have_count(3)
    expect(page.locator("#look")).to_contain_text("Look at the red")
    expect(page.get_by_role("button", name="← Previous")).to_be_disabled()
    expect(page.get_by_role("button", name="Play the slow rise")).to_be_disabled()
    page.wait_for_function(f"() => {DRAWN} >= 6")
    page.get_by_role("button", name=f"Next: {TITLES[1]} →").click()
    shows(page, "likes", 2)
    expect(page).to_have_url(re.compile("#likes$"))
    page.keyboard.press("ArrowRight")
    shows(page, "product", 2)
    page.get_by_role("button", name="Act 2: A like counter").click()
    shows(page, "likes")
    page.go_back()
    shows(page, "product")
    page.reload()
    shows(page, "product", 2)


@ACTED
def test_an_act_ends_with_a_verdict_stays_and_is_played_again(demo: str, visit: Visit) -> None:
    page = visit(f"{demo}#product")
    line = page.locator("#line")
    expect(line).to_contain_text("loads with hs.reads,", timeout=VERDICT_MS)
    said = line.text_content()
    chart = page.locator("#picture .chart.tall").first
    label, plot = chart.locator(".annotation-text").bounding_box(), chart.bounding_box()
    assert label is not None
    assert plot is not None
    assert label["x"] < plot["x"] + plot["width"] / 4  # where no line runs
    expect(page.locator("#findings li")).to_have_count(3)
    expect(page.locator("#verdict")).to_have_attribute("data-outcome", "held")
    expect(page.locator("#outcome")).to_have_text("The verdict: held")
    expect(page.get_by_role("button", name="Act 3: A product page, held")).to_be_visible()
    expect(page.locator("#smaller")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    shows(page, "celebrity")
    expect(page.locator("#verdict")).to_be_hidden()
    page.keyboard.press("ArrowLeft")
    shows(page, "product")
    expect(line).to_have_text(said or "")
    page.get_by_role("button", name="Play it again").click()
    expect(page.locator("#verdict")).to_be_hidden()
    shows(page, "product", 1)
    expect(page.get_by_role("button", name="Play it again")).to_be_disabled()


def too_busy() -> str:
    """The events of a run on a machine that offered 29 % of the messages."""
    plan, act = TrafficPlan(peak=400, limit=100), ChatAct()
    offer = Offer("messages", due=54_168, made=15_752)
    totals = Totals(offered=15_752, accepted=13_954, dropped=1_798)
    ended = ReadBack(totals, 13_954, 0, 0)
    events: list[tuple[str, Event]] = [
        ("", Hello([act.about(plan) for act in ACTS], act.name, [act.name])),
        (act.name, Start(plan, act.seconds(plan), act.about(plan), shrinks=True)),
        (act.name, reach_verdict(ended, ended, None, offer=offer)),
    ]
    told = (msgspec.json.encode(Told(*each)).decode() for each in events)
    return "".join(f"data: {each}\n\n" for each in told)


@pytest.mark.full("plain runs test the verdict without a browser: tests/lab")
def test_a_busy_machine_gets_a_grey_verdict_and_a_smaller_run(demo: str, visit: Visit) -> None:
    page = visit(demo)
    page.route("**/demo/events", lambda route: route.fulfill(body=too_busy(), headers=AS_EVENTS))
    page.reload()
    verdict, button = page.locator("#verdict"), page.locator("#smaller")
    expect(page.locator("#outcome")).to_have_text("The verdict: too busy")
    expect(page.locator("#line")).to_have_text("This machine was too busy: play again.")
    expect(page.get_by_role("button", name="Act 1: A hot chat, too busy")).to_be_visible()
    expect(page.locator("#findings li.bad")).to_have_count(0)
    expect(page.locator("#findings")).to_contain_text("15,752 of 54,168 messages (29%)")
    assert verdict.evaluate(EDGE) == page.locator("#small-print").evaluate(INK)  # grey
    page.route("**/demo/run?*", lambda route: route.fulfill(status=204))
    with page.expect_request("**/demo/run?act=chat&shape=ramp&smaller=1"):
        button.click()


@ACTED
def test_bars_say_when_they_are_of_the_peak(demo: str, visit: Visit) -> None:
    page = visit(f"{demo}#likes")
    shows(page, "likes", 2)
    expect(page.get_by_text("the shards of one counter", exact=True)).to_be_visible()
    peak = page.get_by_text("at the peak: the shards of one counter", exact=True)
    expect(peak).to_be_visible(timeout=VERDICT_MS)


@ACTED
def test_the_dashboard_is_a_click_away_and_leads_back(demo: str, visit: Visit) -> None:
    page = visit(f"{demo}#chat")
    shows(page, "chat", 2)
    page.locator("#dashboard a").click()
    page.get_by_role("button", name="chat-").first.wait_for()
    page.get_by_role("link", name="Demo").click()
    shows(page, "chat", 1)


@ACTED
@pytest.mark.parametrize("act", NAMES)
def test_every_act_fits_and_is_drawn_in_every_look(demo: str, visit: Visit, act: str) -> None:
    page = visit(f"{demo}#{act}")
    shows(page, act, 4)
    for look, (scheme, size) in LOOKS.items():
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        page.wait_for_timeout(DRAWN_MS)
        expect(page.locator(POINTS).nth(1)).to_be_attached()  # not while a chart is drawn anew
        page.screenshot(path=SHOTS / f"demo-{act}-{look}.png", full_page=True)
        expect_to_fit(page, act)


LABELS = """async (buckets) => {
  const { partitions } = await import("/demo/static/charts.js");
  const names = ["chat-1", ...Array.from({ length: buckets }, (_, bucket) => `chat-1#${bucket}`)];
  const element = document.querySelector("#picture .chart");
  partitions(element, names, [], 100);
  await new Promise(requestAnimationFrame);
  const labels = [...element.querySelectorAll(".xtick text")];
  const boxes = labels.map((one) => one.getBoundingClientRect());
  return boxes.slice(1).map((box, place) => box.left - boxes[place].right);
}"""


@pytest.mark.full("a browser per look: plain runs have one")
def test_labels_of_buckets_have_a_gap_between_them_on_a_phone(demo: str, visit: Visit) -> None:
    page = visit(demo, viewport=PHONE)
    page.wait_for_function(f"() => {DRAWN} >= 1")
    for buckets in (1, 2, 4, 8, 16, 64):
        assert min(page.evaluate(LABELS, buckets), default=99) > 8, buckets
