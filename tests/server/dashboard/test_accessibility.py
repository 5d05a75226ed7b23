"""No page of dashboard, API, demo, engine, plan and lab hinders anybody, as axe-core sees it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner
from playwright.sync_api import Page, expect

from heatsink.cli import main
from heatsink.lab.demo.acts import NAMES
from tests.accessibility import violations
from tests.emulator.contract.conftest import client_of
from tests.emulator.contract.engines import ours
from tests.planted import FULL
from tests.processes import serving

from .conftest import SHOTS, Site, Visit
from .test_clicks import EMPTY, TOKEN, row_of
from .test_demo import running_demo, shows
from .test_engine_page import BUSY, create
from .test_screenshots import PAGES

pytestmark = pytest.mark.timeout(400)
OTHER_LOOKS = pytest.mark.full("one width and one theme show most of it")
CHECKED = ("overview", "bulk")
"""Of a plain run: charts, and tables with controls."""
TRACE = ("--keys", "50", "--peak", "20", "--hours", "0.02")
COMMANDS = {
    "plan": ("plan", *TRACE, "--remedy", "nothing"),
    "plan with a remedy": ("plan", *TRACE, "--remedy", "spread"),
    "lab": ("lab", "fairness", "--items", "1000"),
    "lab with many charts": ("lab", "rates", "--items", "1000"),
}


@pytest.fixture(scope="module")
def addresses(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("pages")
    with ExitStack() as stack:
        found = {name: f"{site.url}{path}" for name, path in PAGES.items()}
        if not FULL:
            yield {name: found[name] for name in CHECKED}
            return
        found["engine"] = stack.enter_context(ours(BUSY))
        client = client_of(found["engine"])
        stack.callback(client.close)
        create(client, "chat", "S")
        found["api"] = f"{site.url}/docs"
        for name, command in COMMANDS.items():
            file = folder / f"{name.replace(' ', '-')}.html"
            result = CliRunner().invoke(main, [*command, "--out", str(file)])
            assert result.exit_code == 0, result.output
            found[name] = file.as_uri()
        demo = stack.enter_context(running_demo())
        yield {**found, **{f"demo {act}": f"{demo}#{act}" for act in NAMES}}


def wait_until_loaded(page: Page, name: str) -> None:
    if name.startswith("demo"):
        shows(page, name.removeprefix("demo "), 2)
    expect(page.get_by_text("Loading: ").filter(visible=True)).to_have_count(0)
    if name == "engine":
        expect(page.get_by_role("heading", name="chat")).to_be_visible()
    page.locator("summary").evaluate_all("all => all.forEach(one => one.click())")


EVERY_LOOK = pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        pytest.param("dark", 1280, marks=OTHER_LOOKS),
        pytest.param("light", 390, marks=OTHER_LOOKS),
        pytest.param("dark", 390, marks=OTHER_LOOKS),
    ],
)


@EVERY_LOOK
def test_no_page_hinders_anybody(
    addresses: dict[str, str], visit: Visit, scheme: Literal["light", "dark"], width: int
) -> None:
    found = {}
    for name, address in addresses.items():
        page = visit(address, color_scheme=scheme, viewport={"width": width, "height": 844})
        wait_until_loaded(page, name)
        found[name] = violations(page)
        page.close()
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.full("pages in states that few see; plain runs check the pages themselves")
@EVERY_LOOK
def test_failures_a_missing_token_and_a_lost_server_hinder_nobody(
    site: Site, visit: Visit, tmp_path: Path, scheme: Literal["light", "dark"], width: int
) -> None:
    look = {"color_scheme": scheme, "viewport": {"width": width, "height": 844}}
    page = visit(f"{site.url}/bulk", **look)
    page.get_by_text(re.compile(r"\d+ finished batch.* with failed or lost items")).click()
    row_of(page, site.mail).get_by_role("button", name="Failures").click()
    expect(page.get_by_role("region", name="Failures").get_by_text("no mailbox 57")).to_be_visible()
    found = {"failures": seen(page, f"failures-{scheme}-{width}")}
    with serving(tmp_path, *EMPTY, "--token", f"read:{TOKEN}") as served:
        page = visit(served.url, allow=True, **look)
        expect(page.get_by_label("Token", exact=True)).to_be_visible()
        found["token"] = seen(page, f"token-{scheme}-{width}")
        page.get_by_label("Token", exact=True).fill(TOKEN)
        page.get_by_role("button", name="Connect").click()
        expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("Disconnected")
    found["disconnected"] = seen(page, f"disconnected-{scheme}-{width}")
    assert {name: lines for name, lines in found.items() if lines} == {}


def seen(page: Page, name: str) -> list[str]:
    """Take a picture, and return what axe-core finds."""
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)
    return violations(page)
