"""Every page in light, in dark and on a phone, with real traffic: pictures to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from .conftest import ROOT, Site, Visit
from .traffic import HOT

PAGES = {
    "overview": "/",
    "keys": f"/keys?key={HOT}",
    "bulk": "/bulk",
    "reads": "/reads",
    "timelines": "/timelines",
    "registry": "/registry",
}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}
SHOTS = ROOT / "artifacts" / "screenshots"
DRAWN_MS = 3_500


def shoot(page: Page, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path, full_page=True)


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_fits_and_is_drawn(site: Site, visit: Visit, look: str) -> None:
    page = visit(site.url, **LOOKS[look])
    page.get_by_text("live", exact=True).wait_for()
    page.wait_for_timeout(DRAWN_MS)
    for name, path in PAGES.items():
        page.evaluate(
            "url => { history.pushState(null, '', url); dispatchEvent(new PopStateEvent('popstate')); }",
            path,
        )
        page.wait_for_timeout(1_200)
        shoot(page, SHOTS / f"{name}-{look}.png")
        width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert width <= 0, f"{name} is wider than the screen"
