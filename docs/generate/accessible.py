"""What the theme leaves out for people who use a keyboard or a screen reader."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from sphinx.application import Sphinx

MENDS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r'(<p class="caption" role="heading")>', r'\1 aria-level="2">'),
    (r'<aside class="sidebar-drawer"', r'\g<0> aria-label="All pages"'),
    (r'<aside class="toc-drawer', r'<aside aria-label="This page" class="toc-drawer'),
    (r"<pre>", '<pre tabindex="0">'),
    (r'<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
    (r'<div id="search-results"', r"<h1>Search</h1>\g<0>"),
    (
        r'<dl>\s*((?:<dd><em class="sig-param">.*</dd>\s*)+)</dl>',
        lambda found: f'<div class="sig-params">{found[1].replace("dd>", "div>")}</div>',
    ),
    (r'<th class="(head[^"]*)">(?:<p></p>)?</th>', r'<td class="\1"></td>'),
)
"""Headings without a level, landmarks of one name, what scrolls without a keyboard, a page without
a title, parameters as a list of definitions without terms, heads of columns that say nothing."""


def mended(page: str) -> str:
    for pattern, replacement in MENDS:
        page = re.sub(pattern, replacement, page)
    return page


def mend_pages(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        for file in Path(app.outdir).rglob("*.html"):
            file.write_text(mended(file.read_text("utf-8")), "utf-8")
