"""The site is built without a warning, asks nobody outside for anything, and leaves nothing out."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Literal

import pytest
from docs.generate import commands, compatibility, errors, fields, http_api, metrics
from docs.generate.pictures import FOLDER
from playwright.sync_api import Request, ViewportSize, sync_playwright

from heatsink import errors as our_errors
from heatsink.cli import main
from heatsink.client.deployment import field_texts
from heatsink.emulator.engine import OPERATIONS, REFUSED, STREAMS_API
from heatsink.server.api.table import ROUTES
from tests.accessibility import violations

from .pages import DOCS, PAGES, ROOT

PHONE: ViewportSize = {"width": 390, "height": 844}
LOOKED_AT = (
    "index",
    "tutorial/hot-conversation",
    "concepts/hot-partitions",
    "reference/python",
    "comparison",
)
WIDE: ViewportSize = {"width": 1280, "height": 844}
LOOKS: list[tuple[Literal["light", "dark"], ViewportSize]] = [
    ("light", WIDE),
    ("dark", WIDE),
    ("light", PHONE),
    ("dark", PHONE),
]
LARGE_BYTES = 300_000  # of the HTML file
FETCHED = re.compile(r"""<(?:script|img|link|iframe)[^>]*(?:src|href)=["'](https?:)?//""")
STYLED = re.compile(r"""(@import|url\()\s*["']?(https?:)?//""")
SETTINGS = DOCS / "reference" / "settings.md"
SETTINGS_OBJECTS = re.findall(r"\{generated\} settings (\S+)", SETTINGS.read_text())


@pytest.mark.timeout(180)
def test_every_page_is_read_without_a_warning(tmp_path: Path) -> None:
    """References and docstrings are resolved; nothing is written, which takes half of the time."""
    options = ["-W", "--keep-going", "--quiet", "--builder", "dummy"]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.full("writes the whole site, and looks at it in a browser")
@pytest.mark.timeout(1_800)  # of CPU time, axe-core takes two minutes; other programs may run
def test_the_site_has_every_page_and_fetches_nothing_from_outside(tmp_path: Path) -> None:
    """Made in a process of its own, as `./dev docs` does; every warning is an error."""
    command = [sys.executable, "-m", "docs.generate", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in PAGES[1:]:
        assert (tmp_path / page.relative_to(DOCS)).with_suffix(".html").exists()
    for made in tmp_path.rglob("*.html"):
        assert not FETCHED.search(made.read_text()), made
        assert not re.search("[“”‘’]", made.read_text()), f"{made}: quotes that nobody typed"
    for style in tmp_path.rglob("*.css"):
        assert not STYLED.search(style.read_text()), style
    assert "HEATSINK_COORDINATOR_STORE" in (tmp_path / "reference" / "commands.html").read_text()
    if chromium := shutil.which("chromium"):
        look(tmp_path, chromium)


def look(site: Path, chromium: str) -> None:
    """Nothing hinders anybody, on any page, in all widths and themes."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found: dict[str, list[str]] = {}
        for number, (scheme, size) in enumerate(LOOKS):
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.set_default_timeout(0)
            for file in sorted(site.rglob("*.html")):
                if number and file.stat().st_size > LARGE_BYTES:
                    continue  # axe-core takes 20 s, and its parts are those of smaller pages
                page.goto(file.as_uri())
                if lines := violations(page):
                    found[f"{file.relative_to(site)} {scheme} {size['width']}"] = lines
            page.close()
        browser.close()
    assert found == {}
    look_on_a_phone(site, chromium)


def look_on_a_phone(site: Path, chromium: str) -> None:
    """Nothing is wider than the screen, nothing goes wrong, and no request leaves the folder."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=PHONE)
        faults: list[str] = []
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.on(
            "request", lambda request: faults.append(request.url) if is_outside(request) else None
        )
        for name in LOOKED_AT:
            page.goto((site / f"{name}.html").as_uri())
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE["width"], name
        browser.close()
    assert faults == []


def is_outside(request: Request) -> bool:
    return not request.url.startswith(("file:", "data:"))


def test_every_command_and_flag_is_in_the_reference() -> None:
    text = commands.markdown()
    for path, command in commands.leaves(("heatsink",), main):
        section = text.partition(f"## {' '.join(path)}\n")[2].partition("\n## ")[0]
        assert section, path
        for parameter in command.params:
            assert parameter.param_type_name == "argument" or f"`{parameter.opts[0]}`" in section


def test_every_call_metric_and_error_is_in_the_reference() -> None:
    calls = http_api.markdown()
    for route in ROUTES:
        assert f"### {route.method} {route.path}\n" in calls
    for name, error in vars(our_errors).items():
        assert not isinstance(error, type) or f"| `{name}` |" in errors.markdown()
    served = metrics.markdown()
    assert "| `heatsink_worker_items_total` | counter | `action`, `tenant`, `outcome` |" in served
    assert "| `heatsink_leads` | gauge |  | 1 while this coordinator leads |" in served


def test_every_operation_of_the_emulator_is_in_the_reference() -> None:
    text = compatibility.markdown()
    for name in (*OPERATIONS, *REFUSED):
        assert f"`{name.removeprefix(STREAMS_API)}`" in text


@pytest.mark.parametrize("name", SETTINGS_OBJECTS)
def test_every_setting_says_what_it_is(name: str) -> None:
    kind = resolve_name(name)
    texts = field_texts(kind)
    for field in fields.defaults(kind):
        assert texts.get(field), f"say below {field} what it is"


def test_every_picture_of_the_lab_is_shown() -> None:
    text = "".join(page.read_text() for page in PAGES)
    for picture in FOLDER.glob("*.svg"):
        assert f"images/lab/{picture.name}" in text
