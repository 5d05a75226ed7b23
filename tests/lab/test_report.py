from __future__ import annotations

import json
import os
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from click.testing import CliRunner

from heatsink.cli import main
from heatsink.lab.commands import check_page, show
from heatsink.lab.report import Chart, Figure, LabReport, ReportTable, Series, to_html

REPORT = LabReport(
    name="test",
    title="Items < 3 & more",
    story="First.\n\nSecond.",
    figures=[Figure("time", "3 s", "9 s before")],
    tables=[ReportTable("All", ["what", "how many"], [["<b>", 1_234_567], ["c", 0.12345]])],
    charts=[Chart("Line", "items", [Series("</script>", [0.0, 1.0], [2.0, 3.0])])],
)


def test_the_page_holds_all_that_was_found() -> None:
    page = to_html(REPORT, "heatsink lab test", "/* plotly */")
    assert "<h1>Items &lt; 3 &amp; more</h1>" in page
    assert "<p>First.</p><p>Second.</p>" in page
    assert "<td>&lt;b&gt;</td><td>1,234,567</td>" in page
    assert "<td>0.1235</td>" in page
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])[0]["series"][0]["name"] == "</script>"


def test_the_page_asks_nobody_for_anything() -> None:
    page = to_html(REPORT, "heatsink lab test", "/* plotly */")
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)


@pytest.mark.server("its runs are processes")
def test_the_command_prints_tables_and_writes_the_page(tmp_path: Path) -> None:
    out = tmp_path / "fairness.html"
    result = CliRunner().invoke(main, ["lab", "fairness", "--items", "1000", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "beside it, other tenant" in result.output
    assert "heatsink lab fairness --items 1000 --seed 1" in out.read_text()


def test_a_page_that_cannot_be_written_is_an_error_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "missing" / "page.html"
    result = CliRunner().invoke(main, ["lab", "fairness", "--items", "1000", "--out", str(out)])
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].startswith(f"heatsink: --out '{out}' cannot be written: ")
    assert "beside it, other tenant" not in result.output  # nothing was run


def test_a_page_is_written_although_nobody_reads_the_output(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    out = tmp_path / "page.html"
    with os.fdopen(write, "w") as closed, redirect_stdout(closed), pytest.raises(SystemExit):
        show(REPORT, out, "heatsink lab test")
    assert "<h1>Items" in out.read_text()


def test_a_page_that_is_there_is_kept_until_there_is_a_new_one(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    check_page(out)
    assert not out.exists()
    out.write_text("old")
    check_page(out)
    assert out.read_text() == "old"
