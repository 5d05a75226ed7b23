"""The site is built without a warning, asks nobody outside for anything, and leaves nothing out."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from docs.generate.commands import leaves
from docs.generate.fields import field_texts
from docs.generate.pictures import FOLDER

from heatsink import BucketRules, PartitionLimit, Retries, Settings, errors
from heatsink.absorb import NearRules, ReadSettings
from heatsink.bulk import BulkSettings
from heatsink.bulk.scaling.rules import WorkerRules
from heatsink.isolate import TimelineSettings
from heatsink.service.api.table import ROUTES
from heatsink.service.cli import main

from .pages import DOCS, PAGES, ROOT

pytestmark = pytest.mark.timeout(180)  # the first test builds it
FETCHED = re.compile(r"""<(?:script|img|link|iframe)[^>]*(?:src|href)=["'](https?:)?//""")
RULES = (BucketRules, Retries, PartitionLimit, NearRules, ReadSettings, WorkerRules)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made in a process of its own, as `./dev docs` does; every warning is an error."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "docs.generate", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def words(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_page_is_in_it_and_fetches_nothing_from_outside(site: Path) -> None:
    for page in PAGES[1:]:
        assert (site / page.relative_to(DOCS)).with_suffix(".html").exists()
    for made in site.rglob("*.html"):
        assert not FETCHED.search(made.read_text()), made
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text()), style


def test_the_reference_leaves_nothing_out(site: Path) -> None:
    reference = site / "reference"
    commands = words(reference / "commands.html")
    for path, command in leaves(("heatsink",), main):
        assert " ".join(path) in commands
        for parameter in command.params:
            assert parameter.param_type_name == "argument" or parameter.opts[0] in commands
    api = words(reference / "http-api.html")
    for route in ROUTES:
        assert f"{route.method} {route.path}" in api
    for name in vars(errors):
        assert name.startswith("_") or name in words(reference / "errors.html")
    assert "heatsink_worker_items_total" in words(reference / "metrics.html")


@pytest.mark.parametrize("rules", [Settings, *RULES, BulkSettings, TimelineSettings])
def test_every_setting_says_what_it_is(rules: type, site: Path) -> None:
    texts = field_texts(rules)
    page = words(site / "reference" / "settings.html")
    for name in rules.__struct_fields__:  # type: ignore[attr-defined]
        assert texts.get(name), f"say below {name} what it is"
        assert name in page


def test_every_picture_of_the_lab_is_shown() -> None:
    text = "".join(page.read_text() for page in PAGES)
    for picture in FOLDER.glob("*.svg"):
        assert f"images/lab/{picture.name}" in text
