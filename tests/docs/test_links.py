"""Links inside the project lead to a file, and to a heading that is there.

The site's own links are checked when it is built; these are for who reads the files as they are.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import DOCS, PAGES, ROOT, name_of

TOP = ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
FILES = [*PAGES, *(ROOT / f"{name}.md" for name in TOP)]
SOURCES = [
    file
    for folder in ("src", "deploy", "examples", "benchmarks", "tests")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in (".py", ".js", ".html", ".yaml", ".json", ".service", ".env", ".toml")
]
GENERATED = {DOCS / "reference" / f"{name}.md" for name in ("commands", "http-api", "settings")}


def slug(heading: str) -> str:
    words = re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower())
    return words.strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", FILES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if anchor and file not in GENERATED:
            assert anchor in anchors(file), f"{target}#{anchor}"


def test_sources_name_pages_that_exist() -> None:
    for file in SOURCES:
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{file.relative_to(ROOT)} names {name}"
