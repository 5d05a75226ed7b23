"""Figures in the docs come from recorded runs."""

from __future__ import annotations

import json
import re

from benchmarks.__main__ import NAMES
from benchmarks.harness import Bench, at_most, changes, ratio_at_most
from docs.generate.figures import RECORDED, markdown

from tests.docs.pages import PAGES, name_of

WANTED = re.compile(r"^```{generated} figures (.*)$", re.MULTILINE)
GENERATED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
BENCH = re.compile(r"\./dev\s+bench")
FIGURE = re.compile(r"\d[\d,.]*\s?(?:ns|µs|ms|KB|MB|bytes|×|times as|/s\b)|\d\s?% of a core")


def test_every_figure_that_a_page_shows_comes_from_a_recorded_run() -> None:
    shown = {
        name
        for page in PAGES
        for names in WANTED.findall(page.read_text())
        for name in names.split()
    }
    recorded = json.loads(RECORDED.read_text())
    assert shown
    assert shown | set(recorded) <= set(NAMES)
    assert "No run is recorded yet" in markdown("no such benchmark")
    for name in shown & set(recorded):
        text = markdown(name)
        assert recorded[name]["date"] in text
        assert all(result["metric"] in text for result in recorded[name]["results"])


def test_a_table_before_and_after_compares_ratios_and_what_has_a_target() -> None:
    before, after = Bench("append"), Bench("append")
    for bench, own, other in ((before, 3.0, 2.0), (after, 2.4, 2.0)):
        bench.add("an append", "s", [own], ratio_at_most(1.25), ("put", [other]))
        bench.add("a start", "s", [own], at_most(3), ("dynalite", [other]))
    before.add("gone", "s", [1.0])
    after.add("new, with a target", "s", [4.0], at_most(3))
    after.add("new, without a target", "s", [4.0])
    _, _, *rows = changes(before.results, after.results).splitlines()
    assert [re.split(r"\s{2,}", row)[1:] for row in rows] == [
        ["an append", "1.50 × put", "1.20 × put", "0.80 ×", "≤ 1.25 ×", "met"],
        ["a start", "3.00 s", "2.40 s", "0.80 ×", "≤ 3.00 s", "met"],
        ["new, with a target", "4.00 s", "≤ 3.00 s", "MISSED"],
    ]


def statements(text: str) -> list[str]:
    """Paragraphs and rows of tables, without blocks of code and what is generated."""
    without = GENERATED.sub("", text)
    paragraphs = re.split(r"\n\s*\n", without)
    return [
        part for each in paragraphs for part in (each.split("\n|") if "\n|" in each else [each])
    ]


def test_no_page_copies_a_figure_of_a_benchmark_by_hand() -> None:
    """Decisions are left out: they say what was measured when the decision was made."""
    copied = [
        f"{name_of(page)}: {statement.strip()[:120]}"
        for page in PAGES
        if page.parent.name != "decisions"
        for statement in statements(page.read_text())
        if BENCH.search(statement) and FIGURE.search(statement)
    ]
    assert not copied, "write `{generated} figures NAME` instead:\n" + "\n".join(copied)


def test_a_copied_figure_is_found() -> None:
    row = "| a hit | 0.37 µs | cashews 5.9 µs | `./dev bench reads` |"
    assert any(BENCH.search(each) and FIGURE.search(each) for each in statements(f"| a |\n{row}"))
    assert not FIGURE.search(statements("see `./dev bench reads`\n\n```text\n5 µs\n```")[0])
