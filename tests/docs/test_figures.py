"""Figures in the docs come from recorded runs."""

from __future__ import annotations

import json
import re

from benchmarks.__main__ import NAMES
from docs.generate.figures import RECORDED, markdown

from tests.docs.pages import PAGES

WANTED = re.compile(r"^```{generated} figures (.*)$", re.MULTILINE)


def test_every_figure_that_a_page_shows_was_recorded() -> None:
    shown = {
        name
        for page in PAGES
        for names in WANTED.findall(page.read_text())
        for name in names.split()
    }
    recorded = json.loads(RECORDED.read_text())
    assert shown
    assert shown <= set(recorded) <= set(NAMES)
    for name in shown:
        text = markdown(name)
        assert recorded[name]["date"] in text
        assert all(result["metric"] in text for result in recorded[name]["results"])
