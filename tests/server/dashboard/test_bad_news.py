"""What the dashboard looks like when something is wrong: refused writes, a server that is gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest
from playwright.sync_api import expect

from tests.planted import FULL
from tests.processes import serving

from .conftest import SHOTS, Visit
from .test_screenshots import LOOKS

HOT = "conv_launch"
LIMIT = 300  # units a second of a partition: anybody can overload that
BODY = "x" * 200_000  # two hundred units
PEOPLE = 4
SEEN = tuple(LOOKS) if FULL else ("light",)
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def overloaded(tmp_path: Path) -> Iterator[Overloaded]:
    """A server on the engine, whose few partitions take far less than everybody writes."""
    with ExitStack() as outer:
        flags = ("--write-limit", str(LIMIT), "--burst-seconds", "1", "--partitions", "4")
        engine = outer.enter_context(serving(tmp_path, *flags, command="dynamo"))
        url = f"dynamodb://messages?endpoint={engine.url}"
        command = [sys.executable, "-m", "heatsink", "table", "create", url]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        crowd = outer.enter_context(ExitStack())
        server = outer.enter_context(ExitStack())
        served = server.enter_context(serving(tmp_path, "--store", url))
        stop = Event()
        for _ in range(PEOPLE):
            each = Thread(target=_insist, args=(served.url, stop))
            each.start()
            crowd.callback(each.join)
        crowd.callback(stop.set)
        yield Overloaded(served.url, server.close)


def _insist(url: str, stop: Event) -> None:
    with httpx.Client(base_url=url, timeout=30) as api:
        while not stop.wait(0.1):
            with suppress(httpx.HTTPError):
                api.post(f"/v1/conversations/{HOT}/messages", json={"body": BODY})


@dataclass(frozen=True)
class Overloaded:
    url: str
    stop: Callable[[], None]


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_refused_writes_are_red_and_a_server_that_is_gone_is_said_so(
    overloaded: Overloaded, visit: Visit
) -> None:
    """Then the figures stay, under a line that says how old they are and what to do."""
    url = overloaded.url
    pages = {look: visit(url, allow=True, **LOOKS[look]) for look in SEEN}
    for look, page in pages.items():
        red = page.locator("dd.bad")
        expect(red.first).to_be_visible(timeout=60_000)
        expect(page.locator(".says .bad").first).to_contain_text("throttled")
        page.screenshot(path=SHOTS / f"throttled-{look}.png", full_page=True)
    light = pages["light"]
    light.get_by_role("link", name=HOT).click()
    expect(light.locator("td.bad").first).to_be_visible()
    expect(light.get_by_text("throttled/s on")).to_be_visible()
    light.screenshot(path=SHOTS / "throttled-keys.png", full_page=True)
    light.get_by_role("link", name="Bulk", exact=True).click()
    expect(light.get_by_text("This server has no queue")).to_be_visible()
    expect(light.get_by_text("The queue now")).to_be_hidden()
    light.screenshot(path=SHOTS / "no-queue.png", full_page=True)
    light.get_by_role("link", name="Overview", exact=True).click()
    overloaded.stop()
    for look, page in pages.items():
        expect(page.get_by_role("alert")).to_contain_text("Disconnected")
        page.screenshot(path=SHOTS / f"disconnected-{look}.png", full_page=True)
