"""Every page in light, in dark and on a phone, with real traffic: pictures to look at."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from playwright.sync_api import Page

from .conftest import ROOT, SHOTS, Site, Visit, expect_to_fit
from .traffic import HOT

PAGES = {
    "overview": "/",
    "keys": f"/keys?key={HOT}",
    "bulk": "/bulk",
    "reads": "/reads",
    "timelines": "/timelines",
    "cluster": "/cluster",
    "registry": "/registry",
    "settings": "/settings",
}
ON_PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": ON_PHONE,
    "phone-dark": {**ON_PHONE, "color_scheme": "dark"},
}
OTHERS = ("light", "dark", "phone-dark")
FULL = pytest.mark.full("what fits on a phone fits on a wide screen, and in other colours")
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


def until_bars_are_tall(page: Page) -> None:
    """One for each bucket."""
    page.wait_for_function(
        """bars => {
            const heights = [...document.querySelectorAll(bars)].map(bar => bar.getBBox().height);
            return heights.length > 1 && Math.min(...heights) > 5;
        }""",
        arg=BARS,
    )


@pytest.mark.parametrize("look", [*(pytest.param(look, marks=FULL) for look in OTHERS), "phone"])
def test_every_page_fits_and_is_drawn(site: Site, visit: Visit, look: str) -> None:
    page = visit(site.url, **LOOKS[look])
    page.get_by_text("live", exact=True).wait_for()
    for name, path in PAGES.items():
        go(page, path)
        page.wait_for_timeout(DRAWN_MS)
        if name == "overview":
            page.get_by_role("heading", name="Unfinished batches").wait_for()
            page.locator(".chart .main-svg").first.wait_for()
        if name == "settings":
            if look in ("phone", "phone-dark"):
                page.get_by_text("All other settings").click()
            page.locator("td").get_by_text("rules.buckets_max", exact=True).wait_for()
        if name == "keys":
            until_bars_are_tall(page)
        shot = SHOTS / f"{name}-{look}.png"
        page.screenshot(path=shot, full_page=True)
        expect_to_fit(page, name)
    if look == "light" and not PICTURE.exists():  # remove it to have it taken anew
        shutil.copy(SHOTS / "overview-light.png", PICTURE)
