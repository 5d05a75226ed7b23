"""A running server with traffic, and a real browser that tolerates no error and no outside request.

In CI a missing browser fails; elsewhere it skips and says how to get it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)
from playwright.sync_api import TimeoutError as Late

from tests.processes import serving

from .traffic import submit, tell_stories, traffic, until_spread

ROOT = Path(__file__).parents[3]
SHOTS = ROOT / "artifacts" / "screenshots"
CURE = "no browser: apt-get install chromium"
SLOW_MS = 60_000
DESKTOP = {"width": 1280, "height": 900}
Visit = Callable[..., Page]
expect.set_options(timeout=SLOW_MS)


@dataclass(frozen=True)
class Site:
    url: str
    mail: str
    resize: str


def expect_to_fit(page: Page, name: str) -> None:
    """What is drawn anew for another screen takes a moment to find its size."""
    try:
        page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
    except Late:
        pytest.fail(f"{name} is wider than the screen")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(CURE)
        pytest.skip(CURE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer"],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("dashboard")
    data = folder / "data"
    with ExitStack() as stack:
        flags = ("--data", str(data), "--actions", "tests.server.dashboard.actions:actions")
        url = stack.enter_context(serving(ROOT, *flags)).url
        stack.enter_context(traffic(url))
        tell_stories(url, data)
        mail = submit(url, "mail", "shop", 200)
        resize = submit(url, "resize", "photos", 20_000)
        until_spread(url)
        yield Site(url, mail, resize)


@dataclass
class Watched:
    """What a page did that it should not."""

    home: str
    faults: list[str]

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def threw(self, error: Any) -> None:
        self.faults.append(str(error))

    def asked(self, request: Request) -> None:
        if urlsplit(request.url).netloc != self.home and not request.url.startswith("data:"):
            self.faults.append(f"asked {request.url}")


@pytest.fixture(scope="package")
def contexts() -> dict[str, BrowserContext]:
    """By their options: tests share them, so that plotly is fetched and compiled once."""
    return {}


@pytest.fixture
def visit(browser: Browser, contexts: dict[str, BrowserContext]) -> Iterator[Visit]:
    """`visit(url, **options of the browser's context)`; at the end nothing may have gone wrong."""
    with ExitStack() as stack:
        watchers: list[Watched] = []

        def open_page(url: str, allow: bool = False, **options: Any) -> Page:
            look = repr(sorted(options.items()))
            if look not in contexts:
                contexts[look] = browser.new_context(**{"viewport": DESKTOP, **options})
            page = contexts[look].new_page()
            stack.callback(page.close)
            page.set_default_timeout(SLOW_MS)
            watched = Watched(urlsplit(url).netloc, [])
            if not allow:
                watchers.append(watched)
            page.on("console", watched.heard)
            page.on("pageerror", watched.threw)
            page.on("request", watched.asked)
            page.goto(url)
            return page

        yield open_page
        assert [fault for watched in watchers for fault in watched.faults] == []
