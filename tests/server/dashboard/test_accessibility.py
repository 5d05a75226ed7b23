"""No page of dashboard, API, demo, engine, plan and lab hinders anybody, as axe-core sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
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

from .conftest import Site, Visit
from .test_demo import running_demo, shows
from .test_engine_page import BUSY, create
from .test_screenshots import PAGES

pytestmark = pytest.mark.timeout(400)
OTHER_LOOKS = pytest.mark.full("one width and one theme show most of it")
CHECKED = ("overview", "bulk")
"""Of a plain run: charts, and tables with controls."""
COMMANDS = {
    "plan": ("plan", "--keys", "50", "--peak", "20", "--hours", "0.02", "--remedy", "nothing"),
    "lab": ("lab", "fairness", "--items", "1000"),
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
            file = folder / f"{name}.html"
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


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        pytest.param("dark", 1280, marks=OTHER_LOOKS),
        pytest.param("light", 390, marks=OTHER_LOOKS),
        pytest.param("dark", 390, marks=OTHER_LOOKS),
    ],
)
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
