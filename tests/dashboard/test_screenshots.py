"""Every page in light, in dark and on a phone, with real traffic: pictures to look at."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from playwright.sync_api import Page

from .conftest import ROOT, SHOTS, Site, Visit
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
PICTURE = ROOT / "docs" / "images" / "dashboard.png"
DRAWN_MS = 300
BARS = ".chart .bars .point path"
pytestmark = pytest.mark.timeout(180)


def go(page: Page, path: str) -> None:
    page.evaluate(
        """path => {
            history.pushState(null, "", path);
            dispatchEvent(new PopStateEvent("popstate"));
        }""",
        path,
    )


def has_tall_bars(page: Page) -> bool:
    heights = f"[...document.querySelectorAll('{BARS}')].map(bar => bar.getBBox().height)"
    return bool(page.evaluate(f"Math.min(...{heights}, 1e9) > 5 && {heights}.length > 1"))


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_fits_and_is_drawn(site: Site, visit: Visit, look: str) -> None:
    page = visit(site.url, **LOOKS[look])
    page.get_by_text("live", exact=True).wait_for()
    for name, path in PAGES.items():
        go(page, path)
        page.wait_for_timeout(DRAWN_MS)
        if name == "overview":
            page.locator("progress").first.wait_for()
        if name == "keys":
            for _ in range(20):
                if has_tall_bars(page):
                    break
                page.wait_for_timeout(500)
            assert has_tall_bars(page), "no bar for each bucket"
        shot = SHOTS / f"{name}-{look}.png"
        page.screenshot(path=shot, full_page=True)
        wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, f"{name} is wider than the screen"
    if look == "light" and not PICTURE.exists():  # remove it to have it taken anew
        shutil.copy(SHOTS / "overview-light.png", PICTURE)
